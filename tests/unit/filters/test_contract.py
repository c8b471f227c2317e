"""Every built-in filter keeps the promises of its key and its form."""

import dataclasses
import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler_service import errors
from scheduler_service.columns import Overlay
from scheduler_service.columns.topology import EACH_TIME
from scheduler_service.filters.base import ComparisonFilter
from scheduler_service.filters.hosts import BUILT_IN
from scheduler_service.model import documents
from scheduler_service.pipeline import HostPipeline
from scheduler_service.testing import table
from tests.support import filter_strategies
from tests.support.filter_strategies import inventories, requests

SETTINGS = dataclasses.replace(
    filter_strategies.SETTINGS, allow_self_overcommit=False
)
FILTERS = [kind() for kind in BUILT_IN]
COMPARISONS = [one for one in FILTERS if isinstance(one, ComparisonFilter)]
examples = settings(
    max_examples=35,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)


@st.composite
def similar_requests(draw):
    """Return two requests that differ in a few fields, or in none."""
    first, second = draw(requests), draw(requests)
    fields = draw(st.sets(st.sampled_from(sorted(first)), max_size=3))
    mixed = {**first, **{name: second[name] for name in fields}}
    return tuple(
        documents.request(document).with_ids() for document in (first, mixed)
    )


def key_and_mask(host_filter, hosts, request):
    """Return a filter's key and its mask, None being all true.

    Both are the name of the fault where the filter rejects the request.
    """
    try:
        key = host_filter.mask_key(hosts, request, SETTINGS)
        mask = host_filter.mask(hosts, request, SETTINGS)
    except ValueError as fault:
        return EACH_TIME, [str(fault)]
    whole = np.ones(len(hosts), np.bool_) if mask is None else mask
    assert whole.dtype == np.bool_
    return key, whole.tolist()


@examples
@given(inventory=inventories, pair=similar_requests())
def test_a_mask_depends_on_its_key_alone(inventory, pair):
    hosts = table(inventory)
    for host_filter in FILTERS:
        (key, mask), (other_key, other_mask) = (
            key_and_mask(host_filter, hosts, request) for request in pair
        )
        hash(key)
        # A key of None promises that every host passes.
        assert key is not None or all(mask), host_filter.name
        if key is not EACH_TIME and key == other_key:
            assert mask == other_mask, host_filter.name


@examples
@given(inventory=inventories, request_=requests)
def test_a_mask_is_all_comparisons_row_by_row(inventory, request_):
    hosts = table(inventory)
    request = documents.request(request_).with_ids()
    for host_filter in COMPARISONS:
        arguments = (hosts, request, SETTINGS)
        comparisons = host_filter.comparisons(*arguments)
        by_row = [
            all(
                comparison.at(np.array([row]))[0] for comparison in comparisons
            )
            for row in range(len(hosts))
        ]
        assert host_filter.mask(*arguments).tolist() == by_row


@examples
@given(request_=requests)
def test_without_hosts_the_refusal_says_that_there_are_none(request_):
    for host_filter in FILTERS:
        pipeline = HostPipeline([host_filter], [], SETTINGS)
        asked = documents.request(request_).with_ids()
        # Of some requests a filter says first that they are not valid.
        with pytest.raises(
            (errors.NoValidHost, errors.InvalidRequest)
        ) as raised:
            pipeline.select(Overlay(table({})), asked, random.Random(1))
        if isinstance(raised.value, errors.NoValidHost):
            assert str(raised.value).endswith('There are no hosts.')
