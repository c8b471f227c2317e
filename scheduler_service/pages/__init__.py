"""Pages for browsers: an adapter of people who would rather look."""
