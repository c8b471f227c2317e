"""HTTP extenders: configuration, documents on the wire, and calls to them."""
