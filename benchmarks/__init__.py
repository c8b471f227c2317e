"""What the service costs, as ratios measured in one run."""
