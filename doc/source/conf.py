"""Sphinx configuration."""

project = 'scheduler-service'
extensions = ['sphinx.ext.autodoc']
html_theme = 'alabaster'
