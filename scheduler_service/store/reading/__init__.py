"""Reads the store: documents, snapshots, and changes since a snapshot."""
