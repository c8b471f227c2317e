"""The placement service over HTTP: providers and allocations.

``client`` sends the calls, ``claims`` makes and undoes allocations,
``claimer`` completes the engine's claims with them.
"""
