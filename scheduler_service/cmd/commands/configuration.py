"""``scheduler-manage configuration``, ``daemon`` and ``policy``."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from scheduler_service import (
    errors,
    moments,
    policies,
    rpc,  # noqa: F401 - before oslo.messaging
)
from scheduler_service.cmd import adapters, daemon, output
from scheduler_service.cmd.connections import open_store, read
from scheduler_service.conf import effective, option_names
from scheduler_service.conf.effective import Document
from scheduler_service.rpc import transport
from scheduler_service.store import clock
from scheduler_service.store.reading.snapshot import load_snapshot
from scheduler_service.store.records import daemons as daemon_rows

# Kinds of callers, and the project that owns what they act on.
_OWNER = 'owner'
_CALLERS: dict[str, dict[str, Any]] = {
    'nobody': {'roles': []},
    'other project': {'project_id': 'other', 'roles': ['member']},
    _OWNER: {'project_id': _OWNER, 'roles': ['member']},
    'service': {'project_id': 'service', 'roles': ['service']},
    'admin': {'project_id': 'admin', 'roles': ['admin']},
}


def daemons(args: Any, conf: Any) -> output.Listing:
    rows = read(
        conf,
        lambda conn: daemon_rows.rows(conn, daemon_rows.listing(conn)),
    )
    columns = [
        'name', 'state', 'version', 'configuration', 'differs',
        'other_database', 'degraded', 'degraded_since', 'started', 'last_sign',
    ]  # fmt: skip
    return output.Listing(rows, columns)


def show(args: Any, conf: Any) -> output.Listing:
    by_place = effective.by_place(_of(args.daemon, conf))
    rows = [
        {'option': place, 'value': item['value'], 'source': item['source']}
        for place, item in by_place.items()
        if args.all or item['source'] != 'default'
    ]
    return output.Listing(rows, ('option', 'value', 'source'))


def diff(args: Any, conf: Any) -> output.Listing:
    """Return where two configurations differ.

    With ``--exit-code`` the status is 1 if they do.
    """
    without: Set[tuple[str, str]] = set() if args.all else effective.OWN
    first, second = _of(args.daemon, conf), _of(args.other, conf)
    names = args.daemon, args.other or 'files'
    known = effective.by_place(second)
    rows = [
        {'option': place, names[0]: left, names[1]: right}
        for place, left, right in effective.between(first, second, without)
        # A command registers fewer options than a daemon's libraries.
        if args.other or place in known
    ]
    columns = 'option', *dict.fromkeys(names)
    status = int(args.exit_code and bool(rows))
    return output.Listing(rows, columns, status=status)


def check(args: Any, conf: Any) -> int:
    """Check all that a start and a reload check, without either.

    And whether the policies of stored server groups are enforced.

    :return: 1 if there is something that a daemon only warns about
    :raises ConfigurationError: a daemon would not start
    """
    unknown = option_names.unknown(conf)
    for text in unknown:
        output.say(f'unknown name: {text}')
    daemon.checked(conf).dispose()
    unenforced = _unenforced(conf)
    for text in unenforced:
        output.say(f'policy of server groups that nothing enforces: {text}')
    files = ', '.join(option_names.paths(conf)) or 'the defaults'
    output.say(f'A daemon can start with {files}')
    return 1 if unknown or unenforced else 0


def _unenforced(conf: Any) -> list[str]:
    """Return which policies of stored server groups nothing enforces."""
    try:
        table = read(conf, load_snapshot).hosts
    except errors.SchedulerError as error:
        output.remark(f'Stored server groups are not checked: {error}')
        return []
    return adapters.engine(conf).hosts.group_policies.unenforced(table)


def past(args: Any, conf: Any) -> output.Listing:
    rows = [
        {**row, 'created_at': moments.text(row['created_at'])}
        for row in read(conf, daemon_rows.configurations)
    ]
    columns = ['created_at', 'daemon', 'fingerprint', 'version']
    return output.Listing(rows, columns)


def log(args: Any, conf: Any) -> output.Listing:
    """List what changed in the configuration of each daemon, and when."""
    rows, last = [], dict[str, Document]()
    with open_store(conf) as store, store.reading() as conn:
        since = moments.stamp(args.since, clock.read(conn))
        for at, name, document in daemon_rows.documents(conn):
            if not last and at > since:
                output.remark(f'Nothing is kept before {moments.text(at)}')
            before = last.get(name, document)
            last[name] = document
            rows += [
                (moments.text(at), name, *change)
                for change in effective.between(before, document)
                if at >= since
            ]
    columns = 'time', 'daemon', 'option', 'before', 'after'
    named = [dict(zip(columns, row, strict=True)) for row in rows]
    return output.Listing(named, columns)


def _of(name: str | None, conf: Any) -> Document:
    """Return the configuration of a daemon; None: of the files.

    :param name: of a daemon, or a fingerprint, or a time
    :raises NotFound: there is none
    """
    if name is None:
        transport.prepare(conf)
        effective.check(conf)
        return effective.document(conf)

    def query(conn: Any) -> Document | None:
        stored: Document | None = daemon_rows.configuration(conn, name)
        if stored is not None:
            return stored
        try:
            moment = moments.stamp(moments.past(name), clock.read(conn))
        except ValueError:
            return None
        found = daemon_rows.configuration_at(conn, moment)
        if found is None:
            raise errors.NotFound(
                f'No configuration is recorded until {moments.text(moment)}; '
                'see "scheduler-manage configuration list"'
            )
        recorded_at, document = found
        if recorded_at > moment:
            output.remark(
                f'{name}: the first configuration was recorded later, at '
                f'{moments.text(recorded_at)}: that is compared'
            )
        return document

    document = read(conf, query)
    if document is None:
        raise errors.NotFound(
            f'No daemon {name} is registered, and no configuration of this '
            'fingerprint or time; see "scheduler-manage configuration list"'
        )
    return document


def check_policy(args: Any, conf: Any) -> output.Listing:
    """Check the policy file, and return whom each rule allows.

    The status is 1 where the file names rules that do not exist.

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
    status = 1 if enforcer.unknown_rules() else 0
    return output.Listing(rows, ['rule', *callers], status=status)
