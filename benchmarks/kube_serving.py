"""What the two calls for one pod cost this service, beside what does nothing.

The other side is ``benchmarks.null_extender``. Both get the same calls in
turns, so that a busy machine is as busy for both. Meanwhile this service
follows a cluster in which pods are placed all the time
(``benchmarks.pod_stream``). No decisions on pods are stored:
``benchmarks.kube`` says what these cost.
"""

from __future__ import annotations

import contextlib
import pathlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from benchmarks import common, kube_caller
from benchmarks.kube_caller import KubeCaller
from tests.support import extenders, servers

HOSTS = 1000
_WARM_UP = 100


class Side:
    """One of the extenders that are compared.

    :ivar wall: milliseconds of a pod in each turn
    :ivar cpu: milliseconds of processor time of its process, the same
    """

    def __init__(self, pid: int, caller: KubeCaller) -> None:
        self._pid = pid
        self.caller = caller
        self.wall: list[float] = []
        self.cpu: list[float] = []

    def measure(self, call: Callable[[], Any], count: int) -> None:
        """Make calls, and note what each cost on average."""
        before = process_seconds(self._pid)
        start = time.perf_counter()
        for _ in range(count):
            call()
        self.wall.append((time.perf_counter() - start) * 1000 / count)
        used = process_seconds(self._pid) - before
        self.cpu.append(used * 1000 / count)


def process_seconds(pid: int) -> float:
    """Return the processor time that a process has used, to a nanosecond."""
    # The clock of another process, as clock_getcpuclockid(3) makes it.
    return time.clock_gettime((~pid << 3) | 2)


@contextlib.contextmanager
def sides(
    folder: pathlib.Path, certs: extenders.Certificates, placements: int
) -> Iterator[dict[str, Side]]:
    """Run us, the same over TLS, and an extender that does nothing.

    :param placements: pods that are placed in a second
    """
    context = kube_caller.tls_context(certs.ca)
    with contextlib.ExitStack() as stack:
        follow = ''
        if placements:
            api = servers.free_port()
            stack.enter_context(
                common.process(
                    'benchmarks.pod_stream',
                    str(api),
                    str(placements),
                    ready='Ready:',
                )
            )
            follow = (
                '[kubernetes]\nenabled = true\nrecord_decisions = false\n'
                f'[extender]\napi_server = http://127.0.0.1:{api}\n'
            )
        made = {}
        for name, tls in (('ours', False), ('ours over TLS', True)):
            place = folder / name.replace(' ', '-')
            place.mkdir()
            port = servers.free_port()
            more = f'{follow}[http]\nbind_port = {port}\n'
            if tls:
                cert, key = certs.server
                more += f'cert_file = {cert}\nkey_file = {key}\n'
            running = stack.enter_context(_daemon(place, more))
            caller = KubeCaller(port, '/extender', context if tls else None)
            made[name] = Side(running.pid, caller)
        port = servers.free_port()
        null = stack.enter_context(
            common.process(
                'benchmarks.null_extender', str(port), ready='Ready:'
            )
        )
        made['null'] = Side(null.pid, KubeCaller(port, '/ext'))
        yield made


@contextlib.contextmanager
def _daemon(place: pathlib.Path, more: str) -> Iterator[Any]:
    config = common.write_config(
        place, f'sqlite:///{place}/a.sqlite', 'inproc://'
    )
    with config.open('a') as file:
        file.write(more)
    common.import_inventory(config, common.inventory(HOSTS))
    with common.daemon(config) as running:
        yield running


def by_names(made: dict[str, Side], turns: int, pods: int) -> dict[str, Any]:
    """Return what a pod costs where names are sent."""
    names = [common.host_name(number) for number in range(HOSTS)]
    zones = {
        name: f'az{number % common.AGGREGATES % 3}'
        for number, name in enumerate(names)
    }
    calls = {
        name: kube_caller.windows(names, zones.__getitem__) for name in made
    }

    def place(name: str) -> None:
        made[name].caller.place(*next(calls[name]))

    for turn in range(turns + 1):
        for name, side in made.items():
            count = pods if turn else _WARM_UP
            side.measure(lambda name=name: place(name), count)
    return _figures(made)


def by_objects(made: dict[str, Side], turns: int) -> dict[str, Any]:
    """Return what a pod costs where 1,000 node objects are sent."""
    nodes = [kube_caller.node(number) for number in range(HOSTS)]
    pod = kube_caller.shapes()[0].pod(1)
    listed = msgspec.json.encode({'metadata': {}, 'items': nodes}).decode()
    text = f'{{"Pod":{pod},"Nodes":{listed},"NodeNames":null}}'.encode()

    def place(side: Side) -> None:
        side.caller.call('filter', text)
        side.caller.call('prioritize', text)

    for side in made.values():
        reply = msgspec.json.decode(side.caller.call('filter', text))
        assert len(reply['Nodes']['items']) == HOSTS, str(reply)[:300]
    for _ in range(turns + 1):
        for side in made.values():
            side.measure(lambda side=side: place(side), 3)
    return _figures(made)


def _figures(made: dict[str, Side]) -> dict[str, Any]:
    """Return medians over the turns after the first, and forget them."""
    shown: dict[str, Any] = {}
    for kind in ('cpu', 'wall'):
        turns = {name: getattr(side, kind)[1:] for name, side in made.items()}
        for name, durations in turns.items():
            shown[f'{name}, {kind} ms'] = round(
                statistics.median(durations), 3
            )
        for name, other in (('ours', 'null'), ('ours over TLS', 'ours')):
            shown[f'{name} to {other}, {kind}'] = round(
                statistics.median(
                    a / b
                    for a, b in zip(turns[name], turns[other], strict=True)
                ),
                3,
            )
    for side in made.values():
        side.wall.clear()
        side.cpu.clear()
    return shown
