"""How full zones are."""

from __future__ import annotations

from scheduler_service.columns.snapshot import Snapshot
from scheduler_service.engine import usage
from scheduler_service.settings import Settings
from scheduler_service.testing import table

SETTINGS = Settings(cpu_allocation_ratio=2.0)


def host(name, vcpus, **more):
    return {'host': name, 'vcpus': vcpus, 'memory_mb': 1024, **more}


def told(inventory, **how):
    snapshot = Snapshot(table(inventory), {}, 1)
    return {
        (one.zone, one.resource_class): one
        for one in usage.by_zone(snapshot, SETTINGS, **how)
    }


def in_zone(number, zone, *hosts):
    return {
        'id': number,
        'name': f'of-{zone}',
        'hosts': list(hosts),
        'metadata': {'availability_zone': zone},
    }


def test_zones_are_summed_up():
    found = told(
        {
            'hosts': [
                host('a', 10),
                host('b', 4, vcpus_used=3),
                host('c', 6, status='disabled'),
                host('d', 8),
            ],
            'aggregates': [in_zone(1, 'north', 'a', 'b', 'c')],
        }
    )
    assert found['north', 'VCPU'] == ('north', 'VCPU', 40.0, 3.0, 25.0)
    assert found['nova', 'VCPU'] == ('nova', 'VCPU', 16.0, 0.0, 16.0)


def test_reserved_and_own_ratios_count():
    resource = {'total': 8, 'reserved': 2, 'allocation_ratio': 1.5}
    found = told({'hosts': [host('a', 1, resources={'CUSTOM_X': resource})]})
    assert found['nova', 'CUSTOM_X'].capacity == 9.0


def test_use_beyond_the_capacity_leaves_nothing_free_elsewhere():
    found = told({'hosts': [host('a', 2, vcpus_used=9), host('b', 2)]})
    assert found['nova', 'VCPU'][2:] == (8.0, 9.0, 4.0)


ZONES = [f'z{n:03}' for n in range(usage.MOST_ZONES + 7)]
CLASSES = {f'CUSTOM_{n}': {'total': 1} for n in range(60)}
MANY = {
    'hosts': [host(f'h-{zone}', 1, resources=CLASSES) for zone in ZONES],
    'aggregates': [
        in_zone(number, zone, f'h-{zone}')
        for number, zone in enumerate(ZONES, 1)
    ],
}


def test_many_zones_and_classes_are_told_in_sum():
    found = told(MANY)
    assert len({zone for zone, _ in found}) == usage.MOST_ZONES + 1
    assert len({name for _, name in found}) == usage.MOST_CLASSES + 1
    of_all = sum(
        one.capacity
        for (_, name), one in found.items()
        if name.startswith('CUSTOM_') or name == usage.OTHERS
    )
    # With memory and disk among them, whichever they are with.
    assert of_all >= 60 * len(ZONES) - 2 * len(ZONES)


def test_many_zones_and_classes_are_told_apart_where_all_are_wanted():
    found = told(MANY, whole=True)
    assert {zone for zone, _ in found} == {*ZONES}
    assert {name for _, name in found} == {*CLASSES, 'VCPU', 'MEMORY_MB'}
    for zone in ZONES:
        assert found[zone, 'VCPU'] == (zone, 'VCPU', 2.0, 0.0, 2.0)


def test_nothing_is_told_before_the_hosts_are_loaded():
    assert usage.by_zone(None, SETTINGS) == []
