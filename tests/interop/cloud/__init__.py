"""nova's own services build servers where our daemon says."""
