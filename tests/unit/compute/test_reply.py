"""Answers and errors have the form that callers of compute services parse."""

import json
import sys

import pytest

from scheduler_service import errors, rpc  # noqa: F401 - chooses the backend
from scheduler_service.compute import translation
from scheduler_service.compute.wire import NetworkMetadata
from scheduler_service.model import HostsAnswer, Placement, Selection
from tests.support import nova_wire

from oslo_messaging._drivers import common  # isort: skip

AMOUNTS = {'VCPU': 2, 'MEMORY_MB': 2048, 'DISK_GB': 20}


def selection_of(recorded):
    """Return a recorded Selection as ours."""
    data = recorded['nova_object.data']
    return Selection(
        host=data['service_host'],
        node=data['nodename'],
        uuid=data['compute_node_uuid'],
        zone=data['availability_zone'],
        cell=data['cell_uuid'],
    )


def answer_of(*listed):
    """Return an answer with a host and alternates for each instance."""
    return HostsAnswer(
        request_id='req-1',
        placements=[
            Placement(
                instance_uuid=str(number),
                selected=one[0],
                alternates=list(one[1:]),
            )
            for number, one in enumerate(listed)
        ],
    )


def comparable(selection):
    """Return a Selection without an order where none matters."""
    found = json.loads(json.dumps(selection))
    data = found['nova_object.data']
    for one in (found, data['limits']):
        one['nova_object.changes'] = sorted(one['nova_object.changes'])
    return found


@pytest.mark.parametrize('name', ['simple', 'three'])
def test_selections_are_what_was_recorded(name):
    recorded = nova_wire.answered(name)['result']
    answer = answer_of(*([selection_of(s) for s in one] for one in recorded))
    found = translation.selections(answer, AMOUNTS, alternates=True)
    assert [[comparable(s) for s in one] for one in found] == [
        [comparable(s) for s in one] for one in recorded
    ]


def host(name, **fields):
    return Selection(host=name, node=f'{name}-node', uuid=name, **fields)


def test_alternates_are_left_out_where_none_are_wanted():
    answer = answer_of([host('a'), host('b')])
    found = translation.selections(answer, AMOUNTS, alternates=False)
    assert [len(one) for one in found] == [1]


def test_limits_are_those_that_the_filters_state():
    answer = answer_of([host('a', limits={'vcpu': 8, 'memory_mb': 9})])
    found = translation.selections(answer, {}, alternates=True)
    limits = found[0][0]['nova_object.data']['limits']['nova_object.data']
    assert limits == {
        'vcpu': 8, 'memory_mb': 9, 'disk_gb': None, 'numa_topology': None,
    }  # fmt: skip


def test_limits_of_numa_cells_are_as_a_compute_service_checks_them():
    ratios = {'cpu_allocation_ratio': 16.0, 'ram_allocation_ratio': 1.5}
    answer = answer_of([host('a', numa_limits=ratios)])
    networks = NetworkMetadata(physnets=['p1'], tunneled=True)
    made = translation.selections(
        answer, {}, alternates=True, networks=networks
    )
    limits = made[0][0]['nova_object.data']['limits']['nova_object.data']
    numa = limits['numa_topology']
    assert numa['nova_object.name'] == 'NUMATopologyLimits'
    assert numa['nova_object.version'] == '1.1'
    metadata = numa['nova_object.data'].pop('network_metadata')
    assert numa['nova_object.data'] == ratios
    assert metadata['nova_object.name'] == 'NetworkMetadata'
    assert metadata['nova_object.data'] == {
        'physnets': ['p1'], 'tunneled': True,
    }  # fmt: skip
    (plain,) = translation.plain(answer)
    assert plain['limits']['numa_topology']['nova_object.data'] == ratios


def sent(error):
    """Return an error as it travels."""
    text = common.serialize_remote_exception((type(error), error, None))
    return json.loads(text)


def test_an_error_travels_like_the_recorded_one():
    recorded = json.loads(nova_wire.answered('full')['failure'])
    made = sent(translation.no_such_host('compute-3', 'compute-3'))
    for field in ('class', 'module', 'message', 'args', 'kwargs'):
        assert made[field] == recorded[field]
    assert made.keys() == recorded.keys()


def test_no_module_of_the_compute_service_is_needed():
    assert translation.NoValidHost.__module__ == 'nova.exception'
    assert 'nova' not in sys.modules


REASONS = 'No valid host was found. RamFilter: 3 hosts lack 5 MB'


@pytest.mark.parametrize(
    ('error', 'full', 'reason'),
    [
        (
            errors.NoValidHost(REASONS),
            False,
            'There are not enough hosts available.',
        ),
        (errors.NoValidHost(REASONS), True, 'RamFilter: 3 hosts lack 5 MB'),
        (
            errors.MaxRetriesExceeded('Every attempt lost'),
            False,
            'There are not enough hosts available.',
        ),
        (
            errors.InvalidRequest('requested_resources: not supported'),
            False,
            'requested_resources: not supported',
        ),
        (errors.StoreUnavailable('db1'), False,
         'The scheduler is not available.'),
        (errors.StoreUnavailable('db1'), True, 'StoreUnavailable: db1'),
        (errors.ServiceBusy(), False, 'The scheduler is busy.'),
        (errors.FilterFault('f'), False, 'The scheduler failed.'),
    ],
)  # fmt: skip
def test_a_short_reason_says_nothing_of_capacity(error, full, reason):
    made = translation.failure(error, full)
    assert made.kwargs == {'reason': reason, 'code': 500}
    assert str(made) == f'No valid host was found. {reason}'


def test_a_selection_has_the_allocations_of_several_providers():
    def selection(child: str | None) -> Selection:
        tree = {
            'allocations': {'root': {'resources': {'VCPU': 1}},
                            child: {'resources': {'VGPU': 1}}},
            'mappings': {'': ['root'], '1': [child]},
        }  # fmt: skip
        more = {} if child is None else {'allocation': tree}
        return Selection(host='h', node='n', uuid='root', **more)

    listed = translation.selections(
        answer_of([selection('a')], [selection('b')], [selection(None)]),
        AMOUNTS,
        True,
    )
    found = [
        json.loads(one['nova_object.data']['allocation_request'])
        for (one,) in listed
    ]
    assert [one['mappings'] for one in found] == [
        {'': ['root'], '1': ['a']},
        {'': ['root'], '1': ['b']},
        {'': ['root']},
    ]
    assert found[2]['allocations'] == {'root': {'resources': AMOUNTS}}
