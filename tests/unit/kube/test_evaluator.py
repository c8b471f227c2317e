"""Nodes evaluated for pods, and how scores spread pods."""

from __future__ import annotations

import collections
import json
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_service import errors
from scheduler_service.columns import build_table
from scheduler_service.columns.build import with_aggregates
from scheduler_service.columns.table import Snapshot
from scheduler_service.engine.newest_copy import NewestCopy
from scheduler_service.kube.evaluator import (
    Nodes,
    PodEvaluator,
    PodFilterResult,
    PodPipeline,
    ScoreTexts,
)
from scheduler_service.kube.node_reader import NodeReader, SentNodes
from scheduler_service.kube.pod_load import LoadScoring, OfferedResources
from scheduler_service.kube.pod_reader import (
    PlacedPod,
    Pod,
    PodReader,
    usage_of,
)
from scheduler_service.kube.pod_use import PodUse
from scheduler_service.model import Aggregate, Host, Resource
from scheduler_service.pipeline import HostPipeline
from scheduler_service.settings import Settings
from tests.support import kube

EVEN = {'VCPU': 1.0, 'MEMORY_MB': 1.0, 'DISK_GB': 1.0}


class Cluster:
    """Nodes, and a kube-scheduler that goes by our scores alone.

    :param lag: after how many further pods it is seen where one went
    """

    def __init__(
        self,
        memory: list[int],
        lag: int = 0,
        fpgas: Sequence[int] = (),
        assume_seconds: float = 60.0,
    ) -> None:
        offers = [
            {'CUSTOM_EXAMPLE_COM_FPGA': Resource(total=total)} if total else {}
            for total in (*fpgas, *[0] * len(memory))
        ]
        hosts = [
            Host(host=f'n{at}', vcpus=64, memory_mb=size, local_gb=100,
                 ram_allocation_ratio=1.0, cpu_allocation_ratio=1.0,
                 resources=offers[at])
            for at, size in enumerate(memory)
        ]  # fmt: skip
        self.names = [host.host for host in hosts]
        table = build_table(list(enumerate(hosts)))
        self.snapshot = Snapshot(table, {}, 1)
        self.use = PodUse(assume_seconds)
        self.use.replace([])
        pipeline = HostPipeline(
            [OfferedResources()], [], Settings(), check_room=False
        )
        self.pipeline = pipeline
        self.evaluator = PodEvaluator(
            PodPipeline(pipeline, LoadScoring(EVEN)),
            NewestCopy(lambda: self.snapshot),
            self.use,
            PodReader('d'),
            SentNodes(NodeReader('d', {}, ())),
            assuming=True,
            waiting=True,
        )
        self.lag = lag
        self.waiting: collections.deque[PlacedPod] = collections.deque()
        self.went: collections.Counter[str] = collections.Counter()

    def place(self, pod: Pod, rng: random.Random) -> None:
        sent = rng.sample(self.names, len(self.names))
        passed = self.evaluator.filter(pod, Nodes(sent)).passed
        scores = scores_of(self.evaluator, pod, passed)
        most = max(scores.values())
        node = rng.choice([n for n in passed if scores[n] == most])
        self.went[node] += 1
        uid = pod.metadata.uid
        self.waiting.append(PlacedPod(uid, node, usage_of(pod, 'd')))
        while len(self.waiting) > self.lag:
            self.use.see(self.waiting.popleft())


def scores_of(
    evaluator: PodEvaluator, pod: Pod, names: list[str]
) -> dict[str, int]:
    scores = evaluator.prioritize(pod, Nodes(names))
    return dict(zip(scores.names, scores.values, strict=True))


def new_pod(number: int, memory_mb: int = 200) -> Pod:
    made = kube.pod('p', {'cpu': '10m', 'memory': f'{memory_mb}Mi'})
    made['metadata']['uid'] = f'u{number}'
    return kube.read(made)


