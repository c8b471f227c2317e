"""Sphinx configuration of the release notes."""

project = 'scheduler-service release notes'
extensions = ['reno.sphinxext']
