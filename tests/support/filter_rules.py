"""The rule of every built-in host filter, read for one host at a time.

Written from the rules, not from the filters: plain dicts and loops, to hold
the masks against.
"""

from __future__ import annotations

import ipaddress
import json

from scheduler_service import specops
from scheduler_service.filters import numa
from scheduler_service.model.image_properties import KNOWN
from tests.support import capacity_rules
from tests.support.filter_world import (
    RULES,
    World,
    figure,
    ratio,
    rule,
)

__all__ = ['RULES', 'World', 'capacity_rules']


@rule('AggregateInstanceExtraSpecsFilter')
def extra_specs(world, host):
    metadata = world.metadata(host)
    for key, asked in world.specs.items():
        scope, colon, name = key.partition(':')
        if colon and scope != 'aggregate_instance_extra_specs':
            continue
        values = metadata.get(name if colon else key)
        if values is None:
            return False
        if not any(specops.match(value, asked) for value in values):
            return False
    return True


@rule('AggregateMultiTenancyIsolation')
def tenants(world, host):
    allowed = set()
    for key, values in world.metadata(host).items():
        if key.startswith('filter_tenant_id'):
            allowed |= values
    return not allowed or world.request.get('project_id') in allowed


@rule('AggregateTypeAffinityFilter')
def aggregate_type(world, host):
    values = world.values(host, 'instance_type')
    names = {part.strip() for value in values for part in value.split(',')}
    return not values or world.flavor.get('name') in names


@rule('AggregateImagePropertiesIsolation')
def image_isolation(world, host):
    for key, values in world.metadata(host).items():
        value = world.properties.get(key)
        if key in KNOWN and value and str(value) not in values:
            return False
    return True


def alternatives(value):
    words = value.split()
    return words[1::2] if words and words[0] == '<or>' else [value]


def satisfied(asked, there, forced):
    wanted = alternatives(asked)
    if '!' in wanted:
        return there is None and '*' not in wanted and '~' not in wanted
    if there is None:
        return '~' in wanted
    if '*' in wanted:
        return True
    values = set(there)
    if forced:
        values = {one for value in there for one in alternatives(value)}
        if '*' in values:
            return True
    plain = [one for one in wanted if one not in ('*', '~')]
    return any(
        specops.match(value, one) or (forced and specops.match(one, value))
        for value in values
        for one in plain
    )


@rule('AggregateInstanceTypeFilter')
def instance_type(world, host):
    metadata = world.metadata(host)
    forced = 'True' in metadata.get('force_metadata_check', ())
    flavor = {}
    for key, asked in world.specs.items():
        scope, colon, name = key.partition(':')
        ours = colon and scope == 'aggregate_instance_extra_specs'
        key = name if ours else key
        flavor.setdefault(key, set()).add(asked)
        there = metadata.get(key)
        foreign = colon and not ours
        if foreign and there is None:
            wanted = alternatives(asked)
            if not forced and '*' in wanted and '~' not in wanted:
                return False
            continue
        if not satisfied(asked, there, forced):
            return False
    if not forced:
        return True
    for key, values in metadata.items():
        exempt = ('force_metadata_check', 'availability_zone')
        if key in exempt or key.startswith('filter_tenant_id'):
            continue
        wanted = [one for value in values for one in alternatives(value)]
        joined = '<or> ' + ' <or> '.join(wanted)
        if not satisfied(joined, flavor.get(key), True):
            return False
    return True


@rule('DifferentHostFilter')
def different_host(world, host):
    named = world.hint('different_host') or []
    named = [named] if isinstance(named, str) else named
    return not {one['uuid'] for one in world.instances(host)} & set(named)


@rule('SameHostFilter')
def same_host(world, host):
    named = world.hint('same_host')
    if not named:
        return True
    named = [named] if isinstance(named, str) else named
    return bool({one['uuid'] for one in world.instances(host)} & set(named))


def hinted(world):
    named = world.hint('group')
    members = [
        uuid
        for one in world.inventory.get('server_groups', [])
        if named in (one['uuid'], one['name'])
        for uuid in one['members']
    ]
    return world.hosts_of(members)


@rule('GroupAffinityFilter')
def group_affinity(world, host):
    hosts = hinted(world)
    return not hosts or host['host'] in hosts


@rule('GroupAntiAffinityFilter')
def group_anti_affinity(world, host):
    return host['host'] not in hinted(world)


@rule('ServerGroupAffinityFilter')
def server_affinity(world, host):
    group = world.group()
    if group is None or group['policy'] != 'affinity':
        return True
    hosts = world.hosts_of(group['members'])
    return not hosts or host['host'] in hosts


@rule('ServerGroupAntiAffinityFilter')
def server_anti_affinity(world, host):
    group = world.group()
    if group is None or group['policy'] != 'anti-affinity':
        return True
    most = group.get('rules', {}).get('max_server_per_host', 1)
    placed = world.request.get('instance_uuids', [None])[0]
    if placed in {one['uuid'] for one in world.instances(host)}:
        return True
    return world.members_on(host, group) < most


