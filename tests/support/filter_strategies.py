"""Random inventories and requests that give every host filter work."""

from __future__ import annotations

import json
import uuid

from hypothesis import strategies as st

from scheduler_service.settings import Settings

SETTINGS = Settings(
    isolated_hosts=('h0', 'h3'),
    isolated_images=('image-1',),
    metrics_weight_setting=('load=1.0',),
    resource_weight_setting=('VCPU=1.0', 'MEMORY_MB=-0.5', 'CUSTOM_NONE=2.0'),
    max_io_ops_per_host=4,
    max_instances_per_host=2,
    pci_aliases=('{"name": "nic", "vendor_id": "8086"}',),
)
INSTANCES = [str(uuid.UUID(int=number + 1)) for number in range(6)]
GROUP = str(uuid.UUID(int=99))
small = st.integers(0, 12)
maybe_ratio = st.sampled_from([None, 0.0, 0.5, 1.0, 2.0])
numbers = st.sampled_from(['1', '2', '10', ' 3 ', 'x', '', '1.5', '4,5'])
words = st.sampled_from(['true', 'false', 'a,b', 'ssd', '', '5', '*', 'x'])
requirements = st.sampled_from(
    ['true', 's== ssd', 's!= true', '<or> a <or> ssd', '<in> s', 'a', '5']
)
sentinels = st.sampled_from(
    ['*', '~', '!', '<or> a <or> ~', '<or> * <or> ~', 'a', '<or> a <or> b']
)
cells = st.fixed_dictionaries(
    {
        'cpuset': st.lists(st.integers(0, 7), unique=True, max_size=6),
        'cpu_usage': small,
        'memory': st.sampled_from([0, 256, 512]),
        'memory_usage': st.sampled_from([0, 128, 512]),
    }
)


def host(number):
    return st.fixed_dictionaries(
        {
            'host': st.just(f'h{number}'),
            'status': st.sampled_from(['enabled', 'disabled']),
            'state': st.sampled_from(['up', 'down']),
            'vcpus': small,
            'vcpus_used': small,
            'memory_mb': st.sampled_from([0, 512, 1024]),
            'memory_mb_used': st.sampled_from([0, 256, 512, 2000]),
            'local_gb': small,
            'local_gb_used': small,
            'disk_available_least': st.one_of(st.none(), st.integers(-3, 12)),
            'cpu_allocation_ratio': maybe_ratio,
            'ram_allocation_ratio': maybe_ratio,
            'disk_allocation_ratio': maybe_ratio,
            'hypervisor_type': st.sampled_from(['QEMU', 'KVM', None]),
            'host_ip': st.sampled_from(
                ['10.0.0.1', '10.0.1.1', '192.168.0.9', 'fd00::5']
            ),
            'supported_instances': st.lists(
                st.sampled_from(
                    [['x86_64', 'kvm', 'hvm'], ['aarch64', 'qemu', 'hvm']]
                ),
                max_size=2,
            ),
            'stats': st.dictionaries(
                st.sampled_from(['tier', 'rack']), words, max_size=2
            ),
            'metrics': st.lists(
                st.sampled_from([{'name': 'load'}, {'name': 'heat'}]),
                max_size=2,
            ),
            'num_io_ops': small,
            'num_instances': st.one_of(st.none(), small),
            'numa_topology': st.one_of(
                st.none(),
                st.fixed_dictionaries({'cells': st.lists(cells, max_size=3)}),
            ),
            'pci_device_pools': st.lists(
                st.fixed_dictionaries(
                    {
                        'vendor_id': st.sampled_from(['8086', '10de']),
                        'count': small,
                    }
                ),
                max_size=2,
            ),
        }
    )


