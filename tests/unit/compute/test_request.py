"""RequestSpecs of the compute service become requests of ours."""

from __future__ import annotations

import msgspec
import pytest

from scheduler_service import errors
from scheduler_service.compute import translation
from scheduler_service.model.requirements.numa import GuestCell
from tests.support import nova_wire
from tests.support.nova_wire import flavor, spec, thing

UUID = '18d53391-97f1-4297-9e4e-3698c8313d17'
CONTEXT = {'request_id': 'req-1', 'project_id': 'p', 'user_id': 'u'}
AGGREGATE = '063397db-16f5-4313-97f3-86f5fac2c7dd'


def translated(**fields):
    """Return a request for one instance, as it is translated."""
    return translation.translate(spec(**fields), [UUID], CONTEXT).request


def refusal(**fields):
    """Return the error with which a request is refused."""
    with pytest.raises(errors.InvalidRequest) as caught:
        translated(**fields)
    return caught.value


@pytest.mark.parametrize('name', ['simple', 'three', 'dicts', 'huge'])
def test_recorded_requests_are_translated_field_by_field(name):
    message = nova_wire.sent(name)
    data = message['args']['spec_obj']['nova_object.data']
    wanted = data['flavor']['nova_object.data']
    uuids = message['args']['instance_uuids']
    made = translation.translate(
        message['args']['spec_obj'], uuids, nova_wire.context_of(message)
    )
    assert made.group is None
    assert msgspec.to_builtins(made.request) == {
        'request_id': message['_context_request_id'],
        'project_id': data['project_id'],
        'user_id': 'bench',
        **({'num_instances': 3} if name == 'three' else {}),
        'instance_uuids': uuids,
        'lenient': True,
        'flavor': {
            'flavorid': '1',
            'name': 'm1.small',
            'vcpus': wanted['vcpus'],
            'memory_mb': 2048,
            'root_gb': 20,
            'extra_specs': {'capabilities:hypervisor_type': 's== QEMU'},
        },
        'image': {
            'id': data['image']['nova_object.data']['id'],
            'disk_format': 'qcow2',
            'properties': {
                'hw_architecture': 'x86_64',
                'hw_vm_mode': 'hvm',
                'img_hv_type': 'kvm',
            },
        },
    }
    assert made.request.resources == {
        'VCPU': wanted['vcpus'],
        'MEMORY_MB': 2048,
        'DISK_GB': 20,
    }


def full():
    """Return the recorded message with every object and field."""
    message = nova_wire.sent('full')
    return message, message['args']['spec_obj']['nova_object.data']


def test_a_request_with_every_other_object_is_translated():
    message, data = full()
    data['requested_resources'] = None
    data['request_level_params']['nova_object.data']['same_subtree'] = []
    args = message['args']
    made = translation.translate(
        args['spec_obj'], args['instance_uuids'], CONTEXT
    )
    found = msgspec.json.decode(msgspec.json.encode(made.request))
    assert found['ignore_hosts'] == ['compute-1']
    assert found['force_hosts'] == found['force_nodes'] == ['compute-3']
    assert found['requested_destination'] == {
        'host': 'compute-3',
        'node': 'compute-3',
        'cell': 'd6b77ac2-c8ed-4546-8520-5b9c254d8c0f',
        'aggregates': [AGGREGATE],
        'forbidden_aggregates': ['4976fdeb-fb22-42ce-bbf0-9cbb3bac19c3'],
    }
    assert found['retry'] == {
        'num_attempts': 2,
        'hosts': [['compute-2', 'compute-2']],
    }
    assert found['ignore_nodes'] == [['compute-2', 'compute-2']]
    assert found['scheduler_hints'] == {
        'group': ['g'],
        'different_host': ['aff06448-2458-4b01-afee-008d980cfc69'],
        '_nova_check_type': ['evacuate'],
    }
    assert found['numa_topology'] == {
        'cells': [{'cpus': 2, 'memory_mb': 1024, 'dedicated': 0}],
        'physnets': ['p1'],
        'tunneled': True,
    }
    assert found['pci_requests'] == [
        {'name': 'qat', 'alternatives': [{'vendor_id': '8086'}]}
    ]
    assert found['root_traits'] == {'COMPUTE_NODE': 'required'}
    assert found['instance_group'] == '1cbce090-58db-43ab-acf3-fb4db2d9117a'
    assert found['group_hosts'] == ['compute-1']
    assert msgspec.to_builtins(made.group) == {
        'uuid': found['instance_group'],
        'name': 'g',
        'policy': 'anti-affinity',
        'project_id': 'a' * 32,
        'rules': {'max_server_per_host': 2},
        'members': ['be8f00ee-25c1-45c2-911f-dd81d06823b9'],
    }


