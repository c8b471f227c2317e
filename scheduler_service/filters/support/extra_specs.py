"""The scope of extra specs that are matched with aggregate metadata."""

from __future__ import annotations

AGGREGATE_SCOPE = 'aggregate_instance_extra_specs'
