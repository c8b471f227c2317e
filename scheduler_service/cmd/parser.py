"""The command line of ``scheduler-manage``: nouns, verbs and arguments.

Imports nothing heavy, so that ``--help`` is quick.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any


def build() -> argparse.ArgumentParser:
    """Return the parser; the attribute ``run`` names the function to run."""
    parser = argparse.ArgumentParser(
        prog='scheduler-manage',
        description='Operate the scheduler: its database, hosts and claims.',
    )
    parser.add_argument(
        '--config-file',
        action='append',
        default=[],
        metavar='PATH',
        help='configuration file; may be given several times',
    )
    parser.add_argument(
        '--config-dir',
        action='append',
        default=[],
        metavar='DIR',
        help='folder of configuration files; may be given several times',
    )
    nouns = parser.add_subparsers(dest='noun', required=True, metavar='NOUN')
    for add in (
        _database,
        _inventory,
        _pools,
        _hosts,
        _aggregates,
        _groups,
        _zones,
        _scheduling,
        _decisions,
        _claims,
        _messages,
        _policy,
    ):
        add(nouns)
    return parser


def _noun(nouns: Any, name: str, text: str) -> Callable[..., Any]:
    """Add a noun; return a function that adds a verb to it."""
    verbs = nouns.add_parser(name, help=text).add_subparsers(
        dest='verb', required=True, metavar='VERB'
    )

    def verb(word: str, run: str, what: str, lists: bool = False) -> Any:
        added = verbs.add_parser(word, help=what)
        added.set_defaults(run=run)
        if lists:
            _form(added)
        return added

    return verb


def _form(parser: Any, default: str = 'table') -> None:
    parser.add_argument(
        '-f',
        '--format',
        choices=('table', 'json', 'yaml'),
        default=default,
        help=f'how to print it (default: {default})',
    )


def _database(nouns: Any) -> None:
    verb = _noun(nouns, 'db', "the database's tables")
    verb('sync', 'database:sync', 'create or upgrade the tables')
    verb('version', 'database:show_version', 'print the version of the tables')
    verb('check', 'database:check', 'compare the tables with this release')
    purge = verb('purge', 'database:purge', 'delete what is old')
    purge.add_argument(
        '--decisions',
        action='store_true',
        required=True,
        help='delete decisions with their reasons',
    )
    purge.add_argument(
        '--before',
        required=True,
        metavar='TIME',
        help='made before this: a date or time (UTC) such as 2026-11-01, or '
        'an age such as 30d, 12h or 90m',
    )
    purge.add_argument(
        '--batch',
        type=int,
        default=1000,
        metavar='N',
        help='delete so many in a transaction (default: 1000)',
    )


def _inventory(nouns: Any) -> None:
    verb = _noun(nouns, 'inventory', 'hosts, pools, aggregates and so on')
    add = verb(
        'import', 'inventory:import_inventory', 'import a document', True
    )
    add.add_argument('file', help='YAML or JSON; - for standard input')
    add.add_argument(
        '--replace',
        action='store_true',
        help='remove what is not in the document',
    )
    export = verb(
        'export', 'inventory:export', 'print everything as a document'
    )
    _form(export, 'yaml')
    verb('show', 'inventory:show', 'print how many of each there are', True)


def _pools(nouns: Any) -> None:
    verb = _noun(nouns, 'pool', 'DNS pools')
    verb('list', 'resources:pools', 'list pools', True)
    create = verb('create', 'resources:create_pool', 'add a pool')
    create.add_argument('name')
    create.add_argument('--id', help='a UUID; random if absent')
    create.add_argument('--attribute', action='append', metavar='KEY=VALUE')
    change = verb('set', 'resources:set_pool', 'set or remove attributes')
    change.add_argument('pool', help='id or name')
    change.add_argument('attribute', nargs='+', metavar='KEY=VALUE|KEY=')
    verb('delete', 'resources:delete_pool', 'remove a pool').add_argument(
        'pool', help='id or name'
    )


def _hosts(nouns: Any) -> None:
    verb = _noun(nouns, 'host', 'compute hosts')
    verb('list', 'resources:hosts', 'list hosts', True)
    show = verb('show', 'resources:show_host', 'print a host')
    show.add_argument('host')
    _form(show, 'yaml')
    verb('enable', 'resources:enable_host', 'enable a host').add_argument(
        'host'
    )
    disable = verb('disable', 'resources:disable_host', 'disable a host')
    disable.add_argument('host')
    disable.add_argument('--reason', help='shown by host list')
    verb('remove', 'resources:remove_host', 'remove a host').add_argument(
        'host'
    )


def _aggregates(nouns: Any) -> None:
    verb = _noun(nouns, 'aggregate', 'host aggregates, and availability zones')
    verb('list', 'resources:aggregates', 'list aggregates', True)
    create = verb('create', 'resources:create_aggregate', 'add an aggregate')
    create.add_argument('name')
    create.add_argument('--zone', help='its availability zone')
    create.add_argument('--property', action='append', metavar='KEY=VALUE')
    change = verb('set', 'resources:set_aggregate', 'set or remove metadata')
    change.add_argument('aggregate', help='id or name')
    change.add_argument('property', nargs='+', metavar='KEY=VALUE|KEY=')
    for word, run, what in (
        ('add-host', 'resources:add_to_aggregate', 'add hosts'),
        ('remove-host', 'resources:remove_from_aggregate', 'remove hosts'),
    ):
        hosts = verb(word, run, what)
        hosts.add_argument('aggregate', help='id or name')
        hosts.add_argument('host', nargs='+')
    verb(
        'delete', 'resources:delete_aggregate', 'remove an aggregate'
    ).add_argument('aggregate', help='id or name')


def _groups(nouns: Any) -> None:
    verb = _noun(
        nouns, 'server-group', 'groups of instances, together or apart'
    )
    verb('list', 'resources:groups', 'list server groups', True)
    create = verb('create', 'resources:create_group', 'add a server group')
    create.add_argument('name')
    create.add_argument(
        '--policy',
        default='anti-affinity',
        choices=(
            'affinity',
            'anti-affinity',
            'soft-affinity',
            'soft-anti-affinity',
        ),
    )
    create.add_argument('--uuid', help='a UUID; random if absent')
    create.add_argument(
        '--project', help='whose instances may join; all if absent'
    )
    create.add_argument(
        '--max-server-per-host',
        type=int,
        help='members per host, with the policy anti-affinity',
    )
    create.add_argument(
        '--member',
        action='append',
        default=[],
        help='uuid of an instance; may be given several times',
    )
    delete = verb('delete', 'resources:delete_group', 'remove a server group')
    delete.add_argument('uuid')


def _zones(nouns: Any) -> None:
    verb = _noun(nouns, 'zone', 'DNS zones and their pools')
    verb('list', 'resources:zones', 'list zones that have a pool', True)
    schedule = verb('schedule', 'scheduling:zone', 'select a pool', True)
    schedule.add_argument('--request', metavar='FILE', help='a zone document')
    schedule.add_argument('--name', help='of the zone, with the final dot')
    schedule.add_argument('--attribute', action='append', metavar='KEY=VALUE')
    schedule.add_argument(
        '--role',
        action='append',
        default=[],
        help='role of the caller, for the policy (default: admin)',
    )
    _schedule_options(schedule)


def _scheduling(nouns: Any) -> None:
    select = nouns.add_parser('select', help='select and claim hosts')
    select.set_defaults(run='scheduling:select')
    select.add_argument(
        '--request',
        metavar='FILE',
        required=True,
        help='a request document; - for standard input',
    )
    select.add_argument(
        '--host',
        help='select nothing; print the verdict of every filter on this host',
    )
    _form(select)
    _schedule_options(select)
    release = nouns.add_parser('release', help='release claims')
    release.set_defaults(run='scheduling:release')
    release.add_argument('instance', nargs='+', help='instance uuid')
    _local(release)
    ping = nouns.add_parser('ping', help='print the state of a daemon')
    ping.set_defaults(run='scheduling:ping')
    _form(ping)


def _schedule_options(parser: Any) -> None:
    parser.add_argument(
        '--dry-run', action='store_true', help='claim and store nothing'
    )
    parser.add_argument(
        '--explain', action='store_true', help='print the reasons'
    )
    _local(parser)


def _local(parser: Any) -> None:
    parser.add_argument(
        '--local',
        action='store_true',
        help='schedule in this process on the database, without a daemon',
    )


def _decisions(nouns: Any) -> None:
    verb = _noun(nouns, 'decision', 'past decisions with their reasons')
    listed = verb(
        'list', 'resources:decisions', 'list the newest decisions', True
    )
    listed.add_argument('--limit', type=int, default=20)
    shown = verb(
        'show', 'resources:show_decision', 'print one with reasons', True
    )
    shown.add_argument('request_id')


def _claims(nouns: Any) -> None:
    verb = _noun(nouns, 'claim', 'what instances have allocated')
    listed = verb('list', 'claims:listing', 'list the newest claims', True)
    listed.add_argument('--host', help='only those on this service host')
    listed.add_argument('--state', choices=('claimed', 'confirmed', 'moving'))
    listed.add_argument(
        '--limit', type=int, default=100, help='0: all (default: 100)'
    )
    shown = verb(
        'show', 'claims:show', 'print the claims of one instance', True
    )
    shown.add_argument('instance', help='instance uuid')
    for word, run, what in (
        ('release', 'claims:release', 'release claims'),
        (
            'confirm',
            'claims:confirm',
            'confirm claims; a move ends on the new host',
        ),
        (
            'drop-move',
            'claims:drop_move',
            'release second claims; a move is cancelled',
        ),
    ):
        verb(word, run, what).add_argument('instance', nargs='+')
    audit = nouns.add_parser('audit', help='compare use with allocations')
    audit.set_defaults(run='claims:audit')
    audit.add_argument(
        '--fix', action='store_true', help='fix what can be fixed'
    )
    _form(audit)


def _messages(nouns: Any) -> None:
    verb = _noun(nouns, 'message', 'quarantined messages')
    verb('list', 'messages:listing', 'list quarantined messages', True)
    shown = verb('show', 'messages:show', 'print one in full', True)
    shown.add_argument('message_id')
    for word, run, what in (
        ('retry', 'messages:retry', 'send one again'),
        ('drop', 'messages:drop', 'remove one'),
    ):
        verb(word, run, what).add_argument('message_id')


def _policy(nouns: Any) -> None:
    verb = _noun(nouns, 'policy', 'rules of who may do what')
    check = verb(
        'check', 'policy:check', 'check the policy file; print its effect',
        True,
    )  # fmt: skip
    check.add_argument(
        '--role',
        action='append',
        default=[],
        help='only print what a caller with this role may do; may be given '
        'several times',
    )
    check.add_argument('--user', help='the id of this caller')
    check.add_argument('--project', help='the project of this caller')
    check.add_argument(
        '--owner', help='the project that owns what the caller acts on'
    )