hosts = st.tuples(*(host(number) for number in range(5))).map(list)
metadata = st.fixed_dictionaries(
    {},
    optional={
        'availability_zone': st.sampled_from(['z1', 'z2', 'z1,z2', '']),
        'cpu_allocation_ratio': numbers,
        'ram_allocation_ratio': numbers,
        'disk_allocation_ratio': numbers,
        'max_io_ops_per_host': numbers,
        'max_instances_per_host': numbers,
        'ssd': words,
        'key': sentinels,
        'hw:cpu_policy': words,
        'force_metadata_check': st.sampled_from(['True', 'False', 'true']),
        'filter_tenant_id': st.sampled_from(['p1', 'p1, p2', '']),
        'filter_tenant_id2': st.just('p3'),
        'instance_type': st.sampled_from(['m1', 'm1,m2', '']),
        'os_distro': words,
    },
)
aggregates = st.lists(
    st.tuples(
        st.lists(st.sampled_from([f'h{n}' for n in range(5)]), unique=True),
        metadata,
    ),
    max_size=3,
).map(
    lambda many: [
        {'id': n + 1, 'hosts': names, 'metadata': pairs}
        for n, (names, pairs) in enumerate(many)
    ]
)
instances = st.lists(
    st.tuples(
        st.sampled_from(INSTANCES),
        st.sampled_from([f'h{n}' for n in range(5)]),
        st.sampled_from(['1', '2']),
    ),
    max_size=5,
    unique_by=lambda one: one[0],
).map(
    lambda many: [
        {'uuid': one, 'host': name, 'flavor': {'flavorid': flavor}}
        for one, name, flavor in many
    ]
)
groups = st.fixed_dictionaries(
    {
        'uuid': st.just(GROUP),
        'name': st.just('web'),
        'policy': st.sampled_from(['affinity', 'anti-affinity']),
        'rules': st.sampled_from([{}, {'max_server_per_host': 2}]),
        'members': st.lists(st.sampled_from(INSTANCES), unique=True),
    }
).map(lambda one: [one])
specs = st.one_of(
    st.dictionaries(
        st.sampled_from(
            ['ssd', 'aggregate_instance_extra_specs:ssd', 'other:ssd']
        ),
        requirements,
    ),
    st.dictionaries(
        st.sampled_from(
            ['key', 'aggregate_instance_extra_specs:key', 'hw:cpu_policy']
        ),
        sentinels,
    ),
    st.dictionaries(
        st.sampled_from(
            [
                'capabilities:hypervisor_type',
                'tier',
                'capabilities:tier',
                'capabilities:rack',
                'capabilities:stats:tier',
                'capabilities:nothing',
            ]
        ),
        requirements,
    ),
    st.just({'capabilities:free_ram_mb': '>= 256'}),
    st.sampled_from(['512', ' 512', '<or> 0 <or> 3', 's== 3', '<in> 1']).map(
        lambda text: {'capabilities:num_io_ops': text}
    ),
    st.just({'hw:numa_nodes': '2'}),
    st.sampled_from(['nic:1', 'nic:9']).map(
        lambda text: {'pci_passthrough:alias': text}
    ),
)
queries = st.sampled_from(
    [
        ['>=', '$free_ram_mb', 256],
        ['<', '$free_ram_mb', 1024, 512],
        ['and', ['>=', '$vcpus_used', 2], ['<', '$free_ram_mb', 900]],
        ['or', ['=', '$vcpus_used', 1], ['=', '$hypervisor_type', 'KVM']],
        ['not', ['>=', '$free_ram_mb', 256]],
        ['not', ['=', '$hypervisor_type', 'KVM'], ['<', '$vcpus_used', 3]],
        ['and', ['not', ['=', '$vcpus_used', 1]]],
        ['in', '$vcpus_used', 1, 2, 3],
        ['=', '$unknown', 1],
        ['in', '$stats.tier', 'ssd', 'x'],
        ['and', ['=', '$stats.rack', 'x'], ['<', '$vcpus_used', 3]],
        ['=', '$vcpus_used', '3'],
        ['or', ['=', '$host', 'h1'], ['=', '$stats.tier', '$stats.rack']],
        ['=', '$hypervisor_type', '$stats.tier'],
        ['<', '$num_io_ops', '$vcpus_used'],
        ['and', [], ['=', '$vcpus_used', '$vcpus_used']],
        [],
    ]
).map(json.dumps)
hints = st.fixed_dictionaries(
    {},
    optional={
        'different_host': st.one_of(
            st.sampled_from(INSTANCES),
            st.lists(st.sampled_from(INSTANCES), max_size=3),
        ),
        'same_host': st.lists(st.sampled_from(INSTANCES), max_size=3),
        'group': st.sampled_from(['web', GROUP, 'nobody']),
        'query': queries,
        'build_near_host_ip': st.sampled_from(['10.0.0.9', 'fd00::1']),
        'cidr': st.sampled_from(['/24', '/16', '/8', '/0']),
    },
)
requests = st.fixed_dictionaries(
    {
        'project_id': st.sampled_from(['p1', 'p2', 'p3', 'p9']),
        'instance_uuids': st.sampled_from(INSTANCES).map(lambda one: [one]),
        'availability_zone': st.sampled_from([None, 'z1', 'z2', 'nova']),
        'instance_group': st.sampled_from([None, GROUP]),
        'flavor': st.fixed_dictionaries(
            {
                'flavorid': st.sampled_from(['1', '2']),
                'name': st.sampled_from(['m1', 'm2', 'm3']),
                'vcpus': st.sampled_from([0, 2, 4]),
                'memory_mb': st.sampled_from([0, 256, 512]),
                'root_gb': st.integers(0, 4),
                'swap': st.sampled_from([0, 1, 1024]),
                'extra_specs': specs,
            }
        ),
        'image': st.fixed_dictionaries(
            {
                'id': st.sampled_from([None, 'image-1', 'image-2']),
                'properties': st.fixed_dictionaries(
                    {},
                    optional={
                        'hw_architecture': st.sampled_from(
                            ['x86_64', 'aarch64']
                        ),
                        'img_hv_type': st.sampled_from(['kvm', 'qemu']),
                        'os_distro': words,
                    },
                ),
            }
        ),
        'scheduler_hints': hints,
        'retry': st.one_of(
            st.none(),
            st.just({'hosts': [['h1', 'h1'], ['h2', 'other']]}),
        ),
    }
)
inventories = st.fixed_dictionaries(
    {
        'hosts': hosts,
        'aggregates': aggregates,
        'instances': instances,
        'server_groups': groups,
    }
)
