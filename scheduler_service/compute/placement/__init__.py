"""The placement service over HTTP: what providers have, and allocations.

``client`` sends the calls; ``claims`` makes and undoes allocations. Nothing
here knows the store or the engine.
"""
