"""Hints, extra specs and image properties that make no sense."""

import itertools

import pytest

from scheduler_service import errors
from scheduler_service.filters.hosts import BUILT_IN
from tests.support import services
from tests.support.documents import CONTEXT

SPECS, PROPERTIES = 'flavor.extra_specs.', 'image.properties.'
NONSENSE = [
    '["zz",1]', '[[[', 'abc', '', '-1', '1e999', '>= x', '<or>', '9' * 40,
    'zz:1', 'nic:x', '\u0663', ',', '[]', 'null', True, 3, -1, 1.5, [], ['a'],
    ['a', 'b'], [None], {}, {'a': 1}, [[1]], None,
]  # fmt: skip
HINTS = (
    'query', 'same_host', 'different_host', 'build_near_host_ip', 'cidr',
    'group', 'domain_name',
)  # fmt: skip
NAMES = (
    'numa_nodes', 'numa_cpus.0', 'numa_mem.0', 'cpu_policy', 'mem_page_size',
    'cpu_thread_policy', 'emulator_threads_policy', 'maxphysaddr_bits',
    'sound_model', 'virtio_packed_ring', 'architecture', 'vm_mode',
)  # fmt: skip
KEYS = (
    *(f'hw:{name}' for name in NAMES), 'pci_passthrough:alias',
    'capabilities:free_ram_mb', 'capabilities:hypervisor_type',
    'capabilities:stats:a', 'capabilities:', 'ssd', 'resources:VCPU',
    'aggregate_instance_extra_specs:ssd', 'trait:HW_A', 'free_disk_mb',
    'accel:device_profile', 'hypervisor_version', 'status',
)  # fmt: skip
IMAGE = (
    *(f'hw_{name}' for name in NAMES), 'img_hv_type', 'architecture',
    'img_hv_requested_version', 'hypervisor_type', 'trait:HW_A',
    'hypervisor_version_requires', 'os_distro', 'vm_mode',
)  # fmt: skip
# The host passes all of them, so that each is asked.
FILTERS = [one.name for one in BUILT_IN if not one.name.startswith('Exact')]
ADDRESSES = {'build_near_host_ip': '192.0.2.1'}


@pytest.fixture(scope='module')
def service(tmp_path_factory):
    with services.shared(
        tmp_path_factory.mktemp('nonsense'),
        inventory={
            'hosts': [
                {'host': 'a', 'vcpus': 8, 'memory_mb': 999_999,
                 'host_ip': '192.0.2.7', 'stats': {'a': '5'},
                 'supported_instances': [['x86_64', 'kvm', 'hvm']],
                 'hypervisor_version': 8002000,
                 'cpu_info': {'maxphysaddr': {'bits': 46}}},
            ],
            'aggregates': [
                {'id': 1, 'name': 'x', 'hosts': ['a'],
                 'metadata': {'ssd': '5'}},
            ],
        },
        filter_scheduler__enabled_filters=FILTERS,
    ) as service:  # fmt: skip
        yield service


