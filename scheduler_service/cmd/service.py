"""``scheduler-service``: starts the daemon, on the main thread."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Sequence
from typing import Any


def main(argv: Sequence[str] | None = None) -> int:
    """Run the daemon; a signal to stop ends the process with status 0.

    :return: exit status 1, if it cannot start
    """
    # Until there is an answer to them, which they would end the process for.
    for number in (signal.SIGHUP, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    # Imports leave no garbage; looking for it takes a tenth of their time.
    gc.disable()
    # Chooses the backend of oslo.service, before anything else is imported.
    from scheduler_service import rpc  # noqa: F401, I001
    from scheduler_service import conf as options
    from scheduler_service import errors
    from scheduler_service.cmd import log_levels, process
    from scheduler_service.conf import effective
    from scheduler_service.rpc import transport

    gc.freeze()
    gc.enable()

    def read() -> Any:
        conf = options.new_config()
        transport.prepare(conf)
        words = sys.argv[1:] if argv is None else argv
        return options.parse(conf, words, prog='scheduler-service')

    try:
        conf = read()
        log_levels.set_up(conf)
        found = effective.faults(conf)
        if found:
            raise errors.ConfigurationError('; '.join(found))
        process.run(conf, read)
    except options.FAULTS as fault:
        print(f'scheduler-service: {fault}', file=sys.stderr)
        return 1
    except errors.ConfigurationError as fault:
        print(f'scheduler-service: {fault.name}: {fault}', file=sys.stderr)
        return 1


if __name__ == '__main__':
    sys.exit(main())