@settings(max_examples=4, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    others=st.lists(st.sampled_from([8192, 65536, 262144]), max_size=6),
    asked=st.sampled_from([1, 50, 700]),
    lag=st.sampled_from([0, 1, 5]),
)
def test_equal_hosts_get_equal_shares_of_many_pods(seed, others, asked, lag):
    cluster = Cluster([65536, 65536, *others], lag)
    rng = random.Random(seed)
    for number in range(300):
        cluster.place(new_pod(number, asked), rng)
    first, second = cluster.went['n0'], cluster.went['n1']
    share = (first + second) / 2
    # What was not seen yet when the last pods went is not known.
    assert max(first, second) <= 1.1 * share + 1 + lag


def test_larger_hosts_get_no_more_than_their_share_of_a_burst():
    cluster = Cluster([131072] * 5 + [65536] * 195, lag=10)
    rng = random.Random(7)
    for number in range(60):
        cluster.place(new_pod(number), rng)
    assert max(cluster.went.values()) == 1


def test_node_without_any_memory_is_no_better_than_others():
    cluster = Cluster([65536, 0, 65536])
    found = scores_of(cluster.evaluator, new_pod(1), ['n1', 'n0', 'n2'])
    assert found['n1'] < found['n2'] < found['n0']


def test_negative_multiplier_fills_nodes_up():
    cluster = Cluster([65536, 65536])
    scoring = LoadScoring(dict.fromkeys(EVEN, -1.0))
    cluster.evaluator.use(PodPipeline(cluster.pipeline, scoring))
    rng = random.Random(3)
    for number in range(20):
        cluster.place(new_pod(number), rng)
    assert sorted(cluster.went.values()) == [20]


def test_larger_node_gets_more_pods_in_proportion():
    cluster = Cluster([65536, 131072])
    scoring = LoadScoring({'VCPU': 0.0, 'MEMORY_MB': 1.0})
    cluster.evaluator.use(PodPipeline(cluster.pipeline, scoring))
    rng = random.Random(3)
    for number in range(300):
        cluster.place(new_pod(number), rng)
    assert abs(cluster.went['n1'] - 200) <= 2


def test_same_nodes_are_filtered_anew_for_another_pod_or_table():
    cluster = Cluster([65536, 65536], fpgas=[1])
    plain, wanting = new_pod(1), wanting_fpga(2)
    nodes = Nodes(['n0', 'n1'])

    def passed(pod: Pod) -> list[str]:
        return cluster.evaluator.filter(pod, nodes, to_place=False).passed

    assert passed(plain) == ['n0', 'n1']
    assert passed(wanting) == ['n0']
    assert passed(plain) == ['n0', 'n1']
    cluster.snapshot = Cluster([65536, 65536], fpgas=[0, 1]).snapshot
    assert passed(wanting) == ['n1']
    assert passed(wanting) == ['n1']


@pytest.mark.parametrize('asked', [True, False])
def test_pod_is_assumed_when_it_is_filtered_and_never_scored(asked):
    cluster = Cluster([65536, 65536])
    cluster.evaluator.filter(new_pod(1), Nodes(['n0']))
    assert cluster.use.count() == (0, 0)
    if asked:
        cluster.evaluator.filter(new_pod(1), Nodes(['n0']))
        assert cluster.use.count() == (0, 0)
    cluster.evaluator.filter(new_pod(2), Nodes(cluster.names))
    assert cluster.use.count() == (0, 1)
    assert scores_of(cluster.evaluator, new_pod(3), cluster.names) == {
        'n0': 8, 'n1': 10,
    }  # fmt: skip


def test_nothing_is_guessed_before_pods_are_listed():
    cluster = Cluster([65536, 65536])
    cluster.use = PodUse(60.0)
    cluster.evaluator._use = cluster.use
    assert scores_of(cluster.evaluator, new_pod(1), cluster.names) == {
        'n0': 0, 'n1': 0,
    }  # fmt: skip
    asking = wanting_fpga(1)
    with pytest.raises(errors.ServiceBusy, match='not listed'):
        cluster.evaluator.filter(asking, Nodes(cluster.names))


def wanting_fpga(number: int, priority: int = 0) -> Pod:
    made = kube.pod('p', extended={'example.com/fpga': '1'}, priority=priority)
    made['metadata']['uid'] = f'u{number}'
    return kube.read(made)


def with_fpgas(*totals: int, assume_seconds: float = 60.0) -> Cluster:
    """Return a cluster whose nodes have these FPGAs; 0: none at all."""
    memory = [65536] * len(totals)
    return Cluster(memory, fpgas=totals, assume_seconds=assume_seconds)