@pytest.mark.parametrize(
    ('request_', 'at', 'expected'),
    [
        ({'scheduler_hints': {'query': '["zz",1]'}},
         'scheduler_hints.query', 'a JSON list'),
        ({'scheduler_hints': {'query': '[[['}},
         'scheduler_hints.query', 'a JSON list'),
        ({'scheduler_hints': {'query': ['[]', '[]']}},
         'scheduler_hints.query', 'as one text'),
        ({'scheduler_hints': {'build_near_host_ip': 'abc'}},
         'scheduler_hints.build_near_host_ip', 'an address'),
        ({'scheduler_hints': {**ADDRESSES, 'cidr': '/abc'}},
         'scheduler_hints.cidr', 'the size of a network'),
        ({'scheduler_hints': {'same_host': True}},
         'scheduler_hints.same_host', 'the uuid of an instance'),
        ({'scheduler_hints': {'different_host': {'a': 1}}},
         'scheduler_hints.different_host', 'the uuid of an instance'),
        ({'image': {'properties': {'hw_numa_nodes': ['a']}}},
         f'{PROPERTIES}hw_numa_nodes', 'a number from 1 to 128'),
        ({'flavor': {'extra_specs': {'hw:numa_nodes': 'two'}}},
         f'{SPECS}hw:numa_nodes', 'a number from 1 to 128'),
        ({'flavor': {'vcpus': 1, 'extra_specs': {'hw:numa_nodes': '3'}}},
         f'{SPECS}hw:numa_nodes', 'cells that add up'),
        ({'flavor': {'extra_specs': {'hw:mem_page_size': 'huge'}}},
         f'{SPECS}hw:mem_page_size', 'a size such as 2MB'),
        ({'image': {'properties': {'img_hv_type': 'kvm',
                                   'img_hv_requested_version': 'abc'}}},
         f'{PROPERTIES}img_hv_requested_version', '>=6.0,<6.2'),
        ({'image': {'properties': {'hw_maxphysaddr_bits': 'abc'}}},
         f'{PROPERTIES}hw_maxphysaddr_bits', 'a number of bits'),
        ({'flavor': {'extra_specs': {'pci_passthrough:alias': 'gpu:1'}}},
         f'{SPECS}pci_passthrough:alias', 'names of [pci] alias'),
        ({'flavor': {'extra_specs': {'pci_passthrough:alias': 'gpu:x'}}},
         f'{SPECS}pci_passthrough:alias', 'NAME:COUNT'),
        ({'flavor': {'extra_specs': {'capabilities:free_ram_mb': '>= x'}}},
         f'{SPECS}capabilities:free_ram_mb', 'an operator with a value'),
        ({'flavor': {'extra_specs': {'hw:maxphysaddr_bits': 'x'}}},
         f'{SPECS}hw:maxphysaddr_bits', 'an operator with a value'),
        ({'flavor': {'extra_specs': {'ssd': '<or>'}}},
         f'{SPECS}ssd', 'an operator with a value'),
    ],
)  # fmt: skip
def test_a_request_is_refused_with_what_is_wanted_when_it_makes_no_sense(
    request_, at, expected, service
):
    request_.setdefault('flavor', {}).setdefault('vcpus', 1)
    for ask in service.client.select_destinations, service.client.explain:
        with pytest.raises(errors.InvalidRequest) as caught:
            ask(CONTEXT, request_)
        assert caught.value.facts['at'] == at
        text = str(caught.value.args[0])
        assert text.startswith(f'{at}: expected ')
        assert expected in text


def test_no_filter_fails_when_a_request_makes_no_sense(service):
    requests = [
        *({'scheduler_hints': {**ADDRESSES, key: value}}
          for key, value in itertools.product(HINTS, NONSENSE)),
        *({'flavor': {'vcpus': 2, 'extra_specs': {key: value}}}
          for key, value in itertools.product(KEYS, NONSENSE)
          if isinstance(value, str)),
        *({'image': {'properties': {'img_hv_type': 'kvm', key: value}}}
          for key, value in itertools.product(IMAGE, NONSENSE)),
    ]  # fmt: skip
    odd = []
    ways = service.client.select_destinations, service.client.explain
    for request, ask in zip(requests, itertools.cycle(ways)):
        request.setdefault('flavor', {'vcpus': 1})
        try:
            ask(CONTEXT, request)
        except (errors.InvalidRequest, errors.NoValidHost):
            continue
        except errors.SchedulerError as error:
            odd.append((request, str(error)))
    assert not odd


@pytest.mark.parametrize(
    ('part', 'key'), [('flavor', 'extra_specs'), ('image', 'properties')]
)
def test_a_request_is_refused_when_it_has_too_many_settings(
    part, key, service
):
    def request(count):
        return {part: {key: {f'k{n}:x': '1' for n in range(count)}}}

    assert service.client.explain(CONTEXT, request(512))
    with pytest.raises(errors.InvalidRequest, match='<= 512') as caught:
        service.client.select_destinations(CONTEXT, request(513))
    assert caught.value.facts['at'].endswith(f'{part}.{key}')


def test_others_are_answered_when_an_error_has_itself_as_its_cause(
    make_service,
):
    """A weigher raises an error of the scheduler's own."""
    service = make_service(
        metrics__weight_setting=['load=1.0'],
    )
    for _ in range(2):
        with pytest.raises(errors.ComputeHostMetricNotFound):
            service.select_hosts()
    assert service.client.ping(CONTEXT)['database'] == 'up'
