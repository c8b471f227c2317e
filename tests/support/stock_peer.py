"""A client or a server of oslo.messaging as a program, with its own release.

``stock_peer.py RELEASE call|serve URL TOPIC`` prints JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from oslo_config import cfg
from oslo_service import backend

from tests.support.documents import CONTEXT, SMALL

backend.init_backend(backend.BackendType.THREADING)
import oslo_messaging  # noqa: E402

_ERRORS = ['scheduler_service.errors']


def call(url: str, topic: str) -> dict[str, Any]:
    """Call a daemon in several ways; return what came back."""
    conf = cfg.CONF
    conf([])

    def client(modules: Any, query: str = '', **how: Any) -> Any:
        bus = oslo_messaging.get_rpc_transport(
            conf, url=url + query, allowed_remote_exmods=modules
        )
        target = oslo_messaging.Target(
            exchange='openstack', topic=topic, version='1.0'
        )
        made = oslo_messaging.get_rpc_client(bus, target, timeout=60)
        return made.prepare(**how) if how else made

    def select(caller: Any) -> Any:
        request = {'flavor': SMALL}
        return caller.call(
            CONTEXT, 'select_destinations', request=request, claim=False
        )

    caller = client(_ERRORS)
    found = {
        'ping': caller.call(CONTEXT, 'ping'),
        'selected': select(caller),
        'packed': select(client(_ERRORS, '?kombu_compression=gzip')),
        'with heartbeats': client(_ERRORS, call_monitor_timeout=2).call(
            CONTEXT, 'ping'
        ),
    }
    try:
        caller.call(CONTEXT, 'ping', nonsense=1)
    except Exception as error:
        found['error'] = type(error).__name__.removesuffix('_Remote')
        found['facts'] = error.facts
    try:
        client([]).call(CONTEXT, 'ping', nonsense=1)
    except oslo_messaging.RemoteError as error:
        found['remote'] = type(error).__name__
    return found


class Receiver:
    """Prints the casts that it gets."""

    def scheduler_answer(self, ctxt: Any, **reply: Any) -> None:
        """Print a cast."""
        print(json.dumps(reply), flush=True)


def serve(url: str, topic: str) -> None:
    """Print casts until the process ends."""
    conf = cfg.CONF
    conf([])
    server = oslo_messaging.get_rpc_server(
        oslo_messaging.get_rpc_transport(conf, url=url),
        oslo_messaging.Target(topic=topic, server='s'),
        [Receiver()],
    )
    server.start()
    print('ready', flush=True)
    server.wait()


if __name__ == '__main__':
    release, what, url, topic = sys.argv[1:]
    assert release in oslo_messaging.__file__, oslo_messaging.__file__
    if what == 'call':
        print(json.dumps(call(url, topic)))
    else:
        serve(url, topic)
