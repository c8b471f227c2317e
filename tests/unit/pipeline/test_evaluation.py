"""Evaluations: the same as of a single request, however often asked."""

import numpy as np
import pytest

from scheduler_service.filters.hosts import HostFilter, all_filters
from scheduler_service.model import documents
from scheduler_service.pipeline import HostPipeline
from scheduler_service.settings import Settings
from scheduler_service.testing import table
from scheduler_service.weighers import BUILT_IN

HOSTS = [
    {'host': f'h{number}', 'memory_mb': 1000 * (number % 7 + 1), 'vcpus': 8,
     'local_gb': 100, 'state': 'down' if number == 3 else 'up'}
    for number in range(20)
]  # fmt: skip
BY_NAME = {kind.name: kind for kind in all_filters()}
FILTERS = ('ComputeFilter', 'RamFilter', 'ServerGroupAntiAffinityFilter')


class Counting(HostFilter):
    """Passes every other time that it is asked; says nothing of itself."""

    asked = 0

    def mask(self, table, request, settings):
        self.asked += 1
        return np.full(len(table), self.asked % 2 == 0)


def pipeline(*more):
    filters = [BY_NAME[name]() for name in FILTERS]
    weighers = [kind() for kind in BUILT_IN]
    return HostPipeline([*filters, *more], weighers, Settings())


@pytest.mark.parametrize('memory', [1, 3500, 10**6])
def test_evaluation_is_that_of_a_single_request(memory):
    chain, hosts = pipeline(), table({'hosts': HOSTS})
    request = documents.request({'flavor': {'memory_mb': memory}})
    evaluation = chain.evaluate(hosts, request)
    rows = np.array([17, 2, 9, 5, 11, 0])
    for _ in range(2):
        passed = chain.filter_hosts(hosts, request)
        assert evaluation.passing().tolist() == passed.tolist()
        for ours, theirs in zip(
            evaluation.results(),
            chain.filter_results(hosts, request),
            strict=True,
        ):
            assert ours.filter is theirs.filter
            assert ours.mask.tolist() == theirs.mask.tolist()
        first, filters = evaluation.first_rejecting()
        for row, number in enumerate(first.tolist()):
            rejecting = [
                result.filter
                for result in evaluation.results()
                if not result.mask[row]
            ]
            found = filters[number] if number >= 0 else None
            assert found is (rejecting[0] if rejecting else None)
        ranking = chain.weigh_hosts(hosts, hosts.mask_of(rows), request)
        by_row = dict(zip(ranking.rows, ranking.totals, strict=True))
        totals = evaluation.totals(rows).tolist()
        assert totals == [by_row[row] for row in rows]
        assert len(set(totals)) > 1


def test_some_hosts_pass_where_all_of_them_do():
    hosts, request = table({'hosts': HOSTS}), documents.request({'flavor': {}})
    evaluation = pipeline().evaluate(hosts, request)
    assert evaluation.do_pass(np.array([2, 4]))
    assert not evaluation.do_pass(np.array([2, 3]))
    every = HostPipeline([], [], Settings()).evaluate(hosts, request)
    assert every.do_pass(np.array([2, 3]))
    # Without weighers there is nothing to rank by.
    assert every.totals(np.array([2, 3])) is None


def test_filters_that_want_to_be_asked_are_asked_each_time():
    one = Counting()
    evaluation = pipeline(one).evaluate(
        table({'hosts': HOSTS}), documents.request({'flavor': {}})
    )
    found = [bool(evaluation.passing().any()) for _ in range(4)]
    assert found == [False, True, False, True]
    results = [evaluation.results() for _ in range(2)]
    found = [dict(each)[one].any() for each in results]
    assert found == [False, True]
