"""``scheduler-manage``: the operator's commands.

Every command is a function of (arguments, configuration) in a module of
``commands``, imported when it is run. All of it runs on the main thread.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Sequence
from typing import Any

from scheduler_service import errors
from scheduler_service.cmd import parser

_MODULES = {
    'database': 'scheduler_service.cmd.commands.database',
    'inventory': 'scheduler_service.cmd.commands.inventory',
    'resources': 'scheduler_service.cmd.commands.resources',
    'scheduling': 'scheduler_service.cmd.commands.scheduling',
    'claims': 'scheduler_service.cmd.commands.claims',
    'messages': 'scheduler_service.cmd.commands.messages',
    'policy': 'scheduler_service.cmd.commands.policy',
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status: 0, or 1 if it failed."""
    words = sys.argv[1:] if argv is None else list(argv)
    args = parser.build().parse_args(words)
    try:
        _check_encoding(words)
        return run(args)
    except errors.SchedulerError as error:
        print(f'{error.name}: {error.args[0]}', file=sys.stderr)
        return 1
    except BrokenPipeError:
        return 1
    except KeyboardInterrupt:
        return 130


def _check_encoding(words: Sequence[str]) -> None:
    """Check that every argument is text in the locale's encoding.

    :raises InvalidRequest: with the argument that is not
    """
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise errors.InvalidRequest(
                f'{word!a}: not text in the encoding of the locale'
            ) from None


def run(args: Any) -> int:
    """Run the command that was parsed.

    :raises SchedulerError: it failed
    """
    module, _, name = args.run.partition(':')
    command = getattr(importlib.import_module(_MODULES[module]), name)
    status = command(args, _configuration(args))
    return int(status or 0)


def _configuration(args: Any) -> Any:
    """Return the options of the files given on the command line.

    :raises ConfigurationError: a file is missing, or an option is invalid
    """
    from scheduler_service import conf as options
    from scheduler_service import rpc  # noqa: F401 - before oslo.messaging
    from scheduler_service.rpc import transport

    logging.basicConfig(level=logging.WARNING, format='%(message)s')
    conf = options.new_config()
    transport.prepare(conf)
    given = [f'--config-file={path}' for path in args.config_file]
    given += [f'--config-dir={path}' for path in args.config_dir]
    try:
        return options.parse(conf, given, prog='scheduler-manage')
    except options.FAULTS as fault:
        raise errors.ConfigurationError(str(fault)) from None


if __name__ == '__main__':
    sys.exit(main())
