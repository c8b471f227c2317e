"""Requests that are selected for in turns, with others in between."""

from __future__ import annotations

import random

import numpy as np
import pytest

from scheduler_service import errors
from scheduler_service.columns import Overlay
from scheduler_service.filters.hosts import all_filters
from scheduler_service.model import documents
from scheduler_service.pipeline import HostPipeline
from scheduler_service.pipeline.search_cache import SearchCache
from scheduler_service.settings import Settings
from scheduler_service.testing import table
from scheduler_service.weighers.load_weigher import RAMWeigher
from tests.support.time_slices import in_turns, one_turn

RATIO = Settings(ram_allocation_ratio=1.0, max_io_ops_per_host=2)
ENABLED = ('ComputeFilter', 'RamFilter', 'IoOpsFilter')


def hosts(count=4, memory=1000):
    return {
        'hosts': [
            {'host': f'h{at}', 'memory_mb': memory, 'vcpus': 99}
            for at in range(count)
        ]
    }


def pipeline(*names, cache=None):
    by_name = {kind.name: kind for kind in all_filters()}
    chain = [by_name[name]() for name in names or ENABLED]
    return HostPipeline(chain, [RAMWeigher()], RATIO, cache=cache)


def request(count, memory=100, **more):
    return documents.request(
        {'num_instances': count, 'flavor': {'memory_mb': memory}, **more}
    ).with_ids()


def use(found):
    """Return all columns that an overlay writes."""
    return {
        **{name: one.used.copy() for name, one in found.resources.items()},
        **{name: found.number(name).copy()
           for name in ('num_instances', 'num_io_ops')},
    }  # fmt: skip


def test_a_request_gets_the_same_places_in_one_turn_and_in_many():
    asked = request(8)
    at_once = pipeline().select(
        Overlay(table(hosts())), asked, random.Random(1)
    )
    piecemeal = in_turns(pipeline(), table(hosts()), asked)
    places = [
        [
            assignment.placement.selected.host
            for assignment in result.assignments
        ]
        for result in (at_once, piecemeal)
    ]
    assert places[0] == places[1]
    assert sorted(places[0]) == sorted(['h0', 'h1', 'h2', 'h3'] * 2)
    assert [assignment.uuid for assignment in piecemeal.assignments] == (
        asked.instance_uuids
    )


def test_nothing_is_assumed_between_turns():
    found = table(hosts())
    before = use(found)
    seen = []

    def check(turn):
        seen.append(turn)
        for name, column in use(found).items():
            assert (column == before[name]).all(), name
        assert len(found.instances) == 0

    in_turns(pipeline(), found, request(8), check)
    assert len(seen) == 7


def test_an_instance_is_placed_anew_when_others_took_its_host():
    found = table(hosts())
    asked, chain = request(4, memory=600), pipeline()

    def take(turn):
        if turn == 2:
            Overlay(found).take(0, {'MEMORY_MB': 500}, 1)

    with pytest.raises(errors.NoValidHost):
        in_turns(chain, found, asked, take)
    found = table(hosts(5))
    result = in_turns(chain, found, asked, take)
    places = {
        assignment.placement.selected.host for assignment in result.assignments
    }
    assert places == {'h1', 'h2', 'h3', 'h4'}


def test_instances_stay_where_they_are_when_hosts_get_other_rows():
    chain, asked, placed = pipeline(), request(3, memory=600), {}
    old = table({'hosts': hosts(4)['hosts']})
    assert one_turn(chain, old, asked, placed) is None
    (first,) = placed.values()
    # The host of the first instance has another row in the next table.
    new = table(hosts(4))
    new.ids[:] += first.host_id
    result = in_turns_from(chain, new, asked, placed)
    assert result.assignments[0].host_id == first.host_id
    assert len({assignment.row for assignment in result.assignments}) == 3


def in_turns_from(chain, found, asked, placed):
    while True:
        result = one_turn(chain, found, asked, placed)
        if result is not None:
            return result


def test_a_host_that_is_gone_is_not_kept():
    chain, asked, placed = pipeline(), request(3, memory=600), {}
    assert one_turn(chain, table(hosts(4)), asked, placed) is None
    new = table(hosts(4))
    new.ids[:] += 1000
    result = in_turns_from(chain, new, asked, placed)
    assert all(assignment.host_id >= 1000 for assignment in result.assignments)


def test_a_server_group_is_kept_to_over_many_turns():
    group = '22222222-0000-4000-8000-000000000001'
    document = {
        **hosts(4),
        'server_groups': [{'uuid': group, 'policy': 'anti-affinity'}],
    }
    chain = pipeline('ServerGroupAntiAffinityFilter')
    asked = request(4, instance_group=group)
    result = in_turns(chain, table(document), asked)
    assert len({assignment.row for assignment in result.assignments}) == 4


def test_a_search_that_uses_what_earlier_ones_left_sees_every_turn():
    """It learns of changes from the log that each writer of use keeps."""
    cache = SearchCache(min_hosts=0)
    places = []
    for kept in (None, cache):
        chain, rows = pipeline(cache=kept), []
        found = table(
            {
                'hosts': [
                    {'host': f'h{at}', 'memory_mb': 1000 + at, 'vcpus': 99}
                    for at in range(100)
                ]
            }
        )

        def others_ask(turn, chain=chain, found=found, rows=rows):
            Overlay(found).take(turn % 100, {'MEMORY_MB': 1}, 1)
            overlay = Overlay(found)
            other = request(1, 600)
            result = chain.select(overlay, other, random.Random(1))
            rows.append(result.assignments[0].row)
            overlay.forget()

        for count in (5, 9, 1, 12):
            asked = request(count, 600)
            result = in_turns(chain, found, asked, others_ask)
            rows += [assignment.row for assignment in result.assignments]
        places.append(rows)
    assert places[0] == places[1]
    assert cache.hits


def test_many_instances_are_assumed_as_one_after_the_other():
    asked = request(5)
    chain = pipeline()
    one_by_one, together = table(hosts()), table(hosts())
    result = chain.select(Overlay(one_by_one), asked, random.Random(1))
    chosen = result.assignments
    overlay = Overlay(together)
    before = use(together)
    overlay.assume_many(
        [one.row for one in chosen],
        asked.resources,
        [one.placed for one in chosen],
    )
    for name, column in use(one_by_one).items():
        assert np.array_equal(column, use(together)[name]), name
    assert len(together.instances) == 5
    overlay.forget()
    for name, column in before.items():
        assert np.array_equal(column, use(together)[name]), name
    assert len(together.instances) == 0
