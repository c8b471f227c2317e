"""The placement service over HTTP: providers and allocations.

``client`` sends the calls, ``candidate_stage`` finds candidates for requests
that need them, ``claims`` makes and undoes allocations,
``claimer`` completes the engine's claims with them.
"""
