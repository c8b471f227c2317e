"""Hosts and aggregates with values that nobody expects.

They are put into the table past the doors, as rows that an older release
stored, or a bug of another service.
"""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st

from scheduler_service.columns import HostTable, build_table
from scheduler_service.columns.build import placed
from scheduler_service.model import Aggregate, Host, Inventory

ODD = 'odd'
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(
        [
            0, -1, 7, 10**30, 1.5, 1e308, -1e308, '', 'abc', 'true', '4',
            '-1', '1e400', 'nan', 'inf', '{"bits": "x"}', '[' * 5000,
        ]
    ),
    st.text(max_size=3),
)  # fmt: skip
anything = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(['tier', 'rack', 'cells', 'bits', 'name', '']),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=4,
)


def _some_of(*names: str) -> st.SearchStrategy[Any]:
    """Return objects with some of the keys, and anything under them."""
    return st.fixed_dictionaries({}, optional=dict.fromkeys(names, anything))


pages = st.lists(_some_of('size_kb', 'total', 'used'), max_size=2)
cells = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(
            ('cpuset', 'pcpuset', 'pinned_cpus', 'siblings', 'cpu_usage',
             'memory', 'memory_usage'),
            anything,
        ),
        'mempages': st.one_of(pages, anything),
    },
)  # fmt: skip
topologies = st.fixed_dictionaries(
    {'cells': st.one_of(anything, st.lists(cells, max_size=3))}
)
pools = st.lists(
    _some_of('count', 'tags', 'dev_type', 'vendor_id', 'remote_managed'),
    max_size=2,
)
cpus = st.fixed_dictionaries(
    {'maxphysaddr': st.one_of(anything, _some_of('bits'))}
)
metrics = st.lists(
    st.fixed_dictionaries({'name': st.just('load'), 'value': anything}),
    max_size=2,
)


@st.composite
def odd_hosts(draw: Any) -> Host:
    """A host of which everything free-form is odd, and some numbers huge."""

    def either(one: st.SearchStrategy[Any]) -> Any:
        return draw(st.one_of(one, anything))

    huge = st.sampled_from([0, 1, 2**53])
    return Host(
        host=ODD,
        vcpus=draw(huge),
        vcpus_used=draw(huge),
        memory_mb=draw(huge),
        memory_mb_used=draw(huge),
        local_gb=draw(huge),
        local_gb_used=draw(huge),
        disk_available_least=draw(st.sampled_from([None, -(2**53), 2**53])),
        cpu_allocation_ratio=draw(st.sampled_from([None, 0.0, 1e9])),
        hypervisor_type=draw(st.one_of(st.none(), st.text(max_size=3))),
        hypervisor_version=draw(st.sampled_from([None, -1, 0, 2**53])),
        host_ip=draw(st.sampled_from([None, '', 'x', 'fe80::1%eth0', '::'])),
        supported_instances=either(st.lists(anything, max_size=2)),
        cpu_info=either(cpus),
        stats=either(_some_of('tier', 'rack')),
        metrics=either(metrics),
        numa_topology=either(topologies),
        pci_device_pools=either(pools),
        num_io_ops=draw(huge),
        failed_builds=draw(huge),
        num_instances=draw(huge),
    )


odd_numbers = st.sampled_from(
    ['inf', '-inf', 'nan', '1e308', '-1e308', '9' * 400, '', 'x', '>= 2']
)  # fmt: skip
odd_texts = st.one_of(odd_numbers, st.sampled_from(['>= x', '<or>', '!', ',']))
odd_metadata = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(
            (
                'cpu_allocation_ratio', 'ram_allocation_ratio',
                'disk_allocation_ratio', 'max_io_ops_per_host',
                'max_instances_per_host', 'ram_weight_multiplier',
                'cpu_weight_multiplier', 'metrics_weight_multiplier',
                'pci_weight_multiplier', 'io_ops_weight_multiplier',
            ),
            odd_numbers,
        ),
        **dict.fromkeys(
            (
                'availability_zone', 'ssd', 'key', 'hw:cpu_policy',
                'instance_type', 'filter_tenant_id', 'os_distro',
            ),
            odd_texts,
        ),
        'force_metadata_check': st.just('True'),
    },
)  # fmt: skip


def unchecked_table(document: dict[str, Any], *odd: Any) -> HostTable:
    """Return the table of an inventory, past the doors.

    :param odd: a host, and the metadata of an aggregate of that host alone
    """
    inventory = msgspec.convert(document, Inventory)
    hosts, aggregates = inventory.hosts, inventory.aggregates
    if odd:
        host, metadata = odd
        hosts = [*hosts, host]
        alone = Aggregate(id=999, hosts=[host.host], metadata=metadata)
        aggregates = [*aggregates, alone]
    return build_table(
        list(enumerate(hosts)),
        aggregates,
        [placed(instance) for instance in inventory.instances],
        inventory.server_groups,
    )
