"""HTTP extenders: the policy file, v1 objects for them, and calls to them."""