@rule('TypeAffinityFilter')
def type_affinity(world, host):
    return all(
        one.get('flavor', {}).get('flavorid') == world.flavor.get('flavorid')
        for one in world.instances(host)
    )


@rule('IsolatedHostsFilter')
def isolated(world, host):
    settings = world.settings
    alone = host['host'] in settings.isolated_hosts
    if world.image_id in settings.isolated_images:
        return alone
    restrict = settings.restrict_isolated_hosts_to_isolated_images
    return not (alone and restrict)


@rule('ImagePropertiesFilter')
def image_properties(world, host):
    names = ('hw_architecture', 'img_hv_type', 'hw_vm_mode')
    wanted = {world.properties.get(name) for name in names} - {None}
    if not wanted:
        return True
    return any(
        wanted <= set(entry) for entry in host.get('supported_instances', [])
    )


@rule('ComputeCapabilitiesFilter')
def capabilities(world, host):
    known = {
        'hypervisor_type': host.get('hypervisor_type'),
        'free_ram_mb': figure(host, 'memory_mb')
        - figure(host, 'memory_mb_used'),
        'num_io_ops': figure(host, 'num_io_ops'),
        'stats': host.get('stats', {}),
    }
    for key, asked in world.specs.items():
        steps = key.split(':')
        if len(steps) > 1 and steps[0] != 'capabilities':
            continue
        if len(steps) == 1 and not (
            steps[0] in known or steps[0] in known['stats']
        ):
            continue
        value = dict(known)
        for step in steps[1:] if len(steps) > 1 else steps:
            stats = value.get('stats') or {}
            value = value.get(step, stats.get(step))
            if not isinstance(value, dict):
                break
        if value is None or not specops.match(str(value), asked):
            return False
    return True


@rule('JsonFilter')
def json_query(world, host):
    text = world.hint('query')
    if not text:
        return True
    variables = {
        '$free_ram_mb': figure(host, 'memory_mb')
        - figure(host, 'memory_mb_used'),
        '$vcpus_used': figure(host, 'vcpus_used'),
        '$hypervisor_type': host.get('hypervisor_type'),
        '$num_io_ops': figure(host, 'num_io_ops'),
        '$host': host['host'],
        **{
            f'$stats.{key}': value
            for key, value in host.get('stats', {}).items()
        },
    }
    compare = {
        '=': lambda a, b: a == b,
        '<': lambda a, b: a < b,
        '>=': lambda a, b: a >= b,
    }

    def work(sign, args):
        if sign in ('and', 'or'):
            return all(args) if sign == 'and' else any(args)
        if sign == 'not':
            return [not arg for arg in args]
        if sign == 'in':
            return len(args) > 1 and args[0] in args[1:]
        return len(args) > 1 and all(
            compare[sign](args[0], one) for one in args[1:]
        )

    def evaluate(query):
        if not query:
            return True
        args = [
            evaluate(arg)
            if isinstance(arg, list)
            else variables.get(arg)
            if str(arg).startswith('$')
            else arg
            for arg in query[1:]
            if arg != ''
        ]
        return work(query[0], [a for a in args if a is not None])

    found = evaluate(json.loads(text))
    return any(found) if isinstance(found, list) else bool(found)


@rule('SimpleCIDRAffinityFilter')
def cidr(world, host):
    near = world.hint('build_near_host_ip')
    if not near:
        return True
    size = world.hints.get('cidr', '/24')
    network = ipaddress.ip_network(f'{near}{size}', strict=False)
    return ipaddress.ip_address(host['host_ip']) in network


@rule('MetricsFilter')
def metrics(world, host):
    names = {one['name'] for one in host.get('metrics', [])}
    wanted = [s.split('=')[0] for s in world.settings.metrics_weight_setting]
    return set(wanted) <= names


@rule('NUMATopologyFilter')
def numa_topology(world, host):
    nodes = world.specs.get('hw:numa_nodes')
    if nodes is None:
        return True
    topology = host.get('numa_topology')
    if not topology:
        return False
    count = int(nodes)
    cell = numa.GuestCell(
        world.flavor['vcpus'] // count, world.flavor['memory_mb'] // count
    )
    good = [
        one
        for one in topology['cells']
        if cell.cpus <= len(one['cpuset'])
        and one['cpu_usage'] + cell.cpus
        <= len(one['cpuset']) * ratio(world, host, 'cpu_allocation_ratio')
        and cell.memory <= one['memory']
        and one['memory_usage'] + cell.memory
        <= one['memory'] * ratio(world, host, 'ram_allocation_ratio')
    ]
    return len(good) >= count


@rule('PciPassthroughFilter')
def pci(world, host):
    asked = world.specs.get('pci_passthrough:alias')
    if not asked:
        return True
    count = int(asked.split(':')[1])
    free = sum(
        pool['count']
        for pool in host.get('pci_device_pools', [])
        if pool['vendor_id'] == '8086'
    )
    return free >= count
