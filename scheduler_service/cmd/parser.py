"""The commands of ``scheduler-manage``, each a class of cliff, in one table.

Imports nothing heavy, so that ``--help`` is quick.
"""

from __future__ import annotations

import argparse
import functools
import io
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from cliff import command, lister

from scheduler_service import errors, moments, texts
from scheduler_service.cmd.program import release

# Adds an argument to a parser.
Part = Callable[[Any], Any]
_DIGITS = re.compile(r'[0-9]{1,9}')
_UNKNOWN_WORD = re.compile(
    r"invalid choice: '(.*?)' \(choose from (.*)\)$", re.S
)
_UNKNOWN_OPTION = re.compile(r'unrecognized arguments:.*? (--?[\w-]+)', re.S)


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


def number_from(least: int) -> Callable[[str], int]:
    """Return a type of arguments: whole numbers from *least* on."""

    def number(text: str) -> int:
        if _DIGITS.fullmatch(text) is None or int(text) < least:
            raise argparse.ArgumentTypeError(
                f'{text[:80]}: not a number from {least} to 999999999'
            )
        return int(text)

    return number


def refuse(
    parser: argparse.ArgumentParser, options: Iterable[str], message: str
) -> NoReturn:
    """Print an error with a similar word for an unknown one; end with 2.

    :param options: that may be meant beside the parser's
    """
    if match := _UNKNOWN_WORD.search(message):
        message += texts.nearest(match[1], re.findall(r'[\w-]+', match[2]))
    elif match := _UNKNOWN_OPTION.search(message):
        known = {*parser._option_string_actions, *options}
        message += texts.nearest(match[1], sorted(known))
    parser.print_usage(sys.stderr)
    parser.exit(2, texts.printable(f'{parser.prog}: error: {message}') + '\n')


