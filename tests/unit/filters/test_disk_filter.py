"""DiskFilter compares root, ephemeral and swap with the free disk."""

from __future__ import annotations

import pytest

from scheduler_service.filters.hosts.disk_filter import DiskFilter
from scheduler_service.model import documents
from scheduler_service.settings import Settings
from scheduler_service.testing import table
from tests.support.plugins import inventory, passing, reason


def host(**fields):
    return inventory(a={'local_gb': 10, **fields})


@pytest.mark.parametrize(
    ('flavor', 'passes'),
    [
        ({'root_gb': 10}, True),
        ({'root_gb': 11}, False),
        ({'root_gb': 6, 'ephemeral_gb': 4}, True),
        ({'root_gb': 6, 'ephemeral_gb': 5}, False),
        # Swap is in MB, root and ephemeral are in GB.
        ({'root_gb': 9, 'swap': 1024}, True),
        ({'root_gb': 10, 'swap': 1}, False),
    ],
)
def test_root_ephemeral_and_swap_have_to_fit_together(flavor, passes):
    hosts = passing(DiskFilter(), host(), {'flavor': flavor})
    assert hosts == (['a'] if passes else [])


@pytest.mark.parametrize(
    ('fields', 'root_gb', 'passes'),
    [
        ({'local_gb_used': 10, 'disk_allocation_ratio': 1.5}, 5, True),
        ({'local_gb_used': 15, 'disk_allocation_ratio': 1.5}, 1, False),
        # disk_available_least counts where it is the smaller figure, and
        # may be negative.
        ({'disk_available_least': 4}, 4, True),
        ({'disk_available_least': 4}, 5, False),
        ({'local_gb_used': 8, 'disk_available_least': 9}, 3, False),
        (
            {'disk_available_least': -5, 'disk_allocation_ratio': 1.5},
            1,
            False,
        ),
    ],
)
def test_used_disk_is_what_is_not_free(fields, root_gb, passes):
    request = {'flavor': {'root_gb': root_gb}}
    hosts = passing(DiskFilter(), host(**fields), request)
    assert hosts == (['a'] if passes else [])


def test_an_instance_larger_than_the_disk_may_be_forbidden():
    document = host(disk_allocation_ratio=100.0)
    request = {'flavor': {'root_gb': 11}}
    assert passing(DiskFilter(), document, request) == ['a']
    hosts = passing(
        DiskFilter(), document, request, allow_self_overcommit=False
    )
    assert hosts == []


def test_the_reason_gives_the_figures_in_mb():
    request = {'flavor': {'root_gb': 5}}
    assert reason(DiskFilter(), host(local_gb_used=6), request) == (
        '5120 MB of disk requested, 4096 free (limit 10240, 6144 used)'
    )


def test_the_limit_is_reported_in_gb():
    limits = DiskFilter().limits(
        table(host(disk_allocation_ratio=1.5)),
        0,
        Settings(),
    )
    assert limits == {'disk_gb': 15.0}


@pytest.mark.parametrize(
    ('flavor', 'amount_gb', 'judged'),
    [
        ({'root_gb': 2}, 2, True),
        ({'root_gb': 2}, 3, False),
        # A claim takes whole GB, the filter compares MB.
        ({'root_gb': 2, 'swap': 100}, 3, False),
        ({'root_gb': 2, 'swap': 1024}, 3, True),
    ],
)
def test_a_claim_is_judged_when_it_takes_what_is_compared(
    flavor, amount_gb, judged
):
    request = documents.request({'flavor': flavor}).with_ids()
    assert DiskFilter().checks(request, amount_gb) is judged
