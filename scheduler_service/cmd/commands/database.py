"""``scheduler-manage db``."""

from __future__ import annotations

from typing import Any

from scheduler_service.cmd.commands import opened
from scheduler_service.store import migrate


def sync(args: Any, conf: Any) -> None:
    """Create or upgrade the tables."""
    with opened(conf) as store:
        print(f'The tables are at version {migrate.sync(store)}.')


def version(args: Any, conf: Any) -> None:
    """Print the version of the tables and of this release."""
    with opened(conf) as store:
        there = migrate.current(store)
    print(f'tables {there or "none"}, release {migrate.head()}')


def check(args: Any, conf: Any) -> int:
    """Say whether the tables are what this release needs; 1 if not."""
    with opened(conf) as store:
        there, needed = migrate.current(store), migrate.head()
        if there != needed:
            print(
                f'The tables are at {there or "no version"}, this release '
                f'needs {needed}: run "scheduler-manage db sync".'
            )
            return 1
        differences = migrate.differences(store)
    for one in differences:
        print(one)
    if not differences:
        print(f'The tables are as this release needs them ({needed}).')
    return 1 if differences else 0