def test_fields_that_are_not_set_or_not_known_do_not_matter():
    found = translated(nonsense=thing('Unheard', '1.7', a=1))
    assert found.project_id == 'p'
    assert found.image is None
    assert found.resources == {'VCPU': 2, 'MEMORY_MB': 2048, 'DISK_GB': 20}


@pytest.mark.parametrize(
    ('spec_obj', 'place'),
    [
        (None, 'spec_obj'),
        (thing('Flavor', '1.2'), 'spec_obj'),
        ({**spec(), 'nova_object.version': '2.0'}, 'spec_obj'),
        ({**spec(), 'nova_object.data': None}, 'spec_obj'),
        (thing('RequestSpec', '1.15'), 'flavor'),
        (spec(flavor=flavor(vcpus='x')), 'flavor.vcpus'),
        (spec(retry=thing('SchedulerRetries', '2.1')), 'spec_obj.retry'),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(spec_obj, place):
    with pytest.raises(errors.InvalidRequest) as caught:
        translation.translate(spec_obj, [UUID], CONTEXT)
    assert caught.value.facts['at'] == place


def test_deep_nesting_is_refused():
    deep = []
    for _ in range(40):
        deep = [deep]
    with pytest.raises(errors.PayloadTooLarge):
        translation.translate(spec(nonsense=deep), [UUID], CONTEXT)


@pytest.mark.parametrize(
    ('fields', 'expected'),
    [
        ({'is_bfv': True}, {'VCPU': 2, 'MEMORY_MB': 2048}),
        (
            {'flavor': flavor(ephemeral_gb=3, swap=1025), 'is_bfv': True},
            {'VCPU': 2, 'MEMORY_MB': 2048, 'DISK_GB': 5},
        ),
        (
            {
                'flavor': flavor(
                    extra_specs={
                        'resources:VCPU': '0',
                        'resources:DISK_GB': '0',
                        'resources:CUSTOM_BAREMETAL': '1',
                        'hw:pmem': '6gb,6gb',
                        'hw:mem_encryption': 'true',
                    }
                )
            },
            {
                'MEMORY_MB': 2048,
                'CUSTOM_BAREMETAL': 1,
                'CUSTOM_PMEM_NAMESPACE_6GB': 2,
                'MEM_ENCRYPTION_CONTEXT': 1,
            },
        ),
    ],
)
def test_amounts_are_what_compute_services_count(fields, expected):
    assert translated(**fields).resources == expected


def numa(*cells, **fields):
    listed = [thing('InstanceNUMACell', '1.6', **cell) for cell in cells]
    return {
        'numa_topology': thing(
            'InstanceNUMATopology', '1.3', cells=listed, **fields
        )
    }


def test_dedicated_cpus_are_a_class_of_their_own_where_hosts_offer_it():
    cell = {'memory': 2048, 'cpuset': [0], 'pcpuset': [1]}
    fields = numa(
        {**cell, 'cpu_policy': 'mixed', 'cpu_thread_policy': 'isolate'},
        emulator_threads_policy='isolate',
    )
    found = translated(**fields).offered_form(['VCPU', 'PCPU'])
    assert found.resources['VCPU'] == 1
    assert found.resources['PCPU'] == 2
    assert found.forbidden_traits == {'HW_CPU_HYPERTHREADING'}
    assert msgspec.to_builtins(found.numa_topology) == {
        'cells': [
            {
                'cpus': 2,
                'memory_mb': 2048,
                'dedicated': 1,
                'thread_policy': 'isolate',
            }
        ],
        'pinned': True,
        'isolated_emulator': True,
    }
    plain = translated(**fields).offered_form(['VCPU'])
    assert plain.resources['VCPU'] == 2
    assert not plain.forbidden_traits


def test_only_dedicated_cpus_have_a_fallback():
    def fallback(**cell):
        found = translated(**numa({'memory': 2048, **cell}))
        return found.without_pcpu(only_dedicated=True)

    dedicated = {'cpuset': [], 'pcpuset': [0], 'cpu_policy': 'dedicated'}
    made = fallback(**dedicated, cpu_thread_policy='isolate')
    assert made.resources['VCPU']
    assert 'PCPU' not in made.resources
    assert not made.forbidden_traits
    assert made.numa_topology.pinned
    # There is no difference, or nova-scheduler has none.
    assert made.without_pcpu() is None
    mixed = {'cpuset': [0], 'pcpuset': [1], 'cpu_policy': 'mixed'}
    assert fallback(**mixed) is None
    assert fallback(cpuset=[0]) is None


@pytest.mark.parametrize(
    ('size', 'expected'),
    [(None, None), (-1, 'small'), (-2, 'large'), (-3, 'any'), (2048, '2048')],
)
def test_page_sizes(size, expected):
    fields = numa({'memory': 1, 'cpuset': [0], 'pagesize': size})
    (cell,) = translated(**fields).numa_topology.cells
    assert cell.page_size == expected


def test_older_callers_have_dedicated_cpus_in_the_same_set():
    fields = numa({'memory': 1, 'cpuset': [0], 'cpu_policy': 'dedicated'})
    found = translated(**fields).numa_topology
    assert found.pinned
    assert found.cells[0].dedicated == 1


def test_a_cell_of_a_mixed_instance_may_have_no_dedicated_cpus():
    cell = {'memory': 1, 'cpu_policy': 'mixed'}
    fields = numa(
        {**cell, 'cpuset': [1], 'pcpuset': [0]},
        {**cell, 'cpuset': [2, 3], 'pcpuset': []},
    )
    size = flavor(vcpus=4)
    found = translated(flavor=size, **fields)
    assert (found.resources['VCPU'], found.resources['PCPU']) == (3, 1)
    assert [one.dedicated for one in found.numa_topology.cells] == [1, 0]


def test_cells_may_differ_in_pages_and_threads():
    cell = {'memory': 1, 'cpuset': [], 'cpu_policy': 'dedicated'}
    fields = numa(
        {**cell, 'pcpuset': [0], 'pagesize': 4},
        {
            **cell,
            'pcpuset': [1],
            'pagesize': 2048,
            'cpu_thread_policy': 'require',
        },
    )
    first, second = translated(**fields).numa_topology.cells
    assert (first.page_size, first.thread_policy) == ('4', None)
    assert (second.page_size, second.thread_policy) == ('2048', 'require')


def pci(spec, **fields):
    request_ = thing('InstancePCIRequest', '1.4', count=1, spec=spec, **fields)
    return {
        'pci_requests': thing(
            'InstancePCIRequests', '1.1', requests=[request_]
        )
    }


def test_devices_are_described_without_what_placement_is_asked_for():
    parts = {'resource_class': 'CUSTOM_A', 'traits': 'B', 'rp_uuids': 'x'}
    found = translated(
        **pci([{'vendor_id': '1', **parts}], numa_policy='required')
    )
    (device,) = found.pci_requests
    assert device.alternatives == [{'vendor_id': '1'}]
    assert device.numa_policy == 'required'


def test_images_may_require_traits_and_have_cells():
    properties = thing(
        'ImageMetaProps',
        '1.44',
        traits_required=['CUSTOM_A'],
        hw_numa_cpus=[[0, 1], [2]],
        hw_numa_mem=[512, 256],
        hw_firmware_stateless=True,
        hw_firmware_type='uefi',
        os_secure_boot='required',
        hw_disk_bus=None,
    )
    image = thing('ImageMeta', '1.8', properties=properties)
    found = translated(image=image)
    assert found.image_properties == {
        'trait:CUSTOM_A': 'required',
        'hw_numa_cpus.0': '0,1',
        'hw_numa_cpus.1': '2',
        'hw_numa_mem.0': 512,
        'hw_numa_mem.1': 256,
        'hw_firmware_stateless': True,
        'hw_firmware_type': 'uefi',
        'os_secure_boot': 'required',
    }
    assert found.required_traits == {
        'CUSTOM_A',
        'COMPUTE_SECURITY_STATELESS_FIRMWARE',
        'COMPUTE_SECURITY_UEFI_SECURE_BOOT',
    }


def test_features_of_the_flavor_need_traits():
    specs = {
        'hw:tpm_version': '2.0',
        'hw:tpm_model': 'tpm-crb',
        'hw:maxphysaddr_mode': 'emulate',
        'hw:mem_encryption': 'True',
        'hw:mem_encryption_model': 'amd-sev-es',
    }
    found = translated(flavor=flavor(extra_specs=specs))
    assert found.required_traits == {
        'COMPUTE_SECURITY_TPM_2_0',
        'COMPUTE_SECURITY_TPM_CRB',
        'COMPUTE_ADDRESS_SPACE_EMULATED',
        'HW_CPU_X86_AMD_SEV_ES',
    }


def test_a_request_of_the_first_release_that_is_served_is_read():
    """Its objects have none of the fields that were added later."""
    cell_ = thing(
        'InstanceNUMACell', '1.4', id=0, cpuset=[0, 1], memory=2048,
        pagesize=None, cpu_policy='dedicated', cpu_thread_policy='require',
        cpu_pinning_raw=None, cpuset_reserved=None,
    )  # fmt: skip
    device = thing(
        'InstancePCIRequest', '1.1', count=1, alias_name='nic', is_new=False,
        request_id=AGGREGATE, spec=[{'vendor_id': '8086'}],
    )  # fmt: skip
    made = translation.translate(
        thing(
            'RequestSpec',
            '1.8',
            flavor=thing(
                'Flavor', '1.1', vcpus=2, memory_mb=2048, root_gb=20,
                ephemeral_gb=1, swap=512, flavorid='1', extra_specs={},
            ),
            image=thing(
                'ImageMeta', '1.8', disk_format='raw',
                properties=thing(
                    'ImageMetaProps', '1.17', hw_firmware_type='uefi'
                ),
            ),
            project_id='p',
            availability_zone='west',
            num_instances=1,
            numa_topology=thing(
                'InstanceNUMATopology', '1.3', cells=[cell_],
                emulator_threads_policy=None,
            ),
            pci_requests=thing('InstancePCIRequests', '1.1',
                               requests=[device]),
            requested_destination=thing('Destination', '1.0', host='h'),
            instance_group=thing(
                'InstanceGroup', '1.10', uuid=AGGREGATE, name='g',
                project_id='p', policies=['affinity'], members=[], hosts=['h'],
            ),
            retry=thing('SchedulerRetries', '1.1', num_attempts=1, hosts=thing(
                'ComputeNodeList', '1.17', objects=[],
            )),
            limits=thing('SchedulerLimits', '1.0'),
            ignore_hosts=None, force_hosts=None, force_nodes=None,
            scheduler_hints={},
        ),
        [UUID],
        CONTEXT,
    )  # fmt: skip
    found = made.request
    assert found.resources == {'PCPU': 2, 'MEMORY_MB': 2048, 'DISK_GB': 22}
    assert found.required_traits == {'HW_CPU_HYPERTHREADING'}
    assert found.guest.cells == (GuestCell(0, 2, 2048, 'require'),)
    assert [one.numa_policy for one in found.pci_requests] == ['legacy']
    assert found.requested_destination.host == 'h'
    assert found.availability_zone == 'west'
    assert found.user_id == CONTEXT['user_id']
    assert (found.group_hosts, made.group.policy) == (['h'], 'affinity')
    assert not found.provider_groups


def test_a_trait_cannot_be_required_and_forbidden():
    params = thing(
        'RequestLevelParams', '1.1', root_required=['A'], root_forbidden=['A']
    )
    assert refusal(request_level_params=params).facts['at'] == (
        'request_level_params'
    )


def group(**fields):
    uuid = '1cbce090-58db-43ab-acf3-fb4db2d9117a'
    return {
        'instance_group': thing('InstanceGroup', '1.11', uuid=uuid, **fields)
    }


@pytest.mark.parametrize(
    ('fields', 'expected'),
    [
        ({'policy': 'affinity'}, 'affinity'),
        ({'policies': ['soft-affinity']}, 'soft-affinity'),
        ({}, None),
    ],
)
def test_a_group_comes_with_its_policy_or_is_known_already(fields, expected):
    made = translation.translate(spec(**group(**fields)), [UUID], CONTEXT)
    assert made.request.instance_group
    assert (made.group and made.group.policy) == expected


@pytest.mark.parametrize(
    ('fields', 'place'),
    [
        ({'policy': 'nonsense'}, 'policy'),
        (
            {
                'policy': 'anti-affinity',
                '_rules': {'max_server_per_host': 'x'},
            },
            'instance_group.rules.max_server_per_host',
        ),
    ],
)
def test_a_group_with_an_unknown_policy_or_rule_is_refused(fields, place):
    assert refusal(**group(**fields)).facts['at'] == place


def test_hints_are_lists():
    found = translated(scheduler_hints={'a': 'x', 'b': ['y', 'z'], 'c': None})
    assert found.scheduler_hints == {'a': ['x'], 'b': ['y', 'z']}
