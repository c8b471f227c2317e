"""A package of somebody else, with filters of their own."""