@pytest.mark.parametrize('binds', [False, True])
def test_pod_that_is_only_assumed_takes_nothing_from_others(binds):
    cluster = with_fpgas(1, 0)
    evaluator, names = cluster.evaluator, cluster.names
    if binds:
        scores_of(evaluator, new_pod(8), names)
        assert evaluator.reserve('u8', 'n1')
        cluster.use.remove('u8')
    evaluator.prioritize(wanting_fpga(1), Nodes(['n0']))
    assert cluster.use.count() == (0, 1)
    assert evaluator.filter(wanting_fpga(2), Nodes(names)).passed == ['n0']
    # It counts in scores, and takes what it asks for once it is seen.
    assert scores_of(evaluator, new_pod(3), names) == {'n0': 6, 'n1': 10}
    usage = usage_of(wanting_fpga(1), 'd')
    cluster.use.see(PlacedPod('u1', 'n0', usage))
    second = evaluator.filter(wanting_fpga(2), Nodes(names))
    assert second.passed == []
    assert '1 CUSTOM_EXAMPLE_COM_FPGA requested, 0 free' in second.failed['n0']


def test_pod_is_refused_where_pods_that_are_being_bound_took_the_device():
    cluster = with_fpgas(1, 2, 0)
    evaluator, names = cluster.evaluator, cluster.names
    evaluator.prioritize(wanting_fpga(1), Nodes(['n0']))
    assert evaluator.reserve('u1', 'n0')
    second = evaluator.filter(wanting_fpga(2), Nodes(names))
    assert second.passed == ['n1']
    assert '1 CUSTOM_EXAMPLE_COM_FPGA requested, 0 free' in second.failed['n0']
    # Its own place is no obstacle.
    again = evaluator.filter(wanting_fpga(1), Nodes(names))
    assert again.passed == ['n0', 'n1']


def test_pod_is_bound_whatever_it_requests_that_others_offer():
    cluster = with_fpgas(1, 0)
    evaluator, names = cluster.evaluator, cluster.names
    gpu, fpga = 'example.com/gpu', 'example.com/fpga'
    for number in (1, 2):
        made = kube.pod('p', extended={gpu: '4', fpga: '1'})
        made['metadata']['uid'] = f'u{number}'
        pod = kube.read(made)
        assert evaluator.filter(pod, Nodes(names)).passed == ['n0']
        if number == 2:
            # As the watch has it.
            usage = usage_of(pod, 'd')
            cluster.use.nominate(PlacedPod('u2', 'n0', usage))
        assert evaluator.reserve(f'u{number}', 'n0')
        cluster.use.remove(f'u{number}')


@pytest.mark.parametrize('assume_seconds', [60.0, 0.0])
def test_one_bind_of_two_for_the_last_device_is_refused(assume_seconds):
    cluster = with_fpgas(1, 1, assume_seconds=assume_seconds)
    evaluator = cluster.evaluator
    # What is assumed of a pod, and nominated for one, refuses no bind.
    for number in (1, 2, 3):
        evaluator.prioritize(wanting_fpga(number), Nodes(['n1']))
    usage = usage_of(wanting_fpga(4), 'd')
    cluster.use.nominate(PlacedPod('u4', 'n1', usage, 9))
    assert evaluator.reserve('u2', 'n1')
    with pytest.raises(errors.Conflict, match='0 free'):
        evaluator.reserve('u1', 'n1')
    assert cluster.use.is_seen('u2')
    # What one call takes no other may bind without a claim of its own.
    with pytest.raises(errors.Conflict, match='Another call is binding'):
        evaluator.reserve('u2', 'n1')
    evaluator.end_reservation('u2', bound=False)
    assert evaluator.reserve('u1', 'n1')
    # A repeated call changes nothing, and has nothing to take back.
    evaluator.end_reservation('u1', bound=True)
    assert not evaluator.reserve('u1', 'n1')
    # Of a pod that nobody asked about nothing is known.
    assert not evaluator.reserve('u9', 'n1')


