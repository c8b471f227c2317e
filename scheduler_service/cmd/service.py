"""``scheduler-service``: starts the daemon, on the main thread."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Sequence
from typing import Any

from scheduler_service.cmd import program

_PROGRAM = 'scheduler-service'


@program.entry_point(failed=1)
def main(argv: Sequence[str] | None = None) -> int:
    """Run the daemon; a signal to stop ends the process with status 0.

    :return: exit status 1, if the daemon cannot start
    """
    # Ignored until they have handlers: they would end the process.
    for number in (signal.SIGHUP, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    words = sys.argv[1:] if argv is None else list(argv)
    if any(word.startswith('--shell_completion') for word in words):
        from scheduler_service.cmd.commands import completion

        return completion.answer(_PROGRAM, words, _parser)
    # An interrupt ends the process until it has a handler: as an exception it
    # may come where a library that is imported ignores exceptions.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Imports leave no garbage; collecting it takes a tenth of their time.
    gc.disable()
    # Chooses the backend of oslo.service, before anything else is imported.
    from scheduler_service import rpc  # noqa: F401, I001
    from scheduler_service import conf as options
    from scheduler_service.cmd import adapters
    from scheduler_service import errors
    from scheduler_service.cmd import process

    gc.freeze()
    gc.enable()

    def read() -> Any:
        return _parse(adapters.new_config(), words)

    try:
        process.run(read)
    except (OSError, errors.ConfigurationError) as fault:
        line = program.error_line(fault)
    except options.FAULTS as fault:
        line = program.error_line(errors.ConfigurationError(str(fault)))
    print(f'{_PROGRAM}: {line}', file=sys.stderr)
    return 1


def _parse(conf: Any, words: Sequence[str], **how: Any) -> Any:
    from scheduler_service import conf as options

    return options.parse(
        conf, words, prog=_PROGRAM, version=program.release(_PROGRAM), **how
    )


def _parser() -> Any:
    from scheduler_service.cmd import adapters

    conf = adapters.new_config()
    _parse(conf, [], default_config_files=[], default_config_dirs=[])
    return conf._oparser


if __name__ == '__main__':
    sys.exit(main())
