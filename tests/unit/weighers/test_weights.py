"""Raw weights by a column of hosts, and by members of a server group."""

import pytest

from scheduler_service.settings import Settings
from scheduler_service.weighers.affinity_weigher import (
    ServerGroupSoftAffinityWeigher,
    ServerGroupSoftAntiAffinityWeigher,
)
from scheduler_service.weighers.host_weigher import (
    BuildFailureWeigher,
    HypervisorVersionWeigher,
    PCIWeigher,
)
from scheduler_service.weighers.load_weigher import (
    CPUWeigher,
    DiskWeigher,
    IoOpsWeigher,
    NumInstancesWeigher,
    RAMWeigher,
    ResourceWeigher,
)
from tests.support.plugins import (
    GROUP,
    instance,
    inventory,
    raw_weights,
    server_group,
)

SOFT = pytest.mark.parametrize(
    ('weigher', 'policy', 'sign'),
    [
        (ServerGroupSoftAffinityWeigher(), 'soft-affinity', 1),
        (ServerGroupSoftAntiAffinityWeigher(), 'soft-anti-affinity', -1),
    ],
)
PLACED = (instance(1, 'a'), instance(2, 'a'), instance(3, 'b'))


@pytest.mark.parametrize(
    ('weigher', 'host', 'weight'),
    [
        (BuildFailureWeigher(), {'failed_builds': 2}, 2),
        (BuildFailureWeigher(), {}, 0),
        (IoOpsWeigher(), {'num_io_ops': 2}, 2),
        (IoOpsWeigher(), {}, 0),
        (NumInstancesWeigher(), {'num_instances': 3}, 3),
        # Instances are counted where a host does not report their number.
        (NumInstancesWeigher(), {}, 2),
        (HypervisorVersionWeigher(), {'hypervisor_version': 8002000}, 8002000),
        (HypervisorVersionWeigher(), {}, 0),
        # Fewer devices are better; more than 99 count as 99.
        *(
            (PCIWeigher(), {'pci_device_pools': pools}, weight)
            for pools, weight in (
                ([], 100),
                ([{'count': 0}], 100),
                ([{'count': 3}], 97),
                ([{'count': 3}, {'count': 2}], 95),
                ([{'count': 99}], 1),
                ([{'count': 60}, {'count': 60}], 1),
            )
        ),
        (RAMWeigher(), {'memory_mb': 512}, 512),
        (RAMWeigher(), {'memory_mb': 1024, 'memory_mb_used': 1000}, 24),
        (RAMWeigher(), {}, 0),
        # The allocation ratio does not count.
        (RAMWeigher(), {'memory_mb': 512, 'ram_allocation_ratio': 2.0}, 512),
        # A negative amount counts as zero.
        (RAMWeigher(), {'memory_mb': 512, 'memory_mb_used': 612}, 0),
        (DiskWeigher(), {'local_gb': 2}, 2048),
        (DiskWeigher(), {'local_gb': 2, 'local_gb_used': 1}, 1024),
        (DiskWeigher(), {}, 0),
        # disk_available_least counts where it is less.
        (DiskWeigher(), {'local_gb': 4, 'disk_available_least': 1}, 1024),
        (
            DiskWeigher(),
            {'local_gb': 4, 'local_gb_used': 2, 'disk_available_least': 3},
            2048,
        ),
        (DiskWeigher(), {'local_gb': 1, 'disk_available_least': -1}, 0),
        (
            CPUWeigher(),
            {'vcpus': 4, 'vcpus_used': 3, 'cpu_allocation_ratio': 1.5},
            3,
        ),
        (CPUWeigher(), {'vcpus': 4, 'vcpus_used': 3}, 5),
        (CPUWeigher(), {}, 0),
        (
            CPUWeigher(),
            {'vcpus': 1, 'vcpus_used': 3, 'cpu_allocation_ratio': 1.0},
            0,
        ),
    ],
)
def test_the_weight_of_a_host(weigher, host, weight):
    document = inventory(a=host, instances=PLACED[:2])
    weights = raw_weights(weigher, document, cpu_allocation_ratio=2.0)
    assert weights == {'a': weight}


def weights_of_resources(*setting, **host):
    document = inventory(a=host, b={'resources': {'VGPU': {'total': 9}}})
    weights = raw_weights(
        ResourceWeigher(), document, resource_weight_setting=setting
    )
    return weights['a']


def test_free_amounts_of_the_classes_are_summed_up_with_their_ratios():
    vgpu = {'total': 8, 'reserved': 1, 'used': 2, 'allocation_ratio': 2.0}
    host = {'vcpus': 4, 'vcpus_used': 1, 'resources': {'VGPU': vgpu}}
    # (8 - 1) x 2 - 2 of the one, and 4 x 16 - 1 of the other.
    assert weights_of_resources('VGPU=-1', **host) == -12
    assert weights_of_resources('VGPU=-1', 'VCPU=0.5', **host) == 19.5


@pytest.mark.parametrize(
    'host', [{}, {'resources': {'VGPU': {'total': 2, 'used': 5}}}]
)
def test_a_class_without_a_free_amount_adds_nothing(host):
    assert weights_of_resources('VGPU=-1', 'CUSTOM_NONE=1', **host) == 0


def test_no_class_is_weighed_by_default():
    assert ResourceWeigher().multiplier(Settings()) == 0.0
    weighed = Settings(resource_weight_setting=('VGPU=-1',))
    assert ResourceWeigher().multiplier(weighed) == 1.0


@pytest.mark.parametrize(
    ('weigher', 'sign', 'multiplier'),
    [
        # Failures count against a host, and fewer operations are better.
        (BuildFailureWeigher(), -1.0, 1_000_000.0),
        (IoOpsWeigher(), 1.0, -1.0),
        (NumInstancesWeigher(), 1.0, 0.0),
    ],
)
def test_the_multiplier_by_default(weigher, sign, multiplier):
    assert weigher.sign == sign
    assert weigher.multiplier(Settings()) == multiplier


def weights_with(weigher, *groups, request):
    document = inventory(a={}, b={}, c={}, instances=PLACED, groups=groups)
    return raw_weights(weigher, document, request)


@SOFT
def test_the_weight_is_the_number_of_members(weigher, policy, sign):
    group = server_group(policy, 1, 2, 3, 9)
    weights = weights_with(weigher, group, request={'instance_group': GROUP})
    assert weights == {'a': 2 * sign, 'b': sign, 'c': 0}


@SOFT
def test_there_is_no_opinion_on_other_policies(weigher, policy, sign):
    request = {'instance_group': GROUP}
    policies = {
        'affinity',
        'anti-affinity',
        'soft-affinity',
        'soft-anti-affinity',
    }
    for other in policies - {policy}:
        group = server_group(other, 1)
        assert weights_with(weigher, group, request=request) is None


@SOFT
def test_there_is_no_opinion_without_a_group(weigher, policy, sign):
    group = server_group(policy, 1)
    assert weights_with(weigher, group, request={}) is None
    request = {'instance_group': GROUP}
    assert weights_with(weigher, request=request) is None