def test_bind_counts_a_pod_for_which_one_node_was_left():
    cluster = with_fpgas(1, 0)
    passed = cluster.evaluator.filter(wanting_fpga(1), Nodes(cluster.names))
    assert passed.passed == ['n0']
    assert cluster.evaluator.reserve('u1', 'n0')
    passed = cluster.evaluator.filter(wanting_fpga(2), Nodes(cluster.names))
    assert passed.passed == []
    cluster.evaluator.prioritize(wanting_fpga(2), Nodes(['n0']))
    with pytest.raises(errors.Conflict):
        cluster.evaluator.reserve('u2', 'n0')


def test_nominated_pod_keeps_the_device_that_was_freed_for_it():
    cluster = with_fpgas(1, 0)
    usage = usage_of(wanting_fpga(1), 'd')
    cluster.use.nominate(PlacedPod('u1', 'n0', usage, 10))

    def filtered(number: int, priority: int) -> PodFilterResult:
        pod = wanting_fpga(number, priority)
        return cluster.evaluator.filter(pod, Nodes(cluster.names))

    for priority in (-1, 0, 10):
        others = filtered(2, priority)
        assert others.passed == []
        assert '0 free' in others.failed['n0']
    assert filtered(1, 10).passed == ['n0']
    # A kube-scheduler would have it evict the other at once.
    assert filtered(2, 11).passed == ['n0']


NAMES = [f'node-{at}"\\\u20ac' for at in range(300)]


@pytest.mark.parametrize('names', [NAMES, [*NAMES[:-1], 'n' * 200]])
def test_replies_say_the_same_in_any_order_and_however_often_written(names):
    texts = ScoreTexts(names)
    rng = random.Random(1)
    for count in (1, 2, len(names), len(names) // 2, len(names) // 2):
        rows = rng.sample(range(len(names)), count)
        scores = [rng.randrange(11) for _ in rows]
        written = texts.write(np.array(rows), np.array(scores))
        assert json.loads(bytes(written)) == [
            {'Host': names[row], 'Score': score}
            for row, score in zip(rows, scores, strict=True)
        ]


def test_a_device_is_free_once_its_pod_is_gone_whatever_the_book_has():
    cluster = with_fpgas(1, 0)
    cluster.evaluator.booked = True
    classes = cluster.snapshot.hosts.resources
    classes['CUSTOM_EXAMPLE_COM_FPGA'].used[0] = 1
    usage = usage_of(wanting_fpga(9), 'd')
    cluster.use.see(PlacedPod('old', 'n0', usage))

    def passed() -> list[str]:
        nodes = Nodes(cluster.names)
        return cluster.evaluator.filter(wanting_fpga(1), nodes).passed

    assert passed() == []
    cluster.use.remove('old')
    assert passed() == ['n0']


def test_a_licence_is_free_everywhere_once_its_pod_is_gone():
    """Of an aggregate; also where its last node takes no pods any more."""
    cluster = with_fpgas(0, 0, 0)
    cluster.evaluator.booked = True
    licences = {'CUSTOM_EXAMPLE_COM_FPGA': Resource(total=1, used=1)}
    rack = Aggregate(id=7, hosts=['n0', 'n1'], resources=licences)
    table = with_aggregates(cluster.snapshot.hosts, [rack])
    cluster.snapshot = Snapshot(table, {}, 2)
    usage = usage_of(wanting_fpga(9), 'd')
    cluster.use.see(PlacedPod('old', 'n0', usage))

    def filtered(number: int) -> PodFilterResult:
        pod, nodes = wanting_fpga(number), Nodes(cluster.names)
        return cluster.evaluator.filter(pod, nodes)

    def passed(number: int) -> list[str]:
        return filtered(number).passed

    assert passed(1) == []
    cluster.use.remove('old')
    assert passed(1) == ['n0', 'n1']
    # Bound by this daemon, which the copy of the book does not show yet.
    assert cluster.evaluator.reserve('u1', 'n1')
    assert passed(2) == []
    licences['CUSTOM_EXAMPLE_COM_FPGA'].used = 0
    table = with_aggregates(cluster.snapshot.hosts, [rack])
    cluster.snapshot = Snapshot(table, {}, 3)
    assert '1 of 1 CUSTOM_EXAMPLE_COM_FPGA of' in filtered(2).failed['n0']
