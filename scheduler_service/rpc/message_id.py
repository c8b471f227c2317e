"""The id of a message as the store keeps it; stateless."""

from __future__ import annotations

import hashlib
from typing import Any

from scheduler_service.model import limits


def stored_id(unique_id: Any) -> str:
    """Return the id of a message as it is stored: a digest of a long one.

    The sender makes up the id, which may be any text.
    """
    text = str(unique_id)
    if len(text) <= limits.MESSAGE_ID_LENGTH and text.isprintable():
        return text
    return hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()
