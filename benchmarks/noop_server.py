"""A stock RPC server whose one method does no work: what the bus costs."""

from __future__ import annotations

import sys

from scheduler_service import conf as options
from scheduler_service import rpc  # noqa: F401 - chooses the bus's backend
from scheduler_service.cmd import adapters

import oslo_messaging  # isort: skip


class NoopEndpoint:
    """Answers every call at once with an empty document."""

    target = oslo_messaging.Target(version='1.0')

    def noop(self, ctxt: object, **args: object) -> dict[str, object]:
        """Return an empty document, whatever the arguments."""
        return {}


def main() -> None:
    from scheduler_service.rpc import transport

    conf = adapters.new_config()
    options.parse(conf, [], default_config_files=[], default_config_dirs=[])
    bus = transport.for_client(conf, sys.argv[1])
    server = oslo_messaging.get_rpc_server(
        bus,
        oslo_messaging.Target(topic='noop', server='noop'),
        [NoopEndpoint()],
    )
    server.start()
    print('Ready:', flush=True)
    server.wait()


if __name__ == '__main__':
    main()
