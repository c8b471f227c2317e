"""RamFilter compares memory under the allocation ratio."""

from __future__ import annotations

import pytest

from scheduler_service.filters.hosts.ram_filter import RamFilter
from scheduler_service.model import documents
from scheduler_service.settings import Settings
from scheduler_service.testing import table
from tests.support.plugins import inventory, passing, reason


def host(memory_mb, used, ratio=None):
    return inventory(
        a={
            'memory_mb': memory_mb,
            'memory_mb_used': used,
            'ram_allocation_ratio': ratio,
        }
    )


def flavor(memory_mb):
    return {'flavor': {'memory_mb': memory_mb}}


@pytest.mark.parametrize(
    ('memory_mb', 'used', 'ratio', 'requested', 'passes'),
    [
        # The ratio multiplies all of the memory, not what is free of it:
        # 2048 x 1.5 - 1024 = 2048.
        (2048, 1024, 1.5, 2048, True),
        (2048, 1024, 1.5, 2049, False),
        # More may be used than there is: 1024 x 2 - 2047 = 1.
        (1024, 2047, 2.0, 1, True),
        (1024, 2048, 2.0, 1, False),
        (1000, 1000, 1.0015, 1, True),
        # A host without memory has room for a flavor without memory.
        (0, 0, 1.0, 0, True),
        (0, 1, 1.0, 0, False),
    ],
)
def test_what_is_left_of_memory_times_ratio_has_to_suffice(
    memory_mb, used, ratio, requested, passes
):
    document = host(memory_mb, used, ratio)
    hosts = passing(RamFilter(), document, flavor(requested))
    assert hosts == (['a'] if passes else [])


def test_a_host_without_a_ratio_has_the_configured_ratio():
    for configured, expected in ((1.0, []), (2.0, ['a'])):
        hosts = passing(
            RamFilter(),
            host(1024, 1024),
            flavor(512),
            ram_allocation_ratio=configured,
        )
        assert hosts == expected


def test_an_instance_larger_than_the_host_may_be_forbidden():
    document = host(1024, 0, 2.0)
    assert passing(RamFilter(), document, flavor(2000)) == ['a']
    hosts = passing(
        RamFilter(), document, flavor(2000), allow_self_overcommit=False
    )
    assert hosts == []


def test_the_reason_gives_the_figures():
    assert reason(RamFilter(), host(1000, 600, 1.0), flavor(512)) == (
        '512 MB requested, 400 free (limit 1000, 600 used)'
    )


def test_a_miss_is_what_the_host_lacks_in_mb():
    lacks, unit = RamFilter().miss(
        table(host(1000, 600, 1.0)),
        documents.request(flavor(512)),
        Settings(),
    )
    assert (lacks.tolist(), unit) == ([112.0], 'MB')
