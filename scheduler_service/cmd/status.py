"""``scheduler-status upgrade check``: what would not work after an upgrade.

The command is run with the new release before its daemons are started. It
changes nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from scheduler_service.cmd import program

_PROGRAM = 'scheduler-status'


def parser() -> argparse.ArgumentParser:
    """Return a parser for completion and the manual.

    The library that runs the checks parses with its own, which accepts more.
    """
    from scheduler_service.cmd.parser import Version

    built = argparse.ArgumentParser(_PROGRAM)
    built.add_argument(
        '--config-file', metavar='PATH',
        help='configuration file; may be given several times',
    )  # fmt: skip
    built.add_argument(
        '--config-dir', metavar='DIR',
        help='folder of files; may be given several times',
    )  # fmt: skip
    built.add_argument(
        '--version', action=Version, help='print the release, and end'
    )
    nouns = built.add_subparsers(metavar='NOUN')
    upgrade = nouns.add_parser('upgrade', help='the installed release')
    check = upgrade.add_subparsers(metavar='VERB').add_parser(
        'check', help='what would not work after an upgrade'
    )
    check.add_argument('--json', action='store_true', help='print JSON')
    return built


@program.entry_point(failed=255)
def main(argv: Sequence[str] | None = None) -> int:
    """Run the checks and print their results.

    :return: exit status 0: all is well; 1: there are warnings; 2: something
        would not work; 255: the checks could not be run
    """
    words = sys.argv[1:] if argv is None else list(argv)
    if any(word.startswith('--shell_completion') for word in words):
        from scheduler_service.cmd.commands import completion

        return completion.answer(_PROGRAM, words, parser)
    if words[:1] == ['--version']:
        parser().parse_args(words)
    # Chooses the backend of oslo.service, before anything else is imported.
    from oslo_upgradecheck import upgradecheck

    from scheduler_service import conf as options
    from scheduler_service import rpc  # noqa: F401
    from scheduler_service.cmd import adapters, log_levels
    from scheduler_service.cmd.upgrade_checks import Checks
    from scheduler_service.rpc import transport

    log_levels.set_up_command()
    conf = adapters.new_config()
    transport.prepare(conf)
    try:
        checks = Checks(conf)
        return int(upgradecheck.main(conf, options.PROJECT, checks, words))
    except options.FAULTS as fault:
        print(f'{_PROGRAM}: {fault}', file=sys.stderr)
        return 255


if __name__ == '__main__':
    sys.exit(main())
