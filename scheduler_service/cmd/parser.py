"""The command line of ``scheduler-manage``: every command, in one table.

Imports nothing heavy, so that ``--help`` is quick.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from scheduler_service import errors, moments
from scheduler_service.cmd.program import release
from scheduler_service.texts import printable

SHELLS = ('bash', 'zsh', 'fish')
_FORMATS = ('table', 'json', 'yaml')
_POLICIES = (
    'affinity', 'anti-affinity', 'soft-affinity', 'soft-anti-affinity',
)  # fmt: skip
_OUTCOMES = ('chosen', 'ordered', 'passed', 'refused', *errors.names())
_UNKNOWN_WORD = re.compile(
    r"invalid choice: '(.*?)' \(choose from (.*)\)$", re.S
)
_UNKNOWN_OPTION = re.compile(r'unrecognized arguments:.*? (--?[\w-]+)', re.S)
_DIGITS = re.compile(r'[0-9]{1,9}')
_UUID = re.compile(r'[0-9a-fA-F]{8}(-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}')


class Parser(argparse.ArgumentParser):
    """A parser that suggests a similar word for an unknown word.

    :ivar commands: of the outermost parser: the parser of each command by
        its words, such as ``db sync``
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.commands: dict[str, Parser] = {}
        self._given: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, as the base class; remember the words for suggestions."""
        self._given = args or ()
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Print the error, and end the program with the status 2."""
        super().error(printable(message + self._suggestion(message)))

    def _suggestion(self, message: str) -> str:
        word, words = '', set[str]()
        if match := _UNKNOWN_WORD.search(message):
            word, words = match[1], set(re.findall(r'[\w-]+', match[2]))
        elif match := _UNKNOWN_OPTION.search(message):
            word = match[1]
            parser = self._command_of(self._given)
            words.update(parser._option_string_actions)
        near = difflib.get_close_matches(word, sorted(words), 1)
        return f'; is {near[0]} meant?' if near else ''

    def _command_of(self, given: Sequence[str]) -> Parser:
        """Return the parser of the command that words name, or this one."""
        for place, word in enumerate(given):
            for words in (' '.join(given[place : place + 2]), word):
                if words in self.commands:
                    return self.commands[words]
        return self


def _number_from(least: int) -> Callable[[str], int]:
    """Return a type of arguments: whole numbers from *least* on."""

    def number(text: str) -> int:
        if _DIGITS.fullmatch(text) is None or int(text) < least:
            raise argparse.ArgumentTypeError(
                f'{text[:80]}: not a number from {least} to 999999999'
            )
        return int(text)

    return number


