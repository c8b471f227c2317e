"""The plain rules of state, capacity and counts."""

from __future__ import annotations

from tests.support.filter_world import (
    asked_disk,
    figure,
    free_disk_mb,
    ratio,
    rule,
)


@rule('AllHostsFilter')
def all_hosts(world, host):
    return True


@rule('ComputeFilter')
def compute(world, host):
    return (
        host.get('status', 'enabled') == 'enabled'
        and host.get('state', 'up') == 'up'
    )


@rule('AvailabilityZoneFilter')
def zone(world, host):
    asked = world.request.get('availability_zone')
    if not asked:
        return True
    zones = world.metadata(host).get('availability_zone')
    return asked in (zones or {world.settings.default_availability_zone})


def core_with(world, host, factor):
    asked, total = world.flavor.get('vcpus', 0), figure(host, 'vcpus')
    if not total:
        return True
    return not total * factor - figure(host, 'vcpus_used') < asked


@rule('CoreFilter')
def core(world, host):
    return core_with(world, host, ratio(world, host, 'cpu_allocation_ratio'))


@rule('AggregateCoreFilter')
def aggregate_core(world, host):
    own = ratio(world, host, 'cpu_allocation_ratio')
    factor = world.number(host, 'cpu_allocation_ratio', own, float)
    return core_with(world, host, factor)


def ram_with(world, host, factor):
    total, used = figure(host, 'memory_mb'), figure(host, 'memory_mb_used')
    return total * factor - used >= world.flavor.get('memory_mb', 0)


@rule('RamFilter')
def ram(world, host):
    return ram_with(world, host, ratio(world, host, 'ram_allocation_ratio'))


@rule('AggregateRamFilter')
def aggregate_ram(world, host):
    own = ratio(world, host, 'ram_allocation_ratio')
    factor = world.number(host, 'ram_allocation_ratio', own, float)
    return ram_with(world, host, factor)


def disk_with(world, host, factor):
    total = figure(host, 'local_gb') * 1024
    used = total - free_disk_mb(host)
    return total * factor - used >= asked_disk(world)


@rule('DiskFilter')
def disk(world, host):
    return disk_with(world, host, ratio(world, host, 'disk_allocation_ratio'))


@rule('AggregateDiskFilter')
def aggregate_disk(world, host):
    own = ratio(world, host, 'disk_allocation_ratio')
    factor = world.number(host, 'disk_allocation_ratio', own, float)
    return disk_with(world, host, factor)


@rule('ExactCoreFilter')
def exact_core(world, host):
    total = figure(host, 'vcpus')
    free = total - figure(host, 'vcpus_used')
    return bool(total) and free == world.flavor.get('vcpus', 0)


@rule('ExactRamFilter')
def exact_ram(world, host):
    free = figure(host, 'memory_mb') - figure(host, 'memory_mb_used')
    return free == world.flavor.get('memory_mb', 0)


@rule('ExactDiskFilter')
def exact_disk(world, host):
    return free_disk_mb(host) == asked_disk(world)


@rule('RetryFilter')
def retry(world, host):
    tried = (world.request.get('retry') or {}).get('hosts', [])
    node = host.get('hypervisor_hostname', host['host'])
    return [host['host'], node] not in tried


@rule('IoOpsFilter')
def io_ops(world, host):
    return figure(host, 'num_io_ops') < world.settings.max_io_ops_per_host


@rule('AggregateIoOpsFilter')
def aggregate_io_ops(world, host):
    default = world.settings.max_io_ops_per_host
    most = world.number(host, 'max_io_ops_per_host', default, int)
    return figure(host, 'num_io_ops') < most


@rule('NumInstancesFilter')
def num_instances(world, host):
    return world.num_instances(host) < world.settings.max_instances_per_host


@rule('AggregateNumInstancesFilter')
def aggregate_num_instances(world, host):
    default = world.settings.max_instances_per_host
    most = world.number(host, 'max_instances_per_host', default, int)
    return world.num_instances(host) < most
