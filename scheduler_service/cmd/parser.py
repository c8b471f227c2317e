"""The command line of ``scheduler-manage``: nouns, verbs and arguments."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any


def build() -> argparse.ArgumentParser:
    """Return the parser; ``run`` of what it parses names the command."""
    parser = argparse.ArgumentParser(
        prog='scheduler-manage',
        description='Look after the scheduler and ask it things.',
    )
    parser.add_argument(
        '--config-file',
        action='append',
        default=[],
        metavar='PATH',
        help='configuration file; may be given several times',
    )
    parser.add_argument('--config-dir', action='append', default=[])
    nouns = parser.add_subparsers(dest='noun', required=True, metavar='NOUN')
    for add in (
        _database,
        _inventory,
        _pools,
        _hosts,
        _aggregates,
        _groups,
        _zones,
        _asking,
        _decisions,
        _claims,
        _messages,
    ):
        add(nouns)
    return parser


def _noun(nouns: Any, name: str, text: str) -> Callable[..., Any]:
    """Add a noun; return what adds its verbs."""
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
    verb('version', 'database:version', 'print the version of the tables')
    verb('check', 'database:check', 'compare the tables with this release')


def _inventory(nouns: Any) -> None:
    verb = _noun(nouns, 'inventory', 'everything that can be chosen')
    bring = verb('import', 'inventory:bring', 'bring in a document', True)
    bring.add_argument('file', help='YAML or JSON; - for standard input')
    bring.add_argument(
        '--replace', action='store_true', help='remove what is not named'
    )
    export = verb('export', 'inventory:export', 'print all as a document')
    _form(export, 'yaml')
    verb('show', 'inventory:show', 'count what there is', True)


def _pools(nouns: Any) -> None:
    verb = _noun(nouns, 'pool', 'DNS pools')
    verb('list', 'things:pools', 'list pools', True)
    create = verb('create', 'things:create_pool', 'add a pool')
    create.add_argument('name')
    create.add_argument('--id', help='a UUID; made up if absent')
    create.add_argument('--attribute', action='append', metavar='KEY=VALUE')
    change = verb('set', 'things:set_pool', 'set or remove attributes')
    change.add_argument('pool', help='id or name')
    change.add_argument('attribute', nargs='+', metavar='KEY=VALUE|KEY=')
    verb('delete', 'things:delete_pool', 'remove a pool').add_argument(
        'pool', help='id or name'
    )


def _hosts(nouns: Any) -> None:
    verb = _noun(nouns, 'host', 'compute hosts')
    verb('list', 'things:hosts', 'list hosts', True)
    show = verb('show', 'things:show_host', 'print all about a host')
    show.add_argument('host')
    _form(show, 'yaml')
    verb('enable', 'things:enable_host', 'let it be chosen').add_argument(
        'host'
    )
    disable = verb('disable', 'things:disable_host', 'keep it from choice')
    disable.add_argument('host')
    disable.add_argument('--reason')
    verb('remove', 'things:remove_host', 'forget a host').add_argument('host')


def _aggregates(nouns: Any) -> None:
    verb = _noun(nouns, 'aggregate', 'sets of hosts, and zones')
    verb('list', 'things:aggregates', 'list aggregates', True)
    create = verb('create', 'things:create_aggregate', 'add an aggregate')
    create.add_argument('name')
    create.add_argument('--zone', help='its availability zone')
    create.add_argument('--property', action='append', metavar='KEY=VALUE')
    change = verb('set', 'things:set_aggregate', 'set or remove metadata')
    change.add_argument('aggregate', help='id or name')
    change.add_argument('property', nargs='+', metavar='KEY=VALUE|KEY=')
    for word, run, what in (
        ('add-host', 'things:add_host', 'put hosts in'),
        ('remove-host', 'things:drop_host', 'take hosts out'),
    ):
        hosts = verb(word, run, what)
        hosts.add_argument('aggregate', help='id or name')
        hosts.add_argument('host', nargs='+')
    verb('delete', 'things:delete_aggregate', 'remove it').add_argument(
        'aggregate', help='id or name'
    )


def _groups(nouns: Any) -> None:
    verb = _noun(nouns, 'server-group', 'instances together or apart')
    verb('list', 'things:groups', 'list server groups', True)
    create = verb('create', 'things:create_group', 'add a server group')
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
    create.add_argument('--uuid', help='made up if absent')
    create.add_argument('--max-server-per-host', type=int)
    create.add_argument('--member', action='append', default=[])
    verb('delete', 'things:delete_group', 'remove it').add_argument('uuid')


def _zones(nouns: Any) -> None:
    verb = _noun(nouns, 'zone', 'DNS zones and their pools')
    verb('list', 'things:zones', 'list zones that have a pool', True)
    ask = verb('schedule', 'ask:zone', 'have a pool chosen', True)
    ask.add_argument('--request', metavar='FILE', help='a zone document')
    ask.add_argument('--name')
    ask.add_argument('--attribute', action='append', metavar='KEY=VALUE')
    ask.add_argument('--role', action='append', default=[])
    _asked(ask)


def _asking(nouns: Any) -> None:
    select = nouns.add_parser('select', help='have hosts chosen and claimed')
    select.set_defaults(run='ask:select')
    select.add_argument('--request', metavar='FILE', required=True)
    select.add_argument(
        '--host', help='with --explain: what every filter makes of this host'
    )
    _form(select)
    _asked(select)
    release = nouns.add_parser('release', help='give back claims')
    release.set_defaults(run='ask:release')
    release.add_argument('instance', nargs='+', help='instance uuid')
    _local(release)
    ping = nouns.add_parser('ping', help='ask a daemon how it is')
    ping.set_defaults(run='ask:ping')
    _form(ping)


def _asked(parser: Any) -> None:
    parser.add_argument(
        '--dry-run', action='store_true', help='claim and keep nothing'
    )
    parser.add_argument(
        '--explain', action='store_true', help='show the reasons'
    )
    _local(parser)


def _local(parser: Any) -> None:
    parser.add_argument(
        '--local',
        action='store_true',
        help='decide here on the store, not through a daemon',
    )


def _decisions(nouns: Any) -> None:
    verb = _noun(nouns, 'decision', 'what was decided, and why')
    listed = verb('list', 'things:decisions', 'newest decisions', True)
    listed.add_argument('--limit', type=int, default=20)
    shown = verb('show', 'things:show_decision', 'one with its reasons', True)
    shown.add_argument('request_id')


def _claims(nouns: Any) -> None:
    verb = _noun(nouns, 'claim', 'what was promised to whom')
    listed = verb('list', 'claims:listing', 'newest claims', True)
    listed.add_argument('--host', help='on this service host')
    listed.add_argument('--state', choices=('claimed', 'confirmed', 'moving'))
    listed.add_argument(
        '--limit', type=int, default=100, help='0: all (default: 100)'
    )
    shown = verb('show', 'claims:show', 'all about one', True)
    shown.add_argument('instance', help='instance uuid')
    for word, run, what in (
        ('release', 'claims:release', 'give back'),
        ('confirm', 'claims:confirm', 'confirm, and end a move where it goes'),
        ('drop-move', 'claims:drop_move', 'end a move where it started'),
    ):
        verb(word, run, what).add_argument('instance', nargs='+')
    audit = nouns.add_parser('audit', help='hold use against allocations')
    audit.set_defaults(run='claims:audit')
    audit.add_argument('--fix', action='store_true', help='mend what can be')
    _form(audit)


def _messages(nouns: Any) -> None:
    verb = _noun(nouns, 'message', 'messages that were put aside')
    verb('list', 'messages:listing', 'list them', True)
    shown = verb('show', 'messages:show', 'one, whole', True)
    shown.add_argument('message_id')
    for word, run, what in (
        ('retry', 'messages:retry', 'send it again'),
        ('drop', 'messages:drop', 'forget it'),
    ):
        verb(word, run, what).add_argument('message_id')