class Command(command.Command):
    """A command whose work is a function of (arguments, configuration).

    :ivar words: what is typed
    :ivar work: module of ``cmd.commands`` and function, imported when it runs
    :ivar status: exit status of a command that prints what it returns
    :ivar changes: whether it changes something, by its arguments
    """

    words = ''
    work = ''
    arguments: tuple[Part, ...] = ()
    status = 0
    changes: Callable[[argparse.Namespace], bool] = staticmethod(
        lambda args: False
    )
    app: Any

    def get_epilog(self) -> str:
        return ''

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser; it names what an unknown word may mean."""
        parser = super().get_parser(prog_name)
        for add in self.arguments:
            add(parser)
        others = self.app.parser._option_string_actions
        parser.error = functools.partial(  # type: ignore[method-assign]
            refuse, parser, others
        )
        return parser

    def take_action(self, args: argparse.Namespace) -> Any:
        return self.app.work(self.work, args, self.changes(args))


class Lister(Command, lister.Lister):
    """A command that prints rows; its work returns a ``Listing``."""

    limit = 0
    # By all columns, also those that are not printed.
    need_sort_by_cliff = False

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--limit', type=number_from(0), default=self.limit, metavar='N',
            help='largest number of rows, the first after sorting; 0: all '
            f'(default: {self.limit})',
        )  # fmt: skip
        parser.set_defaults(print_empty=True, quote_mode='minimal')
        known = parser._option_string_actions
        known['--quote'].help = 'when to include quotes (default: minimal)'
        known['--sort-column'].help = 'by this column; the first counts most'
        return parser

    def take_action(self, args: argparse.Namespace) -> Any:
        from scheduler_service.cmd import output

        listing = super().take_action(args)
        self.status = listing.status
        columns, rows, self._remark = output.arranged(listing, args)
        return columns, rows

    def produce_output(
        self, args: argparse.Namespace, columns: Any, rows: Any
    ) -> int:
        """Print rows; of what a terminal obeys, JSON has only DEL by now."""
        text = io.StringIO()
        # Names of SQL are a kind of text that YAML cannot write.
        names = [*map(str, columns)]
        self.formatter.emit_list(names, rows, text, args)
        print(text.getvalue().replace('\x7f', r'\u007f'), end='')
        return 0

    def run(self, args: argparse.Namespace) -> int:
        """Print the rows, and on standard error how many were left out."""
        super().run(args)
        if self._remark:
            sys.stdout.flush()
            print(self._remark, file=sys.stderr)
        return self.status


SHELLS = ('bash', 'zsh', 'fish')
_POLICIES = (
    'affinity', 'anti-affinity', 'soft-affinity', 'soft-anti-affinity',
)  # fmt: skip
_OUTCOMES = ('chosen', 'ordered', 'passed', 'refused', *errors.names())
_UUID = re.compile(r'[0-9a-fA-F]{8}(-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}')


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


def _one_of(*parts: Part) -> Part:
    """Return arguments of which exactly one has to be given."""

    def add(parser: Any) -> None:
        group = parser.add_mutually_exclusive_group(required=True)
        for part in parts:
            part(group)

    return add


def _flag(name: str, text: str, **how: Any) -> Part:
    return argument(name, text, action='store_true', **how)


def _several(name: str, text: str, **how: Any) -> Part:
    text += '; may be given several times'
    return argument(name, text, action='append', default=[], **how)


def _format(default: str, *more: str) -> Part:
    return argument(
        '-f --format', f'how to print it (default: {default})',
        choices=('table', 'json', 'yaml', *more), default=default,
    )  # fmt: skip


_TIME_HELP = (
    'a date or time (UTC) such as 2026-11-01 or 2026-11-01T12:00, or an age '
    'such as 30d, 12h or 90m'
)
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
_SINCE = argument(
    '--since', f'only since this time: {_TIME_HELP} (default: 24h)',
    type=_past, metavar='TIME', default='24h',
)  # fmt: skip
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


def _made(
    base: Any, words: str, work: str, text: str, *arguments: Part, **more: Any
) -> type[Command]:
    """Return the class of a command.

    :param words: a noun and a verb, or one word
    :param work: module of ``cmd.commands`` and function
    :param text: help
    """
    values = {'words': words, 'work': work, 'arguments': arguments, **more}
    name = words.title().replace(' ', '').replace('-', '')
    return type(name, (base,), {'__doc__': text, **values})


_do = functools.partial(_made, Command)
_list = functools.partial(_made, Lister)
_always = staticmethod(lambda args: True)
_set = functools.partial(_do, changes=_always)
_ALL = (
    _set('db sync', 'database:sync', 'create or upgrade the tables'),
    _do('db version', 'database:show_version',
        'print the version of the tables'),
    _do('db check', 'database:check',
        'compare the tables with this release'),
    _set('db purge', 'database:purge', 'delete old records',
        _flag('--decisions', 'delete decisions with their reasons, and their '
              'numbers', required=True),
        argument('--before', f'delete those made before this: {_TIME_HELP}',
                 type=_past, required=True, metavar='TIME'),
        argument('--batch', 'how many to delete in a transaction (default: '
                 '1000)',
                 type=number_from(1), default=1000, metavar='N')),
    _list('inventory import', 'inventory:import_inventory',
        'import a document',
        _one_of(
            argument('file', _FILE_HELP, nargs='?'),
            argument('--from-nodes', 'nodes of a cluster, as kubectl get '
                     'nodes -o json prints them; - for standard input',
                     metavar='FILE'),
            argument('--from-kubeconfig', 'nodes of the cluster whose API '
                     'server this file names', metavar='FILE'),
        ),
        _ALLOW_MISSING_HOSTS,
        _REPLACE, changes=_always),
    _do('inventory check', 'inventory:check', 'check a document by itself',
        _FILE, _ALLOW_MISSING_HOSTS),
    _list('inventory diff', 'inventory:diff',
        'print what an import would change',
        _FILE, _ALLOW_MISSING_HOSTS, _REPLACE),
    _do('inventory export', 'inventory:export',
        'print everything as a document', _YAML,
        argument('--output', 'write it to this file, as a whole or not '
                 'at all', metavar='FILE')),
    _list('inventory show', 'inventory:show',
        'print how many hosts, pools and so on there are'),
    _list('pool list', 'resources:pools', 'list pools'),
    _set('pool create', 'resources:create_pool', 'add a pool',
        argument('name', 'its name'),
        argument('--id', 'a UUID; random if absent', type=_uuid),
        _several('--attribute', 'attribute of the pool', type=pair,
                 metavar='KEY=VALUE')),
    _set('pool set', 'resources:set_pool', 'set or remove attributes',
        _POOL, _POOL_ATTRIBUTES),
    _set('pool delete', 'resources:delete_pool', 'remove a pool', _POOL),
    _list('host list', 'resources:hosts', 'list hosts',
        argument('--zone', 'only hosts of this zone'),
        argument('--aggregate', 'only hosts of this aggregate, by its id or '
                 'name'),
        argument('--state', 'only hosts that report, or do not',
                 choices=('up', 'down')),
        argument('--status', 'only hosts that may be selected, or may not',
                 choices=('enabled', 'disabled')),
        argument('--name', 'only hosts with such a name; * stands for any '
                 'text', metavar='PATTERN')),
    _list('host drain', 'capacity:drain',
        'print where the instances of a host could go', _HOST,
        _flag('--plan', 'only print it: nothing is claimed or moved',
              required=True)),
    _do('host show', 'resources:show_host', 'print a host', _HOST, _YAML),
    _set('host enable', 'resources:enable_host', 'enable a host', _HOST),
    _set('host disable', 'resources:disable_host', 'disable a host', _HOST,
        argument('--reason', 'shown by host list')),
    _set('host remove', 'resources:remove_host',
        'remove a host, also from its aggregates', _HOST),
    _list('aggregate list', 'resources:aggregates', 'list aggregates'),
    _set('aggregate create', 'resources:create_aggregate', 'add an aggregate',
        argument('name', 'its name'),
        argument('--zone', 'its availability zone'),
        _several('--property', 'metadata of the aggregate', type=pair,
                 metavar='KEY=VALUE')),
    _set('aggregate set', 'resources:set_aggregate', 'set or remove metadata',
        _AGGREGATE,
        argument('property', 'metadata to set, or without a value to remove',
                 type=pair, nargs='+', metavar='KEY=VALUE|KEY=')),
    _set('aggregate add-host', 'resources:add_to_aggregate', 'add hosts',
        _AGGREGATE, _HOSTS),
    _set('aggregate remove-host', 'resources:remove_from_aggregate',
        'remove hosts', _AGGREGATE, _HOSTS),
    _set('aggregate delete', 'resources:delete_aggregate',
        'remove an aggregate', _AGGREGATE),
    _list('server-group list', 'resources:groups', 'list server groups'),
    _set('server-group create', 'resources:create_group', 'add a server group',
        argument('name', 'its name'),
        argument('--policy', 'affinity: its instances go to one host; '
                 'anti-affinity: to different hosts; soft: if possible '
                 '(default: anti-affinity)',
                 choices=_POLICIES, default='anti-affinity'),
        argument('--uuid', 'a UUID; random if absent', type=_uuid),
        argument('--project', 'the project whose instances may join; default: '
                 'all'),
        argument('--max-server-per-host', 'members per host, with the policy '
                 'anti-affinity', type=number_from(1)),
        _several('--member', 'uuid of an instance', type=_uuid)),
    _set('server-group delete', 'resources:delete_group',
        'remove a server group', argument('uuid', 'of the group')),
    _list('capacity', 'capacity:capacity',
        'how full the zones are, and what fits where',
        argument('--zone', 'only this availability zone'),
        _several('--flavor', 'print how many more instances of this flavor '
                 'fit: a file with a flavor or a request, or for example '
                 'vcpus=2,memory_mb=4096,root_gb=20',
                 metavar='FILE|KEY=VALUE,...'),
        argument('--flavors', 'the same for each flavor of a list',
                 metavar='FILE'),
        argument('--by', 'with flavors: count by zone, aggregate or host '
                 '(default: zone)', choices=('zone', 'aggregate', 'host'),
                 default='zone')),
    _do('replay', 'replay:replay',
        'decide again what was asked, by two configurations',
        argument('--config', 'a configuration file, B; given once more, A '
                 '(default: the one that is in force)',
                 action='append', required=True, metavar='FILE'),
        argument('--since', f'what was asked since this time: {_TIME_HELP} '
                 '(default: 24h)', type=_past, metavar='TIME'),
        argument('--until', 'until this time (default: now)', type=_past,
                 metavar='TIME'),
        argument('--trace', 'what this file has, on the hosts as they are: '
                 'CSV, or JSON in lines, with arrival, departure and request',
                 metavar='FILE'),
        argument('--steps', 'only each request, on the hosts that its daemon '
                 'had', action='append_const', const='steps', dest='parts'),
        argument('--onward', 'only what the hosts would have become',
                 action='append_const', const='onward', dest='parts'),
        argument('--seed', 'of what is drawn (default: 0)',
                 type=number_from(0), default=0, metavar='N'),
        _format('table', 'csv')),
    _do('shadow', 'records:shadow_report',
        "compare a shadow's decisions with what another scheduler took",
        argument('--since', f'what was asked since this time: {_TIME_HELP} '
                 '(default: 7d)', type=_past, metavar='TIME', default='7d'),
        _TABLE),
    _list('zone list', 'resources:zones', 'list zones that have a pool'),
    _do('zone schedule', 'scheduling:zone', 'select a pool',
        argument('--request', 'a zone document', metavar='FILE'),
        argument('--name', 'of the zone, with the final dot'),
        _several('--attribute', 'attribute of the zone', type=pair,
                 metavar='KEY=VALUE'),
        argument('--role', 'role of the caller, for the policy (default: '
                 'admin)', action='append', default=[]),
        *_SCHEDULE, changes=staticmethod(lambda args: not args.dry_run)),
    _do('select', 'scheduling:select', 'select and claim hosts',
        argument('--request', 'a request document; - for standard input',
                 metavar='FILE', required=True),
        argument('--host', 'select nothing; print the result of every filter '
                 'on this host'),
        *_SCHEDULE,
        changes=staticmethod(lambda args: not (args.dry_run or args.host))),
    _set('release', 'scheduling:release', 'release claims', _INSTANCES,
        _LOCAL),
    _do('ping', 'scheduling:ping', 'print the state of a daemon', _TABLE,
        argument('daemon', 'its name; default: any', nargs='?')),
    _do('top', 'scheduling:top',
        'print what the daemons do, again and again',
        argument('--count', 'how often to show it', metavar='N',
                 type=number_from(1))),
    _list('decision list', 'decision_list:listing',
        'list the newest decisions',
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
        argument('--user', 'only decisions for the caller with this id'),
        argument('--host', 'only decisions that chose this service host'),
        argument('--pod', 'only decisions on this pod; in the namespace '
                 'default where none is named', type=_pod,
                 metavar='[NAMESPACE/]NAME'),
        argument('--instance', 'only decisions on this instance', type=_uuid,
                 metavar='UUID'),
        argument('--request', 'only decisions on this request: its id, that '
                 "in its caller's log, or the global one; or on the pods of "
                 'a scheduling group, as NAMESPACE/NAME', metavar='ID'),
        argument('--by', 'print numbers of decisions, by these columns',
                 metavar='NAME[,NAME...]'),
        _flag('--follow', 'go on, and print new decisions as they are made'),
        limit=20),
    _do('decision show', 'records:decision_show',
        'print the decisions on a request with their reasons',
        argument('request_id', 'of the request, the uuid of an instance, '
                 'or NAMESPACE/NAME of a pod or its group'), _TABLE),
    _list('history host', 'history:of_host',
        'list what was claimed, released, reported and changed on a host',
        _HOST, _SINCE),
    _list('history instance', 'history:of_instance',
        'list what happened to an instance', _INSTANCE, _SINCE),
    _list('history daemons', 'history:of_daemons',
        'list starts, stops, reloads and outages, and commands', _SINCE),
    _list('rates', 'records:rates_listing',
        'list how much each daemon decided in each minute, for a week',
        _SINCE),
    _do('why', 'why:why',
        'print why a request was decided as it was, and what would change it',
        argument('request_id', 'of the request, or the uuid of an instance'),
        argument('--host', 'every filter and weigher on this host, beside '
                 'the best one'),
        argument('--instance', 'of the request: that this one is placed, not '
                 'the first', type=_uuid),
        argument('--attempt', 'which decision on the request, from 1 '
                 '(default: the last)', type=number_from(1)), _TABLE),
    _list('history check', 'history:check',
        'make again what daemons saw, and compare with what they recorded'),
    _list('claim list', 'records:claim_list', 'list the newest claims',
        argument('--host', 'only claims on this service host'),
        argument('--state', 'only claims in this state',
                 choices=('claimed', 'confirmed', 'moving')),
        argument('--project', 'only claims of this project'),
        argument('--older-than', 'only claims made before this time: '
                 f'{_TIME_HELP}', type=_past, metavar='TIME'), limit=100),
    _do('claim show', 'records:claim_show',
        'print the claims of an instance', _INSTANCE, _TABLE),
    _set('claim release', 'records:claim_release', 'release claims',
        _INSTANCES),
    _set('claim confirm', 'records:claim_confirm',
        'confirm claims; a move ends on the new host', _INSTANCES),
    _set('claim drop-move', 'records:claim_drop_move',
        'release second claims; a move is cancelled', _INSTANCES),
    _do('audit', 'database:audit',
        'compare use with allocations, groups with their policies',
        _flag('--fix', 'fix what can be fixed'), _TABLE,
        changes=staticmethod(lambda args: args.fix)),
    _list('message list', 'records:message_list',
        'list quarantined messages'),
    _do('message show', 'records:message_show', 'print a message in full',
        _MESSAGE, _TABLE),
    _set('message retry', 'records:message_retry', 'send a message again',
        _MESSAGE),
    _set('message drop', 'records:message_drop', 'remove a message',
        _MESSAGE),
    _list('policy check', 'configuration:check_policy',
        'check the policy file; print its effect',
        _several('--role', 'only print what a caller with this role may do'),
        argument('--user', 'the id of this caller'),
        argument('--project', 'the project of this caller'),
        argument('--owner', 'the project that owns what the caller acts on')),
    _do('completion', 'completion:run',
        'print a script that completes command lines',
        argument('shell', 'the shell to print it for', choices=SHELLS)),
    _list('daemon list', 'configuration:daemons',
        'list daemons: release, configuration, last heartbeat'),
    _do('configuration check', 'configuration:check',
        'check all that a start and a reload check',
        argument('config_file', 'a configuration file; default: as for '
                 'the daemon', nargs='*', default=argparse.SUPPRESS,
                 metavar='FILE')),
    _list('configuration show', 'configuration:show',
        'print options that are set, and where; no secrets',
        argument('--daemon', 'of the daemon of this name; default: of the '
                 'files'),
        _flag('--all', 'also options that have their default')),
    _list('configuration list', 'configuration:past',
        'list the configurations that daemons had', limit=20),
    _list('configuration log', 'configuration:log',
        'list which options of daemons changed, and when', _SINCE),
    _list('configuration diff', 'configuration:diff',
        'print where two configurations differ',
        argument('daemon', 'the name of a daemon, a fingerprint of '
                 'configuration list, or a time: the last configuration '
                 'before it'),
        _flag('--all', 'also options that daemons need not have in common, '
              'such as their names'),
        _flag('--exit-code', 'end with the status 1 if they differ'),
        argument('other', 'as the first; default: the files', nargs='?')),
)  # fmt: skip

# By its words, such as ``db sync``.
COMMANDS = {command.words: command for command in _ALL}