def _as_type(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a type of arguments of a function that raises ValueError."""

    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as fault:
            raise argparse.ArgumentTypeError(str(fault)) from None

    return parsed


seconds = _as_type(moments.seconds)
_past = _as_type(moments.past)


def _pod(text: str) -> str:
    return text if '/' in text else f'default/{text}'


def _uuid(text: str) -> str:
    if not _UUID.fullmatch(text):
        raise argparse.ArgumentTypeError(f'{text}: not a UUID')
    return text


def pair(text: str) -> tuple[str, str]:
    """Return the key and the value of KEY=VALUE.

    :raises ArgumentTypeError: the text has no key or no equals sign
    """
    key, sign, value = text.partition('=')
    if not key or not sign:
        raise argparse.ArgumentTypeError(f'expected KEY=VALUE, got {text}')
    return key, value


# Adds an argument to a parser.
Part = Callable[[Any], Any]


class Version(argparse.Action):
    """Prints the release, which is looked up only when it is needed."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(nargs=0, **kwargs)

    def __call__(self, parser: argparse.ArgumentParser, *rest: Any) -> None:
        print(release(parser.prog))
        parser.exit()


def argument(names: str, text: str, **how: Any) -> Part:
    """Return an argument of a command, as ``add_argument`` takes it.

    :param names: of an option or a positional argument, with spaces between
    """
    return lambda parser: parser.add_argument(*names.split(), help=text, **how)


def _one_of(*parts: Part) -> Part:
    """Return arguments of which exactly one has to be given."""

    def add(parser: Any) -> None:
        group = parser.add_mutually_exclusive_group(required=True)
        for part in parts:
            part(group)

    return add


class Command:
    """A command.

    :param words: a noun and a verb, or one word
    :param run: module of ``cmd.commands`` and function
    :param text: help
    """

    def __init__(
        self, words: str, run: str, text: str, *arguments: Part
    ) -> None:
        self.noun, _, self.verb = words.partition(' ')
        self.run = run
        self.text = text
        self.arguments = arguments


def _flag(name: str, text: str, **how: Any) -> Part:
    return argument(name, text, action='store_true', **how)


def _several(name: str, text: str, **how: Any) -> Part:
    text += '; may be given several times'
    return argument(name, text, action='append', default=[], **how)


def _format(default: str, choices: tuple[str, ...] = _FORMATS) -> Part:
    text = f'how to print it (default: {default})'
    if 'csv' in choices:
        text = 'csv has a heading, value has none and spaces between the '
        text += f'columns (default: {default})'
    return argument('-f --format', text, choices=choices, default=default)


def _list(limit: int = 0) -> tuple[Part, ...]:
    return (
        _format('table', (*_FORMATS, 'csv', 'value')),
        _several('-c --columns', 'only these columns, in this order',
                 metavar='NAME[,NAME...]'),
        _several('--sort', 'by this column; the first counts most',
                 metavar='NAME[:desc]'),
        argument('--limit', 'largest number of rows, the first after sorting; '
                 f'0: all (default: {limit})', type=_number_from(0),
                 default=limit, metavar='N'),
    )  # fmt: skip


_TIME_HELP = (
    'a date or time (UTC) such as 2026-11-01 or 2026-11-01T12:00, or an age '
    'such as 30d, 12h or 90m'
)
_LIST = _list()
_TABLE = _format('table')
_YAML = _format('yaml')
_FILE_HELP = 'YAML or JSON; - for standard input'
_FILE = argument('file', _FILE_HELP)
_ALLOW_MISSING_HOSTS = _flag(
    '--allow-missing-hosts', 'aggregates may name hosts that do not exist yet'
)
_REPLACE = _flag(
    '--replace',
    'remove everything that is not in the document, except server groups that '
    'instances are members of',
)
_HOST = argument('host', 'its service host')
_HOSTS = argument('host', 'service host; one or several', nargs='+')
_POOL = argument('pool', 'id or name')
_POOL_ATTRIBUTES = argument(
    'attribute', 'attribute to set, or without a value to remove',
    type=pair, nargs='+', metavar='KEY=VALUE|KEY=',
)  # fmt: skip
_AGGREGATE = argument('aggregate', 'id or name')
_INSTANCE = argument('instance', 'its uuid')
_INSTANCES = argument('instance', 'its uuid; one or several', nargs='+')
_MESSAGE = argument('message_id', 'as message list prints it')
_LOCAL = _flag(
    '--local', 'schedule in this process on the database, without a daemon'
)
_SCHEDULE = (
    _TABLE,
    _flag('--dry-run', 'claim and store nothing'),
    _flag('--explain', 'print the reasons'),
    _LOCAL,
)

NOUNS = {
    'db': "the database's tables",
    'inventory': 'hosts, pools, aggregates and so on',
    'pool': 'DNS pools',
    'host': 'compute hosts',
    'aggregate': 'host aggregates, and availability zones',
    'server-group': 'groups of instances, together or apart',
    'zone': 'DNS zones and their pools',
    'decision': 'past decisions with their reasons',
    'claim': 'allocations of instances',
    'message': 'quarantined messages',
    'policy': 'rules for who may do what',
    'daemon': 'daemons that share the store',
    'configuration': 'values of options',
}
COMMANDS = (
    Command('db sync', 'database:sync', 'create or upgrade the tables'),
    Command('db version', 'database:show_version',
            'print the version of the tables'),
    Command('db check', 'database:check',
            'compare the tables with this release'),
    Command(
        'db purge', 'database:purge', 'delete old records',
        _flag('--decisions', 'delete decisions with their reasons',
              required=True),
        argument('--before', f'delete those made before this: {_TIME_HELP}',
                 type=_past, required=True, metavar='TIME'),
        argument('--batch', 'how many to delete in a transaction (default: '
                 '1000)',
                 type=_number_from(1), default=1000, metavar='N'),
    ),
    Command(
        'inventory import', 'inventory:import_inventory', 'import a document',
        *_LIST,
        _one_of(
            argument('file', _FILE_HELP, nargs='?'),
            argument('--from-nodes', 'nodes of a cluster, as kubectl get '
                     'nodes -o json prints them; - for standard input',
                     metavar='FILE'),
            argument('--from-kubeconfig', 'nodes of the cluster whose API '
                     'server this file names', metavar='FILE'),
        ),
        _ALLOW_MISSING_HOSTS,
        _REPLACE,
    ),
    Command('inventory check', 'inventory:check', 'check a document by itself',
            _FILE, _ALLOW_MISSING_HOSTS),
    Command('inventory diff', 'inventory:diff',
            'print what an import would change',
            *_LIST, _FILE, _ALLOW_MISSING_HOSTS, _REPLACE),
    Command('inventory export', 'inventory:export',
            'print everything as a document', _YAML,
            argument('--output', 'write it to this file, as a whole or not '
                     'at all', metavar='FILE')),
    Command('inventory show', 'inventory:show',
            'print how many hosts, pools and so on there are', *_LIST),
    Command('pool list', 'resources:pools', 'list pools', *_LIST),
    Command(
        'pool create', 'resources:create_pool', 'add a pool',
        argument('name', 'its name'),
        argument('--id', 'a UUID; random if absent', type=_uuid),
        _several('--attribute', 'attribute of the pool', type=pair,
                 metavar='KEY=VALUE'),
    ),
    Command('pool set', 'resources:set_pool', 'set or remove attributes',
            _POOL, _POOL_ATTRIBUTES),
    Command('pool delete', 'resources:delete_pool', 'remove a pool', _POOL),
    Command(
        'host list', 'resources:hosts', 'list hosts', *_LIST,
        argument('--zone', 'only hosts of this zone'),
        argument('--aggregate', 'only hosts of this aggregate, by its id or '
                 'name'),
        argument('--state', 'only hosts that report, or do not',
                 choices=('up', 'down')),
        argument('--status', 'only hosts that may be selected, or may not',
                 choices=('enabled', 'disabled')),
        argument('--name', 'only hosts with such a name; * stands for any '
                 'text', metavar='PATTERN'),
    ),
    Command('host drain', 'capacity:drain',
            'print where the instances of a host could go', *_LIST, _HOST,
            _flag('--plan', 'only print it: nothing is claimed or moved',
                  required=True)),
    Command('host show', 'resources:show_host', 'print a host', _HOST, _YAML),
    Command('host enable', 'resources:enable_host', 'enable a host', _HOST),
    Command('host disable', 'resources:disable_host', 'disable a host', _HOST,
            argument('--reason', 'shown by host list')),
    Command('host remove', 'resources:remove_host',
            'remove a host, also from its aggregates', _HOST),
    Command('aggregate list', 'resources:aggregates', 'list aggregates',
            *_LIST),
    Command(
        'aggregate create', 'resources:create_aggregate', 'add an aggregate',
        argument('name', 'its name'),
        argument('--zone', 'its availability zone'),
        _several('--property', 'metadata of the aggregate', type=pair,
                 metavar='KEY=VALUE'),
    ),
    Command(
        'aggregate set', 'resources:set_aggregate', 'set or remove metadata',
        _AGGREGATE,
        argument('property', 'metadata to set, or without a value to remove',
                 type=pair, nargs='+', metavar='KEY=VALUE|KEY='),
    ),
    Command('aggregate add-host', 'resources:add_to_aggregate', 'add hosts',
            _AGGREGATE, _HOSTS),
    Command('aggregate remove-host', 'resources:remove_from_aggregate',
            'remove hosts', _AGGREGATE, _HOSTS),
    Command('aggregate delete', 'resources:delete_aggregate',
            'remove an aggregate', _AGGREGATE),
    Command('server-group list', 'resources:groups', 'list server groups',
            *_LIST),
    Command(
        'server-group create', 'resources:create_group', 'add a server group',
        argument('name', 'its name'),
        argument('--policy', 'affinity: its instances go to one host; '
                 'anti-affinity: to different hosts; soft: if possible '
                 '(default: anti-affinity)',
                 choices=_POLICIES, default='anti-affinity'),
        argument('--uuid', 'a UUID; random if absent', type=_uuid),
        argument('--project', 'the project whose instances may join; default: '
                 'all'),
        argument('--max-server-per-host', 'members per host, with the policy '
                 'anti-affinity', type=_number_from(1)),
        _several('--member', 'uuid of an instance', type=_uuid),
    ),
    Command('server-group delete', 'resources:delete_group',
            'remove a server group', argument('uuid', 'of the group')),
    Command(
        'capacity', 'capacity:capacity',
        'how full the zones are, and what fits where', *_LIST,
        argument('--zone', 'only this availability zone'),
        argument('--flavor', 'print how many more instances of this flavor '
                 'fit: a file with a flavor or a request, or for example '
                 'vcpus=2,memory_mb=4096,root_gb=20',
                 metavar='FILE|KEY=VALUE,...'),
        argument('--by', 'with --flavor: count by zone or by host (default: '
                 'zone)', choices=('zone', 'host'), default='zone'),
    ),
    Command('zone list', 'resources:zones', 'list zones that have a pool',
            *_LIST),
    Command(
        'zone schedule', 'scheduling:zone', 'select a pool',
        argument('--request', 'a zone document', metavar='FILE'),
        argument('--name', 'of the zone, with the final dot'),
        _several('--attribute', 'attribute of the zone', type=pair,
                 metavar='KEY=VALUE'),
        argument('--role', 'role of the caller, for the policy (default: '
                 'admin)', action='append', default=[]),
        *_SCHEDULE,
    ),
    Command(
        'select', 'scheduling:select', 'select and claim hosts',
        argument('--request', 'a request document; - for standard input',
                 metavar='FILE', required=True),
        argument('--host', 'select nothing; print the result of every filter '
                 'on this host'),
        *_SCHEDULE,
    ),
    Command('release', 'scheduling:release', 'release claims', _INSTANCES,
            _LOCAL),
    Command('ping', 'scheduling:ping', 'print the state of a daemon', _TABLE,
            argument('daemon', 'its name; default: any', nargs='?')),
    Command('top', 'scheduling:top',
            'print what the daemons do, again and again',
            argument('--count', 'how often to show it', metavar='N',
                     type=_number_from(1))),
    Command(
        'decision list', 'records:decision_list', 'list the newest decisions',
        *_list(20),
        argument('--since', f'only decisions since this time: {_TIME_HELP}',
                 type=_past, metavar='TIME'),
        argument('--until', 'only decisions until this time', type=_past,
                 metavar='TIME'),
        argument('--outcome', 'only decisions with this outcome: chosen, '
                 'ordered, passed, the name of an error, or refused for any '
                 'of them',
                 choices=_OUTCOMES, metavar='NAME'),
        argument('--filter', 'only refusals where this filter left no host'),
        argument('--project', 'only decisions for this project'),
        argument('--host', 'only decisions that chose this service host'),
        argument('--pod', 'only decisions on this pod; in the namespace '
                 'default where none is named', type=_pod,
                 metavar='[NAMESPACE/]NAME'),
        argument('--instance', 'only decisions on this instance', type=_uuid,
                 metavar='UUID'),
        argument('--request', 'only decisions on this request: its id, that '
                 "in its caller's log, or the global one", metavar='ID'),
        argument('--by', 'print numbers of decisions, by these columns',
                 metavar='NAME[,NAME...]'),
        _flag('--follow', 'go on, and print new decisions as they are made'),
    ),
    Command('decision show', 'records:decision_show',
            'print the decisions on a request with their reasons',
            argument('request_id', 'of the request, the uuid of an instance, '
                     'or NAMESPACE/NAME of a pod'), _TABLE),
    Command(
        'claim list', 'records:claim_list', 'list the newest claims',
        *_list(100),
        argument('--host', 'only claims on this service host'),
        argument('--state', 'only claims in this state',
                 choices=('claimed', 'confirmed', 'moving')),
        argument('--project', 'only claims of this project'),
        argument('--older-than', 'only claims made before this time: '
                 f'{_TIME_HELP}', type=_past, metavar='TIME'),
    ),
    Command('claim show', 'records:claim_show',
            'print the claims of an instance', _INSTANCE, _TABLE),
    Command('claim release', 'records:claim_release', 'release claims',
            _INSTANCES),
    Command('claim confirm', 'records:claim_confirm',
            'confirm claims; a move ends on the new host', _INSTANCES),
    Command('claim drop-move', 'records:claim_drop_move',
            'release second claims; a move is cancelled', _INSTANCES),
    Command('audit', 'records:audit',
            'compare use with allocations, groups with their policies',
            _flag('--fix', 'fix what can be fixed'), _TABLE),
    Command('message list', 'records:message_list',
            'list quarantined messages', *_LIST),
    Command('message show', 'records:message_show', 'print a message in full',
            _MESSAGE, _TABLE),
    Command('message retry', 'records:message_retry', 'send a message again',
            _MESSAGE),
    Command('message drop', 'records:message_drop', 'remove a message',
            _MESSAGE),
    Command(
        'policy check', 'configuration:check_policy',
        'check the policy file; print its effect', *_LIST,
        _several('--role', 'only print what a caller with this role may do'),
        argument('--user', 'the id of this caller'),
        argument('--project', 'the project of this caller'),
        argument('--owner', 'the project that owns what the caller acts on'),
    ),
    Command('completion', 'completion:run',
            'print a script that completes command lines',
            argument('shell', 'the shell to print it for', choices=SHELLS)),
    Command('daemon list', 'configuration:daemons',
            'list daemons: release, configuration, last heartbeat', *_LIST),
    Command('configuration check', 'configuration:check',
            'check all that a start and a reload check',
            argument('config_file', 'a configuration file; default: as for '
                     'the daemon', nargs='*', default=argparse.SUPPRESS,
                     metavar='FILE')),
    Command(
        'configuration show', 'configuration:show',
        'print options that are set, and where; no secrets', *_LIST,
        argument('--daemon', 'of the daemon of this name; default: of the '
                 'files'),
        _flag('--all', 'also options that have their default'),
    ),
    Command('configuration list', 'configuration:past',
            'list the configurations that daemons had', *_list(20)),
    Command(
        'configuration diff', 'configuration:diff',
        'print where two configurations differ', *_LIST,
        argument('daemon', 'the name of a daemon, a fingerprint of '
                 'configuration list, or a time: the last configuration '
                 'before it'),
        _flag('--all', 'also options that daemons need not have in common, '
              'such as their names'),
        argument('other', 'as the first; default: the files', nargs='?'),
    ),
)  # fmt: skip


def build() -> Parser:
    """Return the parser.

    Parsed arguments have ``run``, as in :class:`Command`, and ``error``,
    which refuses the command line as the parser does.
    """
    parser = Parser(
        prog='scheduler-manage',
        description='Operate the scheduler: its database, hosts and claims.',
    )
    for add in (
        _several('--config-file', 'configuration file', metavar='PATH'),
        _several('--config-dir', 'folder of configuration files',
                 metavar='DIR'),
        argument('--version', 'print the release, and end',
                 action=Version),
    ):  # fmt: skip
        add(parser)
    _add_common(parser, None, False)
    nouns = parser.add_subparsers(dest='noun', required=True, metavar='NOUN')
    verbs: dict[str, Any] = {}
    for command in COMMANDS:
        if command.verb and command.noun not in verbs:
            text = NOUNS[command.noun]
            verbs[command.noun] = nouns.add_parser(
                command.noun, help=text, description=text
            ).add_subparsers(dest='verb', required=True, metavar='VERB')
        words = verbs[command.noun] if command.verb else nouns
        added = words.add_parser(
            command.verb or command.noun,
            help=command.text,
            description=command.text,
        )
        added.set_defaults(run=command.run, error=added.error)
        for add in command.arguments:
            add(added)
        _add_common(added, argparse.SUPPRESS, argparse.SUPPRESS)
        parser.commands[f'{command.noun} {command.verb}'.strip()] = added
    return parser


def _add_common(parser: Parser, timeout: Any, debug: Any) -> None:
    """Add the options that may come before and after a command's words."""
    argument(
        '--timeout', 'give up after this time, which also limits connecting '
        '(default: no limit, but 3 s to connect to the database and 10 s to '
        'the broker)',
        type=seconds, default=timeout, metavar='SECONDS',
    )(parser)  # fmt: skip
    text = 'print where in the program an error occurred'
    _flag('--debug', text, default=debug)(parser)
