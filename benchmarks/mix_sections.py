"""What ``benchmarks.mix`` measures of daemons that are up at once.

Each section calls the daemons in turns and keeps a figure of every turn, so
that ratios are taken between calls of the same moment.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.measured import BATCH, MeasuredDaemon
from benchmarks.rpc import CONTEXT
from benchmarks.timing import count, in_turns, rate, spread

CALLERS = 16
BATCH_CALLERS = (1, 2, 4)
# Names of figures: the batch verb on the mix, and on one request repeated.
_MIX = 'batch_64_mix'
_SAME = 'batch_64_same_request'
# A figure of each turn, by what was measured.
Samples = dict[Any, list[float]]


@dataclasses.dataclass(frozen=True)
class Effort:
    """How long to measure.

    :ivar turns: how often each daemon has its turn
    :ivar seconds: length of a turn
    :ivar most: requests of a turn at most, so that hosts do not fill up
    :ivar calls: of each kind, for the times of one caller
    :ivar memory: requests to look at memory after
    """

    turns: int
    seconds: float
    most: int
    calls: int
    memory: int


class Measurement:
    """The sections of one run, and their figures.

    :param daemons: this commit's first; the others are compared with it
    :param reference: with whose rate for one request over and over the rates
        of the mix are compared

    :ivar figures: by daemon, and of the empty call as ``noop``
    :ivar ratios: between daemons, and to the empty call
    """

    def __init__(
        self,
        daemons: Sequence[MeasuredDaemon],
        reference: MeasuredDaemon,
        effort: Effort,
    ) -> None:
        self.daemons = daemons
        self.reference = reference
        self.effort = effort
        self.figures: dict[str, dict[str, Any]] = defaultdict(dict)
        self.ratios: dict[str, Any] = {}
        for daemon in daemons:
            self.figures[daemon.name] = {
                'start_to_first_answer_s': round(daemon.first_answer_s, 2),
                'memory_mb': {'at_start': round(daemon.memory_mb(), 1)},
            }
            # The first requests of a daemon prepare its statements.
            daemon.batch()
            daemon.batch()

    def batch(self) -> None:
        """Measure the batch verb: the mix, and one request over and over."""
        rates, cpu = self._batch_samples()
        for (name, verb, callers), some in rates.items():
            self.figures[name].setdefault(f'{verb}_a_second', {})[callers] = (
                spread(some, 0)
            )
        for (name, verb), some in cpu.items():
            self.figures[name][f'{verb}_daemon_cpu_ms_a_decision'] = spread(
                some, 3
            )
        first, other = self.daemons[0].name, self.reference.name
        for name, verb, callers in rates:
            some = rates[name, verb, callers]
            if any(name == daemon.name for daemon in self.daemons[1:]):
                of_first = rates[first, verb, callers]
                self._compare(f'{verb}, {callers}', name, some, of_first)
            if verb == _MIX:
                self.ratios[
                    f'mix of {name} to one request of {other}, {callers}'
                ] = ratio(some, rates[other, _SAME, callers])
        for daemon in self.daemons:
            self.ratios[
                f'cpu of one request of {other} to mix of {daemon.name}'
            ] = ratio(cpu[other, _SAME], cpu[daemon.name, _MIX])

    def callers(self) -> None:
        """Measure 16 callers that have claims made, and the empty call."""
        self._callers('16 callers', lambda daemon: daemon.claimed)

    def lifecycle(self) -> None:
        """Measure 16 callers that claim, confirm and release.

        A lifecycle is three calls.
        """
        self._callers('16 callers, lifecycle', lambda daemon: daemon.lifecycle)

    def _callers(
        self, what: str, call_of: Callable[[MeasuredDaemon], Any]
    ) -> None:
        """Measure 16 callers that make the same calls, and the empty call."""
        rates: dict[str, list[float]] = defaultdict(list)
        effort = self.effort
        first = self.daemons[0]
        for _ in range(effort.turns):
            empty = rate(
                lambda: first.caller.noop(first.next_request()),
                CALLERS,
                effort.seconds,
            )
            rates['noop'].append(empty)
            for daemon in self.daemons:
                done = count(
                    call_of(daemon), CALLERS, effort.seconds, effort.most
                )
                rates[daemon.name].append(done.rate)
                daemon.release_old()
        for name, some in rates.items():
            self.figures[name][f'{what}, a second'] = spread(some, 0)
            if name != 'noop':
                self.ratios[f'{what}, {name} to empty call'] = ratio(
                    some, rates['noop']
                )
        for daemon in self.daemons[1:]:
            self._compare(
                what, daemon.name, rates[daemon.name], rates[first.name]
            )

    def single(self) -> None:
        """Measure the times of one caller's calls."""
        first = self.daemons[0]
        calls = {'noop': lambda: first.caller.noop(first.next_request())}
        for daemon in self.daemons:
            calls[f'{daemon.name} claimed'] = daemon.claimed
            calls[f'{daemon.name} chosen'] = daemon.chosen
        in_turns(calls, max(20, self.effort.calls // 10))
        p50: dict[str, list[float]] = defaultdict(list)
        for _ in range(self.effort.turns):
            some_calls = -(-self.effort.calls // self.effort.turns)
            for name, times in in_turns(calls, some_calls).items():
                p50[name].append(statistics.median(times))
        for name, some in p50.items():
            daemon_name, _, kind = name.partition(' ')
            verb = f'p50_ms_{kind}' if kind else 'p50_ms'
            self.figures[daemon_name][verb] = spread(some)
            if kind:
                self.ratios[f'p50 {kind}, {daemon_name} to empty call'] = (
                    ratio(some, p50['noop'])
                )
        for daemon in self.daemons:
            daemon.release_old()

    def ping(self) -> None:
        """Measure the daemon's processor time for a call without work."""
        cpu: Samples = defaultdict(list)
        for _ in range(self.effort.turns):
            for callers in (1, CALLERS):
                for daemon in self.daemons:
                    client = daemon.caller.client
                    before = daemon.cpu_seconds()
                    done = count(
                        lambda client=client: client.ping(CONTEXT),
                        callers,
                        self.effort.seconds,
                    )
                    used = daemon.cpu_seconds() - before
                    cpu[daemon.name, callers].append(used * 1e6 / done.calls)
        for (name, callers), some in cpu.items():
            figure = f'ping_daemon_cpu_us, {callers} callers'
            self.figures[name][figure] = spread(some, 0)
            if name != self.daemons[0].name:
                first = cpu[self.daemons[0].name, callers]
                self._compare(f'cpu of a ping, {callers}', name, some, first)

    def memory(self) -> None:
        """Look at each daemon's memory while it decides many requests.

        Instances are released on the way, so that those that stay do not
        count. Memory is flat where the second half of the requests adds
        less than 3 percent.
        """
        total = self.effort.memory
        for daemon in self.daemons:
            memory = self.figures[daemon.name]['memory_mb']
            memory['before'] = round(daemon.memory_mb(), 1)
            for quarter in range(1, 5):
                for _ in range(max(1, total // 4 // BATCH)):
                    daemon.batch()
                    daemon.release_old()
                key = f'after_{total * quarter // 4}'
                memory[key] = round(daemon.memory_mb(), 1)
            grown = memory[f'after_{total}'] / memory[f'after_{total // 2}']
            memory['grown_percent'] = round((grown - 1) * 100, 1)
            memory['flat'] = grown < 1.03

    def result(self) -> dict[str, Any]:
        """Return all figures and ratios, and how much work was done."""
        for daemon in self.daemons:
            self.figures[daemon.name]['decisions'] = daemon.decisions
            self.figures[daemon.name]['refused'] = daemon.refused
        return {'daemons': dict(self.figures), 'ratios': self.ratios}

    def _batch_samples(self) -> tuple[Samples, Samples]:
        """Return decisions a second, and the daemon's time for each.

        The daemon's processor time says the same where other programs use
        the machine, too.

        :return: by daemon, verb and number of callers; and in milliseconds
            by daemon and verb
        """
        rates: Samples = defaultdict(list)
        cpu: Samples = defaultdict(list)
        every = [(daemon, _MIX) for daemon in self.daemons]
        every += [(daemon, _SAME) for daemon in self.daemons]
        if self.reference not in self.daemons:
            every.append((self.reference, _SAME))
        effort = self.effort
        for _ in range(effort.turns):
            for callers in BATCH_CALLERS:
                for daemon, verb in every:
                    call = daemon.batch if verb == _MIX else daemon.same_batch
                    before = daemon.cpu_seconds()
                    done = count(
                        call, callers, effort.seconds, effort.most // BATCH
                    )
                    used = daemon.cpu_seconds() - before
                    cpu[daemon.name, verb].append(
                        used * 1000 / done.calls / BATCH
                    )
                    key = daemon.name, verb, f'{callers} callers'
                    rates[key].append(done.rate * BATCH)
                    daemon.release_old()
        return rates, cpu

    def _compare(
        self,
        what: str,
        name: str,
        values: Sequence[float],
        of_first: Sequence[float],
    ) -> None:
        """Keep the ratio of this commit to an earlier one, or of a variant.

        An earlier commit is the divisor; a variant of this one is divided.
        """
        first = self.daemons[0].name
        if name == 'base':
            self.ratios[f'{what}: {first} to base'] = ratio(of_first, values)
        else:
            self.ratios[f'{what}: {name} to {first}'] = ratio(values, of_first)


def ratio(
    values: Sequence[float], others: Sequence[float]
) -> dict[str, float]:
    """Return the ratio in each turn: the median, the least and the most."""
    pairs = zip(values, others, strict=True)
    return spread([own / other for own, other in pairs])
