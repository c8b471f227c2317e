"""Functions that several request filters share."""
