"""``scheduler-status upgrade check``: what would not work after an upgrade.

Run with the new release before its daemons are started. It changes nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the checks and print what they found.

    :return: exit status 0: all is well; 1: there are warnings; 2: something
        would not work; 255: the checks could not be run
    """
    # Chooses the backend of oslo.service, before anything else is imported.
    from oslo_upgradecheck import upgradecheck

    from scheduler_service import conf as options
    from scheduler_service import rpc  # noqa: F401
    from scheduler_service.cmd.upgrade_checks import Checks
    from scheduler_service.rpc import transport

    conf = options.new_config()
    transport.prepare(conf)
    try:
        return int(
            upgradecheck.main(
                conf,
                options.PROJECT,
                Checks(conf),
                sys.argv[1:] if argv is None else list(argv),
            )
        )
    except options.FAULTS as fault:
        print(f'scheduler-status: {fault}', file=sys.stderr)
        return 255


if __name__ == '__main__':
    sys.exit(main())
