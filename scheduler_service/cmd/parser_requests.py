"""The command line of requests, and of what became of them.

Imports nothing heavy, so that ``--help`` is quick.
"""

from __future__ import annotations

from typing import Any

from scheduler_service import errors
from scheduler_service.cmd.parser_parts import (
    command,
    form,
    list_options,
    noun,
    pair,
    seconds,
)

OUTCOMES = ('chosen', 'ordered', 'refused', *errors.names())


def scheduling(nouns: Any) -> None:
    """Add ``select``, ``release`` and ``ping``."""
    select = command(nouns, 'select', 'select and claim hosts')
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
    form(select)
    _schedule_options(select)
    release = command(nouns, 'release', 'release claims')
    release.set_defaults(run='scheduling:release')
    release.add_argument(
        'instance', nargs='+', help='its uuid; one or several'
    )
    _local(release)
    ping = command(nouns, 'ping', 'print the state of a daemon')
    ping.set_defaults(run='scheduling:ping')
    form(ping)


def zones(nouns: Any) -> None:
    """Add ``zone``."""
    verb = noun(nouns, 'zone', 'DNS zones and their pools')
    verb('list', 'resources:zones', 'list zones that have a pool', True)
    schedule = verb('schedule', 'scheduling:zone', 'select a pool')
    schedule.add_argument('--request', metavar='FILE', help='a zone document')
    schedule.add_argument('--name', help='of the zone, with the final dot')
    schedule.add_argument(
        '--attribute',
        type=pair,
        action='append',
        metavar='KEY=VALUE',
        help='attribute of the zone; may be given several times',
    )
    schedule.add_argument(
        '--role',
        action='append',
        default=[],
        help='role of the caller, for the policy (default: admin)',
    )
    form(schedule)
    _schedule_options(schedule)


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


def decisions(nouns: Any) -> None:
    """Add ``decision``."""
    verb = noun(nouns, 'decision', 'past decisions with their reasons')
    listed = verb('list', 'decisions:listing', 'list the newest decisions')
    list_options(listed, 20)
    listed.add_argument(
        '--since',
        type=seconds,
        metavar='TIME',
        help='only those of this time until now, such as 30m, 6h or 2d',
    )
    listed.add_argument(
        '--outcome',
        choices=OUTCOMES,
        metavar='NAME',
        help='only those with this one: chosen, ordered, the name of an '
        'error, or refused for any of them',
    )
    listed.add_argument(
        '--filter', help='only refusals where this filter left no host'
    )
    listed.add_argument('--project', help='only those of this project')
    listed.add_argument(
        '--host', help='only those that chose this service host'
    )
    shown = verb('show', 'decisions:show', 'print one with reasons')
    shown.add_argument('request_id', help='of the request')
    form(shown)


def claims(nouns: Any) -> None:
    """Add ``claim`` and ``audit``."""
    verb = noun(nouns, 'claim', 'what instances have allocated')
    listed = verb('list', 'claims:listing', 'list the newest claims')
    list_options(listed, 100)
    listed.add_argument('--host', help='only those on this service host')
    listed.add_argument(
        '--state',
        choices=('claimed', 'confirmed', 'moving'),
        help='only those in this state',
    )
    listed.add_argument('--project', help='only those of this project')
    listed.add_argument(
        '--older-than',
        type=seconds,
        metavar='TIME',
        help='only those made longer ago, such as 30m, 6h or 2d',
    )
    shown = verb('show', 'claims:show', 'print the claims of one instance')
    shown.add_argument('instance', help='its uuid')
    form(shown)
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
        verb(word, run, what).add_argument(
            'instance', nargs='+', help='its uuid; one or several'
        )
    audit = command(nouns, 'audit', 'compare use with allocations')
    audit.set_defaults(run='claims:audit')
    audit.add_argument(
        '--fix', action='store_true', help='fix what can be fixed'
    )
    form(audit)
