"""The adapter of the compute service.

``endpoint`` serves its scheduler interface: versioned objects come in,
requests of the model go to the engine, and its answers go out as versioned
objects. ``follower`` mirrors its databases and placement's providers,
``placement`` makes allocations, ``host_order`` serves external calls.
"""
