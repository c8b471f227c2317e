"""What a daemon tells the others of itself."""

from __future__ import annotations

from importlib import metadata
from typing import Any

from scheduler_service.conf import effective
from scheduler_service.store.records.daemons import Registration

# Names and releases are cut to the columns' lengths.
_NAME_LENGTH = 255
_VERSION_LENGTH = 64


def entry(conf: Any, name: str, daemon_id: str) -> Registration:
    """Return the entry of a daemon.

    :param daemon_id: of its process
    """
    release = metadata.version('scheduler-service')
    return Registration(
        daemon_id,
        name[:_NAME_LENGTH],
        release[:_VERSION_LENGTH],
        effective.fingerprint(conf),
        effective.document(conf),
    )
