"""Daemons that are killed while they reserve addresses, and give them back.

Each round kills a daemon at another point of a call to the address service, or
of a release, in another mood of the service. Then another daemon starts, and
the caller gets its answer.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.store import schema
from scheduler_service.store.connection import Store
from tests.rigs.address_service import PHASES, AddressService, Key
from tests.support.documents import CONTEXT, SMALL
from tests.support.processes import Process
from tests.support.waiting import LIMIT_S, wait_until

STAGE = 'tests.packages.thirdparty.src.thirdparty.stages.AddressStage'
MOODS = ('well', 'slow', 'twice', 'down')
POINTS = [*itertools.product(('PUT', 'DELETE'), PHASES)]
# Longer than a call that a killed daemon left may take to be carried out, and
# the pause before the next look at it.


def config(topic: str, url: str) -> str:
    """Return the lines of a configuration with the stage."""
    return (
        f'[scheduler]\ntopic = {topic}\n'
        f'stages = {STAGE} after=claim\n'
        f'[filter_scheduler]\nplugin_options = address_url:{url}\n'
    )


def claimed(store: Store) -> set[Key]:
    """Return the host and the instance of each claim."""
    placed = schema.instances.c
    with store.reading() as conn:
        found = conn.execute(sa.select(placed.host, placed.uuid))
        return {(host, instance) for host, instance in found}


class Kills:
    """Rounds of a kill each; what is wrong is in ``wrong``.

    :param start: starts a daemon
    :param client: calls the daemons
    """

    def __init__(
        self,
        service: AddressService,
        store: Store,
        start: Callable[[], Process],
        client: Any,
        seed: int = 1,
    ) -> None:
        self._service, self._store = service, store
        self._start, self._client = start, client
        self._rng = random.Random(seed)
        self._daemon = start()
        self._kill_at: tuple[str, str] | None = None
        self._killed = threading.Event()
        self.kills = self.answers = self.failures = 0
        self.held: set[Key] = set()
        self.wrong: list[str] = []
        service.on_phase = self._on_phase

    def _on_phase(self, method: str, phase: str) -> None:
        if (method, phase) == self._kill_at:
            self._kill_at = None
            if phase == 'answered':
                time.sleep(self._rng.random() * 0.02)
            self._daemon.popen.kill()
            self._killed.set()

    def run(self, rounds: int) -> None:
        """Kill a daemon in each round; then compare addresses and claims."""
        with ThreadPoolExecutor(1) as caller:
            for number in range(rounds):
                point = POINTS[number % len(POINTS)]
                mood = MOODS[(number // len(POINTS) + number) % len(MOODS)]
                with self._in_mood(mood):
                    self._round(caller, *point)
        # As if the longest pause after a daemon died at an undo had passed.
        due = sa.update(schema.stage_records).values(look_at=0.0)
        self._store.write(lambda writer: writer.conn.execute(due))
        wait_until(self._agrees, pause_s=0.2)

    @contextlib.contextmanager
    def _in_mood(self, mood: str) -> Iterator[None]:
        service = self._service
        service.slow_s = 0.4 if mood == 'slow' else 0.0
        service.twice = mood == 'twice'
        service.is_down = mood == 'down'
        try:
            yield
        finally:
            service.slow_s, service.twice, service.is_down = 0.0, False, False

    def _round(
        self, caller: ThreadPoolExecutor, method: str, phase: str
    ) -> None:
        if self._service.is_down:
            # It closes the connection: a call is never carried out.
            phase = 'came'
        if method == 'DELETE':
            self._place(caller, None)
            self._release(caller, (method, phase))
        else:
            self._place(caller, (method, phase))
            if self._rng.random() < 0.5:
                self._release(caller, None)

    def _place(
        self, caller: ThreadPoolExecutor, point: tuple[str, str] | None
    ) -> None:
        """Place instances; their addresses have to be there by then."""
        down = self._service.is_down
        self._service.is_down = down and point is not None
        self._kill_at = point
        vms = [str(uuid.uuid4()) for _ in range(self._rng.choice((1, 2)))]
        request = {
            'instance_uuids': vms, 'num_instances': len(vms), 'flavor': SMALL,
        }  # fmt: skip
        asked = caller.submit(
            self._client.select_destinations, CONTEXT, request
        )
        if point is not None:
            self._restart(asked)
        self._service.is_down = False
        try:
            answer = asked.result(LIMIT_S)
        except errors.SchedulerError:
            self.failures += 1
            return
        finally:
            self._service.is_down = down
        self.answers += 1
        made = {
            (each['selected']['host'], each['instance_uuid'])
            for each in answer['placements']
        }
        missing = made - self._service.addresses.keys()
        if missing:
            self.wrong.append(f'answered without an address: {missing}')
        self.held |= made

    def _release(
        self, caller: ThreadPoolExecutor, point: tuple[str, str] | None
    ) -> None:
        given_back = sorted(self.held)[: 2 if len(self.held) < 8 else 6]
        self.held -= {*given_back}
        vms = [vm for _, vm in given_back]
        if vms:
            self._kill_at = point
            done = caller.submit(self._client.release, CONTEXT, vms)
            if point is not None:
                self._restart(done)
            done.result(LIMIT_S)

    def _restart(self, call: Future[Any]) -> None:
        """Start another daemon once this one is killed."""
        if not self._killed.wait(LIMIT_S):
            self.wrong.append(f'not killed at {self._kill_at}: {call}')
            self._kill_at = None
            return
        self._killed.clear()
        self.kills += 1
        self._daemon.popen.wait()
        self._service.is_down = False
        self._daemon = self._start()

    def _agrees(self) -> bool:
        """Whether each claim has an address, and no other is there."""
        return self._service.addresses.keys() == claimed(self._store)
