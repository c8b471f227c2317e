"""A stock RPC server whose one method does nothing: what the bus costs."""

from __future__ import annotations

import sys

from scheduler_service import conf as options
from scheduler_service import rpc  # noqa: F401 - chooses the bus's backend

import oslo_messaging  # isort: skip


class Nothing:
    """Does nothing."""

    target = oslo_messaging.Target(version='1.0')

    def nothing(self, ctxt: object, **args: object) -> dict[str, object]:
        """Return something as large as nothing."""
        return {}


def main() -> None:
    from scheduler_service.rpc import transport

    conf = options.new_config()
    options.parse(conf, [], default_config_files=[], default_config_dirs=[])
    bus = transport.for_client(conf, sys.argv[1])
    server = oslo_messaging.get_rpc_server(
        bus,
        oslo_messaging.Target(topic='nothing', server='nothing'),
        [Nothing()],
    )
    server.start()
    print('Ready:', flush=True)
    server.wait()


if __name__ == '__main__':
    main()
