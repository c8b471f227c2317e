"""A daemon that is measured, and the requests that it is sent.

Each daemon has a database and a topic of its own, so that several can be up
at once and be called in turns.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import pathlib
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks import common
from benchmarks.mixes import MixedRequest
from benchmarks.rpc import CONTEXT, Caller
from scheduler_service import errors
from tests.support.paths import PROGRAMS

BATCH = 64
# Instances that stay placed between measurements, for each daemon; older
# ones are released, so that the hosts do not fill up.
KEPT_INSTANCES = 5000
_RELEASED_AT_ONCE = 500


class WrongOutcome(Exception):
    """A request was not decided as it had to be."""


class RequestStream:
    """The requests of a mix in their order, over and over; thread-safe."""

    def __init__(self, requests: Sequence[MixedRequest]) -> None:
        self._requests = requests
        self._next = 0
        self._lock = threading.Lock()

    def take(self, count: int) -> list[MixedRequest]:
        """Return the next requests."""
        with self._lock:
            first = self._next
            self._next += count
        length = len(self._requests)
        return [self._requests[(first + at) % length] for at in range(count)]


@dataclasses.dataclass(frozen=True)
class DaemonSpec:
    """What to start.

    :ivar name: of the daemon in the figures
    :ivar database: URL of its store, filled already
    :ivar programs: folder of the program that is run
    :ivar config: text to add to its configuration file
    """

    name: str
    database: str
    programs: pathlib.Path = PROGRAMS
    config: str = ''

    @property
    def topic(self) -> str:
        """The topic that it has for itself."""
        return f'scheduler_{self.name}'

    @contextlib.contextmanager
    def started(self, bus: str) -> Iterator[subprocess.Popen[str]]:
        """Run such a daemon until the block ends, once it is ready."""
        with tempfile.TemporaryDirectory() as folder:
            config = common.write_config(
                pathlib.Path(folder), self.database, bus, topic=self.topic
            )
            with config.open('a') as more:
                more.write(self.config)
            with common.daemon(config, self.programs) as process:
                yield process


class MeasuredDaemon:
    """A running daemon, its caller, and what it placed.

    :ivar decisions: how many requests of the mix were decided and claimed
    :ivar refused: how many of them no host was found for
    :ivar first_answer_s: from the start of the process to its first answer
    """

    def __init__(
        self,
        name: str,
        process: subprocess.Popen[str],
        caller: Caller,
        requests: Sequence[MixedRequest],
    ) -> None:
        self.name = name
        self.caller = caller
        self.first_answer_s = 0.0
        self.decisions = 0
        self.refused = 0
        self._process = process
        self._requests = RequestStream(requests)
        self._instances: collections.deque[str] = collections.deque()
        self._lock = threading.Lock()

    def memory_mb(self) -> float:
        """Return the resident memory of the process."""
        return common.memory_mb(self._process.pid)

    def signal(self, number: int) -> None:
        """Send the process a signal."""
        self._process.send_signal(number)

    def cpu_seconds(self) -> float:
        """Return the processor time that the process has used."""
        return common.cpu_seconds(self._process.pid)

    def next_request(self) -> dict[str, Any]:
        """Return the next document of the mix, for a call elsewhere."""
        return self._requests.take(1)[0].document

    def batch(self) -> None:
        """Have one message of the mix decided and claimed."""
        requests = self._requests.take(BATCH)
        answers = self.caller.client.schedule_many(
            CONTEXT,
            [
                {'select_destinations': request.document}
                for request in requests
            ],
        )
        assert len(answers) == len(requests)
        for request, answer in zip(requests, answers, strict=True):
            error = answer.get('error')
            if error and error['name'] != 'NoValidHost':
                raise WrongOutcome(f'{error}: {request.document}')
            self._decided(request, answer.get('result'), error)

    def same_batch(self) -> None:
        """Have one message of a single request, repeated, decided."""
        entry = {'select_destinations': common.request()}
        answers = self.caller.client.schedule_many(CONTEXT, [entry] * BATCH)
        for answer in answers:
            if 'error' in answer:
                raise WrongOutcome(f'{answer["error"]}: {entry}')
            self._placed(answer['result'])

    def claimed(self) -> None:
        """Have one request of the mix decided and claimed."""
        request = self._requests.take(1)[0]
        self._decided(request, *self._select(request, claim=True))

    def claimed_once(self) -> list[str]:
        """Have one request claimed; return its instances, which stay."""
        request = self._requests.take(1)[0]
        answer, error = self._select(request, claim=True)
        self._count(request, answer, error)
        return sorted(_instances(answer))

    def release(self, uuids: Sequence[str]) -> None:
        """Have instances released, which have to hold claims."""
        released = self.caller.client.release(CONTEXT, list(uuids))
        if released != uuids:
            raise WrongOutcome(f'{released} released, not {uuids}')

    def lifecycle(self) -> None:
        """Have one request claimed, then confirmed, then released."""
        uuids = self.claimed_once()
        if not uuids:
            return
        confirmed = self.caller.client.confirm(CONTEXT, uuids)
        if confirmed != uuids:
            raise WrongOutcome(f'{confirmed} confirmed, not {uuids}')
        self.release(uuids)

    def chosen(self) -> None:
        """Have one request of the mix decided, not claimed."""
        request = self._requests.take(1)[0]
        _check(request, *self._select(request, claim=False))

    def release_old(self, kept: int = KEPT_INSTANCES) -> None:
        """Release all but the last *kept* instances that were placed."""
        while len(self._instances) > kept:
            count = min(len(self._instances) - kept, _RELEASED_AT_ONCE)
            uuids = [self._instances.popleft() for _ in range(count)]
            released = self.caller.client.release(CONTEXT, uuids)
            assert len(released) == count, (len(released), count)

    def _select(
        self, request: MixedRequest, claim: bool
    ) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """Return the answer, or the refusal as a batch has it."""
        try:
            answer = self.caller.client.select_destinations(
                CONTEXT, request.document, claim=claim
            )
        except errors.NoValidHost as error:
            return None, {'name': 'NoValidHost', 'message': str(error)}
        return answer, None

    def _decided(
        self,
        request: MixedRequest,
        answer: dict[str, Any] | None,
        error: dict[str, Any] | None,
    ) -> None:
        self._count(request, answer, error)
        if answer is not None:
            self._placed(answer)

    def _count(
        self,
        request: MixedRequest,
        answer: dict[str, Any] | None,
        error: dict[str, Any] | None,
    ) -> None:
        _check(request, answer, error)
        with self._lock:
            self.decisions += 1
            self.refused += error is not None

    def _placed(self, answer: dict[str, Any]) -> None:
        with self._lock:
            self._instances.extend(_instances(answer))


def _instances(answer: dict[str, Any] | None) -> list[str]:
    """Return the instances that an answer places; of a refusal none."""
    placements = answer['placements'] if answer else ()
    return [placement['instance_uuid'] for placement in placements]


def _check(
    request: MixedRequest,
    answer: dict[str, Any] | None,
    error: dict[str, Any] | None,
) -> None:
    """Check that work was done, and that it came out as it had to.

    :raises WrongOutcome: refused though there are hosts, or the reverse, or
        not as many instances placed as were asked for
    """
    outcome = 'placed' if error is None else 'refused'
    if request.outcome != outcome:
        raise WrongOutcome(
            f'{outcome} instead of {request.outcome}: {error or answer}: '
            f'{request.document}'
        )
    if answer is not None:
        requested = request.document.get('num_instances', 1)
        if len(answer['placements']) != requested:
            raise WrongOutcome(f'expected {requested} placements: {answer}')


@contextlib.contextmanager
def running(
    spec: DaemonSpec, bus: str, requests: Sequence[MixedRequest]
) -> Iterator[MeasuredDaemon]:
    """Run a daemon until the block ends, once it has answered a request."""
    caller = Caller(bus, spec.topic)
    start = time.perf_counter()
    with contextlib.closing(caller), spec.started(bus) as process:
        made = MeasuredDaemon(spec.name, process, caller, requests)
        caller.claimed()
        made.first_answer_s = time.perf_counter() - start
        yield made
