"""Where the files are that come with the programs, beside the package.

A checkout has them in ``etc``, an installation in ``share``. Stateless.
"""

from __future__ import annotations

import pathlib
from importlib import metadata

from scheduler_service import errors

_DISTRIBUTION = 'scheduler-service'
_FOLDER = 'share/scheduler-service'
_SOURCE = pathlib.Path(__file__).resolve().parents[2]


def path(name: str) -> pathlib.Path:
    """Return the path of a shipped file.

    :param name: of a file in ``etc/scheduler_service``, such as
        ``inventory.yaml``
    :raises ConfigurationError: it is neither here nor installed
    """
    here = _SOURCE / 'etc' / 'scheduler_service' / name
    if here.exists():
        return here
    # The record of the installation says where they went: below the prefix,
    # the user's folder, or wherever pip was told to put them.
    try:
        files = metadata.files(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.as_posix().endswith(f'{_FOLDER}/{name}'):
            return pathlib.Path(str(file.locate())).resolve()
    raise errors.ConfigurationError(
        f'{_FOLDER}/{name} is not installed: install the package again'
    )
