"""``scheduler-manage``: the operator's commands.

Every command is a function of (arguments, configuration) in a module of
``commands``, imported when it is run. It runs on the main thread, or with
``--timeout`` on a thread that the process does not join.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import math
import sys
import traceback
from collections.abc import Sequence
from concurrent import futures
from typing import Any

from scheduler_service import errors
from scheduler_service.cmd import parser, program
from scheduler_service.cmd.program import WrongUsage

# Share of --timeout for connecting to the database.
_SHARE = 0.9
# A command reads many rows, keeps them, and ends: collecting garbage among
# them again and again would take a quarter of its time.
_OBJECTS_BETWEEN_COLLECTIONS = 200_000


@program.entry_point(failed=1)
def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status.

    :return: 0: done; 1: it failed, or found differences or errors; 2: the
        command line is wrong; 130: interrupted
    """
    if argv is None:
        gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    args = parser.build().parse_args(argv)
    try:
        return _run(args)
    except WrongUsage as fault:
        with contextlib.suppress(SystemExit):
            args.error(str(fault))
        return 2
    except Exception as fault:
        if args.debug:
            traceback.print_exc()
        if isinstance(fault, OSError):
            raise
        print(program.error_line(fault), file=sys.stderr)
        for detail in program.error_details(fault):
            print(f'  {detail}', file=sys.stderr)
        return 1


def _run(args: Any) -> int:
    name, _, function = args.run.partition(':')
    module = importlib.import_module(f'{__package__}.commands.{name}')
    command = getattr(module, function)
    conf = _configuration(args)
    if args.timeout is None:
        return command(args, conf) or 0
    # A little less than all, so that the command can name a server that does
    # not answer.
    to_connect = max(2, math.floor(args.timeout * _SHARE))
    conf.set_override('connect_timeout', to_connect, 'database')
    try:
        status = program.run_within(
            args.timeout, lambda: command(args, conf), 'command'
        )
    except futures.TimeoutError:
        from scheduler_service.cmd import connections

        raise errors.TooLate(
            f'Not done within {args.timeout:g} s (--timeout); '
            f'{connections.addresses(conf)}. A change that was sent to a '
            'server may still be made: check before you repeat it'
        ) from None
    return status or 0


def _configuration(args: Any) -> Any:
    from scheduler_service import conf as options
    from scheduler_service import rpc  # noqa: F401 - before oslo.messaging
    from scheduler_service.cmd import adapters, log_levels
    from scheduler_service.conf import effective
    from scheduler_service.rpc import transport

    log_levels.set_up_command(args.debug)
    conf = adapters.new_config()
    transport.prepare(conf)
    given = [f'--config-file={path}' for path in args.config_file]
    given += [f'--config-dir={path}' for path in args.config_dir]
    try:
        parsed = options.parse(conf, given, prog='scheduler-manage')
    except OSError as fault:
        raise errors.ConfigurationError(program.os_error_text(fault)) from None
    except options.FAULTS as fault:
        raise errors.ConfigurationError(str(fault)) from None
    effective.check(parsed)
    return parsed


if __name__ == '__main__':
    sys.exit(main())
