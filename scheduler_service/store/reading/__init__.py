"""Reads the store: documents, snapshots, and what changed since one."""
