"""``scheduler-manage db``: the tables and their version."""

from __future__ import annotations

from typing import Any

from scheduler_service.cmd.commands import open_store
from scheduler_service.store import migrate


def sync(args: Any, conf: Any) -> None:
    """Create or upgrade the tables."""
    with open_store(conf) as store:
        print(f'The tables are at version {migrate.sync(store)}.')


def version(args: Any, conf: Any) -> None:
    """Print the version of the tables, and the one of this release."""
    with open_store(conf) as store:
        current = migrate.current(store)
    print(f'tables {current or "none"}, release {migrate.head()}')


def check(args: Any, conf: Any) -> int:
    """Compare the tables with what this release needs; return 1 if not."""
    with open_store(conf) as store:
        current, needed = migrate.current(store), migrate.head()
        if current != needed:
            print(
                f'The tables are at {current or "no version"}, this release '
                f'needs {needed}: run "scheduler-manage db sync".'
            )
            return 1
        differences = migrate.differences(store)
    for difference in differences:
        print(difference)
    if not differences:
        print(f'The tables are at {needed}, as this release needs.')
    return 1 if differences else 0
