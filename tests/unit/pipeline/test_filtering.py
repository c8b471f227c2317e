"""The order in which filters run."""

from __future__ import annotations

from scheduler_service.filters.base import OneHostFilter
from scheduler_service.filters.hosts.core_filter import CoreFilter
from scheduler_service.filters.hosts.ram_filter import RamFilter
from scheduler_service.model import documents
from scheduler_service.pipeline import HostPipeline
from scheduler_service.settings import Settings
from scheduler_service.testing import table

MANDATORY = (
    'requested_destination', 'ignore_hosts', 'force_hosts', 'aggregates',
    'traits',
)  # fmt: skip


class OddHostsFilter(OneHostFilter):
    """Visits hosts one by one."""


def names(check_room=True, **request):
    """Return the filters that run for a request, in order."""
    pipeline = HostPipeline(
        [OddHostsFilter(), RamFilter(), CoreFilter()],
        [],
        Settings(),
        check_room,
    )
    hosts = table({'hosts': [{'host': 'a'}]})
    results = pipeline.filter_results(hosts, documents.request(request))
    return tuple(each.name for each, _ in results)


def test_mandatory_filters_are_first_and_those_of_one_host_last():
    configured = ('RamFilter', 'CoreFilter')
    assert names() == (*MANDATORY, *configured, 'resources', 'OddHostsFilter')
    assert names(check_room=False) == (
        *MANDATORY, *configured, 'OddHostsFilter',
    )  # fmt: skip


def test_forced_hosts_skip_the_configured_filters():
    assert names(force_hosts=['a']) == (*MANDATORY, 'resources')
