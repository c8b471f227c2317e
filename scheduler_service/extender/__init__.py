"""HTTP extenders: their configuration, their wire form, and calls to them."""
