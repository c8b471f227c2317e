"""``scheduler-manage daemon`` and ``configuration``: who runs, and how."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from typing import Any

from scheduler_service import (
    errors,
    rpc,  # noqa: F401 - before oslo.messaging
)
from scheduler_service.cmd import output
from scheduler_service.cmd.commands import read, timestamp
from scheduler_service.conf import effective
from scheduler_service.store.records import daemons

import oslo_messaging  # isort: skip

Document = Mapping[str, Mapping[str, Any]]


def listing(args: Any, conf: Any) -> None:
    """Print the daemons that share the store."""
    rows = read(conf, daemons.listing)
    counts = Counter(one['fingerprint'] for one in rows)
    most = max(counts.values(), default=0)
    for row in rows:
        silent = row['silent_for'] > daemons.SILENT_S
        row['state'] = 'silent' if silent else 'up'
        row['configuration'] = row['fingerprint']
        row['differs'] = counts[row['fingerprint']] < most
        row['started'] = timestamp(row['started_at'])
        row['last_sign'] = timestamp(row['seen_at'])
    columns = ('name', 'state', 'version', 'configuration', 'differs',
               'started', 'last_sign')  # fmt: skip
    output.listing(
        [{name: row[name] for name in columns} for row in rows], columns, args
    )


def show(args: Any, conf: Any) -> None:
    """Print what options are set to, and where each comes from."""
    found = _of(args.daemon, conf)
    rows = [
        {'option': place, 'value': one['value'], 'source': one['source']}
        for place, one in sorted(_by_place(found).items())
        if args.all or one['source'] != 'default'
    ]
    output.listing(rows, ('option', 'value', 'source'), args)


def diff(args: Any, conf: Any) -> int:
    """Print where two configurations differ; return 1 if they do."""
    without: Set[tuple[str, str]] = set() if args.all else effective.OWN
    first = _by_place(_of(args.daemon, conf), without)
    second = _by_place(_of(args.other, conf), without)
    names = args.daemon, args.other or 'files'
    # A command does not register all that a daemon's libraries do.
    both = first.keys() | second.keys() if args.other else second.keys()
    rows = [
        {'option': place, names[0]: one, names[1]: two}
        for place in sorted(both)
        if (one := _value(first, place)) != (two := _value(second, place))
    ]
    output.listing(rows, ('option', *dict.fromkeys(names)), args)
    return 1 if rows else 0


def _of(name: str | None, conf: Any) -> Document:
    """Return the configuration of a daemon, or of the files given.

    :raises NotFound: no daemon of the name is registered
    """
    if name is None:
        return _of_files(conf)
    found: Document | None = read(
        conf, lambda conn: daemons.configuration(conn, name)
    )
    if found is None:
        raise errors.NotFound(
            f'No daemon {name} is registered; "scheduler-manage daemon list" '
            'prints those that are'
        )
    return found


def _of_files(conf: Any) -> Document:
    """Return what the files say, with the options of the bus's driver.

    :raises ConfigurationError: values are not valid; it names all of them
    """
    # It registers its options, and connects to nothing.
    oslo_messaging.get_rpc_transport(conf).cleanup()
    found = effective.faults(conf)
    if found:
        raise errors.ConfigurationError('; '.join(found))
    return effective.document(conf)


def _by_place(
    document: Document, without: Set[tuple[str, str]] = frozenset()
) -> dict[str, Any]:
    """Return value and source by ``[group] option``, but for some."""
    return {
        f'[{group}] {name}': one
        for group, options in document.items()
        for name, one in options.items()
        if (group, name) not in without
    }


def _value(by_place: Mapping[str, Any], place: str) -> Any:
    return by_place[place]['value'] if place in by_place else 'unknown to it'
