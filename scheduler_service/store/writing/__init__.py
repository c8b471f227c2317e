"""Writes entities, a module for each kind, and whole inventory documents."""
