"""Every built-in filter's mask is the plain reading of its rule."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

from scheduler_service.filters.hosts import BUILT_IN
from scheduler_service.model import documents
from scheduler_service.pipeline import HostPipeline
from scheduler_service.testing import table
from tests.support.filter_rules import RULES, World
from tests.support.filter_strategies import SETTINGS, inventories, requests


@settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(inventory=inventories, request_=requests)
def test_masks_are_the_plain_reading_of_the_rules(inventory, request_):
    world = World(inventory, request_, SETTINGS)
    expected = {
        kind.name: [RULES[kind.name](world, one) for one in inventory['hosts']]
        for kind in BUILT_IN
    }
    pipeline = HostPipeline(
        [kind() for kind in BUILT_IN], [], SETTINGS, check_room=False
    )
    parsed = documents.request(request_).with_ids()
    masks = {name: [True] * len(inventory['hosts']) for name in expected}
    for host_filter, mask in pipeline.filter_results(table(inventory), parsed):
        if host_filter.name in expected:
            masks[host_filter.name] = mask.tolist()
    assert masks == expected


def test_every_filter_has_a_plain_rule():
    assert {kind.name for kind in BUILT_IN} == set(RULES)
