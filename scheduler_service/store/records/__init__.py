"""What is stored beside the inventory: decisions, heartbeats, quarantine."""
