"""A proxy that delays what it forwards, in a process of its own.

``python -m benchmarks.slow_line FROM TO MILLISECONDS`` forwards connections
from one port of loopback to another one. A round trip takes so many
milliseconds longer, however much travels at a time. With ``stalls`` after
these nothing travels for 2.0 to 2.6 seconds, again and again.
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
    seconds: float,
    flows: asyncio.Event,
) -> None:
    """Forward in one direction, each piece after so many seconds."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def receive() -> None:
        data = b'x'
        while data:
            with contextlib.suppress(ConnectionError):
                data = await source.read(1 << 16)
            await waiting.put((loop.time() + seconds, data))

    receiving = asyncio.create_task(receive())
    with contextlib.suppress(ConnectionError):
        while (piece := await waiting.get())[1]:
            await asyncio.sleep(piece[0] - loop.time())
            await flows.wait()
            sink.write(piece[1])
    sink.close()
    receiving.cancel()


async def _stall(flows: asyncio.Event) -> None:
    while True:
        await asyncio.sleep(random.uniform(*_FLOW_S))
        flows.clear()
        await asyncio.sleep(random.uniform(*_STALL_S))
        flows.set()


async def _serve(port: int, target: int, seconds: float, stalls: bool) -> None:
    flows = asyncio.Event()
    flows.set()

    async def connected(
        near: asyncio.StreamReader, near_sink: asyncio.StreamWriter
    ) -> None:
        far, far_sink = await asyncio.open_connection('127.0.0.1', target)
        await asyncio.gather(
            _forward(near, far_sink, seconds / 2, flows),
            _forward(far, near_sink, seconds / 2, flows),
        )

    server = await asyncio.start_server(connected, '127.0.0.1', port)
    print('Ready', flush=True)
    await asyncio.gather(
        server.serve_forever(), *([_stall(flows)] if stalls else [])
    )


@contextlib.contextmanager
def through(
    url: str, milliseconds: float, stalls: bool = False
) -> Iterator[str]:
    """Yield the URL of a database behind a slow line."""
    target, port = make_url(url), servers.free_port()
    with common.process(
        'benchmarks.slow_line',
        str(port),
        str(target.port),
        str(milliseconds),
        *(['stalls'] if stalls else []),
        ready='Ready',
    ):
        near = target.set(host='127.0.0.1', port=port)
        yield near.render_as_string(hide_password=False)


if __name__ == '__main__':
    asyncio.run(
        _serve(
            int(sys.argv[1]),
            int(sys.argv[2]),
            float(sys.argv[3]) / 1000,
            'stalls' in sys.argv[4:],
        )
    )
