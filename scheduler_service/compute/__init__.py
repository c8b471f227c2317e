"""What the compute service sends and expects, in our own terms.

Versioned objects come in, documents of the model go to the engine, and what
the engine answers goes out as versioned objects again. Nothing here knows the
bus: the endpoints in ``rpc`` call it.
"""
