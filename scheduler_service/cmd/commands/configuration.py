"""``scheduler-manage configuration``, ``daemon`` and ``policy``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from typing import Any

from scheduler_service import (
    errors,
    policies,
    rpc,  # noqa: F401 - before oslo.messaging
)
from scheduler_service.cmd import output
from scheduler_service.cmd.connections import read
from scheduler_service.conf import effective
from scheduler_service.store.records import daemons as daemon_rows

import oslo_messaging  # isort: skip

Document = Mapping[str, Mapping[str, Any]]
# Kinds of callers, and the project that owns what they act on.
_OWNER = 'owner'
_CALLERS: dict[str, dict[str, Any]] = {
    'nobody': {'roles': []},
    'other project': {'project_id': 'other', 'roles': ['member']},
    _OWNER: {'project_id': _OWNER, 'roles': ['member']},
    'service': {'project_id': 'service', 'roles': ['service']},
    'admin': {'project_id': 'admin', 'roles': ['admin']},
}


def daemons(args: Any, conf: Any) -> None:
    """Print the daemons that share the store."""
    stored = read(conf, daemon_rows.listing)
    counts = Counter(row['fingerprint'] for row in stored)
    most = max(counts.values(), default=0)
    rows = [
        {
            'name': row['name'],
            'state': (
                'silent' if row['silent_for'] > daemon_rows.SILENT_S else 'up'
            ),
            'version': row['version'],
            'configuration': row['fingerprint'],
            'differs': counts[row['fingerprint']] < most,
            'started': output.timestamp(row['started_at']),
            'last_sign': output.timestamp(row['seen_at']),
        }
        for row in stored
    ]
    columns = [
        'name', 'state', 'version', 'configuration', 'differs', 'started',
        'last_sign',
    ]  # fmt: skip
    output.listing(rows, columns, args)


def show(args: Any, conf: Any) -> None:
    """Print the values of options, and their sources."""
    by_place = _by_place(_of(args.daemon, conf))
    rows = [
        {'option': place, 'value': item['value'], 'source': item['source']}
        for place, item in sorted(by_place.items())
        if args.all or item['source'] != 'default'
    ]
    output.listing(rows, ('option', 'value', 'source'), args)


def diff(args: Any, conf: Any) -> int:
    """Print where two configurations differ; return 1 if they do."""
    without: Set[tuple[str, str]] = set() if args.all else effective.OWN
    first = _by_place(_of(args.daemon, conf), without)
    second = _by_place(_of(args.other, conf), without)
    names = args.daemon, args.other or 'files'
    # A command registers fewer options than a daemon's libraries.
    both = first.keys() | second.keys() if args.other else second.keys()
    rows = [
        {'option': place, names[0]: left, names[1]: right}
        for place in sorted(both)
        if (left := _value(first, place)) != (right := _value(second, place))
    ]
    output.listing(rows, ('option', *dict.fromkeys(names)), args)
    return 1 if rows else 0


def _of(name: str | None, conf: Any) -> Document:
    """Return the configuration of a daemon; None: of the files.

    :raises NotFound: no daemon of the name is registered
    """
    if name is None:
        return _of_files(conf)
    document: Document | None = read(
        conf, lambda conn: daemon_rows.configuration(conn, name)
    )
    if document is None:
        raise errors.NotFound(
            f'No daemon {name} is registered; "scheduler-manage daemon list" '
            'prints all that are'
        )
    return document


def _of_files(conf: Any) -> Document:
    """Return the configuration of the files, with the bus driver's options.

    :raises ConfigurationError: values are not valid; it names all of them
    """
    # Registers the driver's options, without a connection.
    oslo_messaging.get_rpc_transport(conf).cleanup()
    faults = effective.faults(conf)
    if faults:
        raise errors.ConfigurationError('; '.join(faults))
    return effective.document(conf)


def _by_place(
    document: Document, without: Set[tuple[str, str]] = frozenset()
) -> dict[str, Any]:
    """Return value and source by ``[group] option``, but for some."""
    return {
        f'[{group}] {name}': item
        for group, options in document.items()
        for name, item in options.items()
        if (group, name) not in without
    }


def _value(by_place: Mapping[str, Any], place: str) -> Any:
    return by_place[place]['value'] if place in by_place else 'unknown to it'


def check_policy(args: Any, conf: Any) -> int:
    """Check the policy file, and print whom each rule allows.

    :return: 1 where the file names rules that do not exist
    :raises ConfigurationError: the file is unreadable, or has invalid rules
    """
    enforcer = policies.Enforcer(conf)
    callers, owner = _CALLERS, _OWNER
    if args.role or args.user or args.project or args.owner:
        given = {
            'user_id': args.user,
            'project_id': args.project,
            'roles': args.role,
        }
        callers, owner = {'allowed': given}, args.owner
    target = {'project_id': owner} if owner else {}
    rows = [
        {
            'rule': rule,
            **{
                name: enforcer.allows(rule, target, caller)
                for name, caller in callers.items()
            },
        }
        for rule in policies.method_rules()
    ]
    output.listing(rows, ['rule', *callers], args)
    return 1 if enforcer.unknown_rules() else 0
