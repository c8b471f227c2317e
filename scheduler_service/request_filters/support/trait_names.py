"""How values of properties are written in the names of traits."""

from __future__ import annotations

from typing import Any


def trait_name(text: Any) -> str:
    """Return a value as it stands in the names of traits."""
    return str(text).upper().replace('-', '_')
