"""What is kept beside the inventory: decisions, heartbeats, quarantine."""
