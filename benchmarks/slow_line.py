"""A proxy that stalls at times, in a process of its own.

``python -m benchmarks.slow_line FROM TO`` forwards connections from one port
of loopback to another one. For 2.0 to 2.6 seconds nothing travels, again and
again.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections.abc import Iterator

from sqlalchemy.engine import make_url

from benchmarks import common
from tests.support import servers

# For how long nothing travels, and for how long all does in between.
_STALL_S, _FLOW_S = (2.0, 2.6), (1.0, 3.0)


async def _forward(
    source: asyncio.StreamReader,
    sink: asyncio.StreamWriter,
    flows: asyncio.Event,
) -> None:
    """Forward in one direction until its end."""
    with contextlib.suppress(ConnectionError):
        while piece := await source.read(1 << 16):
            await flows.wait()
            sink.write(piece)
    sink.close()


async def _serve(port: int, target: int) -> None:
    flows = asyncio.Event()
    flows.set()

    async def connected(
        near: asyncio.StreamReader, near_sink: asyncio.StreamWriter
    ) -> None:
        far, far_sink = await asyncio.open_connection('127.0.0.1', target)
        await asyncio.gather(
            _forward(near, far_sink, flows), _forward(far, near_sink, flows)
        )

    await asyncio.start_server(connected, '127.0.0.1', port)
    print('Ready', flush=True)
    while True:
        await asyncio.sleep(random.uniform(*_FLOW_S))
        flows.clear()
        await asyncio.sleep(random.uniform(*_STALL_S))
        flows.set()


@contextlib.contextmanager
def through(url: str) -> Iterator[str]:
    """Yield the URL of a database behind such a line."""
    target, port = make_url(url), servers.free_port()
    ports = str(port), str(target.port)
    with common.process('benchmarks.slow_line', *ports, ready='Ready'):
        near = target.set(host='127.0.0.1', port=port)
        yield near.render_as_string(hide_password=False)


if __name__ == '__main__':
    asyncio.run(_serve(int(sys.argv[1]), int(sys.argv[2])))
