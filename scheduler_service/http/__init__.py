"""The HTTP server: health, metrics, explanations, and us as an extender."""
