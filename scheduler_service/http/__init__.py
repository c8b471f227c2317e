"""The HTTP face: health, metrics, /v1, and the extender's endpoints."""
