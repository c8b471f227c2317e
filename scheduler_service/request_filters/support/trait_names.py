"""How values of properties are spelled in the names of traits."""

from __future__ import annotations

from typing import Any


def trait_name(value: Any) -> str:
    """Return a value as names of traits spell it: ``RAW_ISO``."""
    return str(value).upper().replace('-', '_')
