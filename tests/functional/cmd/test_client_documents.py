"""Documents that clients of other services print, as they are."""

import json

import pytest

from tests.support.commands import printed_json

# Printed by openstackclient with version 2.53 of the compute API.
HYPERVISOR = """{
  "aggregates": ["rack-1"],
  "cpu_info": {"arch": "x86_64", "topology": {"cores": 8}},
  "current_workload": 0,
  "disk_available_least": null,
  "free_disk_gb": 90,
  "free_ram_mb": 30000,
  "host_ip": "192.0.2.7",
  "host_time": "10:00:00",
  "hypervisor_hostname": "compute-7.example.org",
  "hypervisor_type": "QEMU",
  "hypervisor_version": 8002002,
  "id": "0f8a3f30-5c0b-4c1b-9b43-0c0a7f7a5d7e",
  "load_average": "0.33, 0.36, 0.34",
  "local_gb": 100,
  "local_gb_used": 10,
  "memory_mb": 32768,
  "memory_mb_used": 2768,
  "running_vms": 2,
  "service_host": "compute-7",
  "service_id": "2a1b6a5e-7a0b-4c0c-8b0a-7f0b6a5e2a1b",
  "state": "up",
  "status": "disabled",
  "uptime": "5 days",
  "users": "3",
  "vcpus": 16,
  "vcpus_used": 4
}
"""
AGGREGATE = """{
  "availability_zone": "west",
  "created_at": "2026-01-01T00:00:00.000000",
  "deleted_at": null,
  "hosts": ["compute-7"],
  "id": 7,
  "is_deleted": false,
  "name": "rack-1",
  "properties": {"ssd": "true"},
  "updated_at": null,
  "uuid": "7f3d7f6e-6a0c-4c42-8d51-6f0b6a5e2a1b"
}
"""
FLAVOR = {
    'OS-FLV-DISABLED:disabled': False,
    'OS-FLV-EXT-DATA:ephemeral': 5,
    'access_project_ids': None,
    'description': None,
    'disk': 20,
    'id': '42',
    'name': 'm1.small',
    'os-flavor-access:is_public': True,
    'properties': {'capabilities:hypervisor_type': 'QEMU'},
    'ram': 2048,
    'rxtx_factor': 1.0,
    'swap': '',
    'vcpus': 3,
}
SERVERS = """\
  ns_records:
    - hostname: ns1.example.org.
      priority: 1
  nameservers:
    - {host: 192.0.2.2, port: 53}
  targets:
    - type: bind9
      masters: [{host: 192.0.2.1, port: 5354}]
      options: {host: 192.0.2.2, rndc_port: 953}
  also_notifies:
    - {host: 192.0.2.4, port: 53}
"""
POOLS = f"""---
- name: default
  description: Pool of all
{SERVERS}
- name: platinum
  id: cf2e8eab-76cd-4162-bf76-8aeee3556de0
  attributes: {{internal: true, tier: 1, city: Bern}}
{SERVERS}
- name: bare
  attributes:
{SERVERS}
"""


@pytest.fixture
def write(tmp_path):
    """Give a function that writes a text; it returns its path."""

    def make(text):
        path = tmp_path / 'printed'
        path.write_text(text)
        return str(path)

    return make


def exported(run):
    return printed_json(run('inventory', 'export', '-f', 'json'))


@pytest.mark.parametrize(
    'text',
    [HYPERVISOR + AGGREGATE, f'[{HYPERVISOR}, {AGGREGATE}]'],
    ids=['one after the other', 'list'],
)
def test_hypervisors_and_aggregates_are_imported(run, write, text):
    status, _, err = run('inventory', 'import', write(text))
    assert (status, err) == (0, '')
    found = exported(run)
    (host,) = [h for h in found['hosts'] if h['host'] == 'compute-7']
    wanted = {
        'host': 'compute-7',
        'hypervisor_hostname': 'compute-7.example.org',
        'uuid': '0f8a3f30-5c0b-4c1b-9b43-0c0a7f7a5d7e',
        'status': 'disabled',
        'vcpus': 16,
        'vcpus_used': 4,
        'memory_mb': 32768,
        'memory_mb_used': 2768,
        'local_gb': 100,
        'local_gb_used': 10,
        'num_instances': 2,
        'cpu_info': {'arch': 'x86_64', 'topology': {'cores': 8}},
        'hypervisor_type': 'QEMU',
        'hypervisor_version': 8002002,
        'host_ip': '192.0.2.7',
    }
    assert {name: host.get(name) for name in wanted} == wanted
    assert {
        'id': 7,
        'uuid': '7f3d7f6e-6a0c-4c42-8d51-6f0b6a5e2a1b',
        'name': 'rack-1',
        'hosts': ['compute-7'],
        'metadata': {'ssd': 'true', 'availability_zone': 'west'},
    } in found['aggregates']


def test_hypervisors_without_sizes_are_refused(run, write):
    # As in version 2.88 of the compute API.
    printed = json.loads(HYPERVISOR)
    for name in ('vcpus', 'memory_mb', 'local_gb', 'running_vms'):
        del printed[name]
    status, _, err = run('inventory', 'import', write(json.dumps(printed)))
    assert status == 1
    assert '--os-compute-api-version 2.87' in err
    assert 'vcpus, memory_mb, local_gb' in err


def test_the_first_key_that_is_there_twice_is_named(run, write):
    text = HYPERVISOR + AGGREGATE.replace('"id"', '"id": 1, "id"')
    status, _, err = run('inventory', 'check', write(text))
    assert status == 1
    assert '[1].id: is there twice' in err


def test_pools_of_a_dns_service_are_imported(run, write):
    path = write(POOLS)
    status, _, err = run('inventory', 'import', path)
    assert (status, err) == (0, '')
    stored = {pool['name']: pool for pool in exported(run)['pools']}
    default, named, bare = map(stored.get, ('default', 'platinum', 'bare'))
    assert default['id'] == '794ccc2c-d751-44fe-b57f-8894c9f5c842'
    assert default['description'] == 'Pool of all'
    assert named == {
        'id': 'cf2e8eab-76cd-4162-bf76-8aeee3556de0',
        'name': 'platinum',
        'attributes': {'internal': 'True', 'tier': '1', 'city': 'Bern'},
    }
    assert not bare.get('attributes')
    # The same file again is the same pools.
    assert run('inventory', 'diff', path)[0] == 0


def test_unknown_keys_of_pools_are_refused(run, write):
    text = POOLS.replace('attributes: {internal', 'atributes: {internal')
    status, _, err = run('inventory', 'check', write(text))
    assert status == 1
    assert 'pools[1].atributes: unknown key; is attributes meant?' in err


@pytest.mark.parametrize('verb', ['import', 'diff'])
def test_what_clients_print_does_not_replace_all(run, write, verb):
    status, _, err = run('inventory', verb, '--replace', write(POOLS))
    assert status == 2
    assert 'not the whole inventory' in err


def test_capacity_takes_a_flavor_as_it_is_printed(run, write):
    enabled = HYPERVISOR.replace('disabled', 'enabled')
    assert run('inventory', 'import', write(enabled))[0] == 0
    path = write(json.dumps(FLAVOR))
    rows = printed_json(
        run('capacity', '--flavor', path, '--by', 'host', '-f', 'json')
    )
    # 90 GB are free, and an instance takes 20 + 5. The others are no QEMU.
    assert [
        (row['host'], row['instances'], row['ends_first'])
        for row in rows
        if row['instances']
    ] == [('compute-7', 3, 'DISK_GB')]
    status, _, err = run('inventory', 'import', path)
    assert status == 1
    assert 'm1.small is a flavor' in err
