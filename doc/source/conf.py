"""Sphinx configuration."""

import pathlib
import sys

_HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(_HERE.parent / 'ext'), str(_HERE.parents[1])]

project = 'scheduler-service'
extensions = [
    'sphinx.ext.autodoc',
    'sphinx.ext.graphviz',
    'oslo_config.sphinxext',
    'oslo_policy.sphinxext',
    'cycle',
    'programs',
]
graphviz_output_format = 'svg'
html_theme = 'alabaster'
