"""A shadow beside nova-scheduler of the index, on requests of a mix."""

from __future__ import annotations

import contextlib
import copy
import random
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support import nova_wire
from tests.support.nova_cloud import NovaCloud
from tests.support.nova_databases import NovaDatabases, utc_now
from tests.support.placement_service import placement_service
from tests.support.shadows import Both
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.db]
REQUESTS = 100


@pytest.fixture
def both(mariadb, rabbitmq, make_store, tmp_path):
    """nova-scheduler, without anything that would build a server."""
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(placement_service(mariadb[1]))
        databases = NovaDatabases(mariadb[1])
        stack.callback(databases.close)
        made = Both(databases, service, make_store, rabbitmq, 'scheduler')
        stack.callback(made.close)
        databases.reset()
        made.map_cell0()
        # It counts builds of its own as I/O operations until a host reports.
        options = '[filter_scheduler]\nio_ops_weight_multiplier = 0\n'
        cloud = NovaCloud(
            tmp_path, databases, made.url, service, 'http://-', options
        )
        stack.callback(cloud.stop)
        for number in range(12):
            made.add_host(64, 131072 - number, 1000)
        stack.enter_context(cloud.scheduler())
        yield made


def report(both):
    """Have all hosts report once more."""
    both.cloud.update(
        both.cloud.cells[0], 'services', {'deleted': 0},
        last_seen_up=utc_now(),
    )  # fmt: skip


def request(rng):
    """Return the uuids and the RequestSpec of a request of a mix."""
    spec = copy.deepcopy(nova_wire.sent('simple')['args']['spec_obj'])
    data = spec['nova_object.data']
    uuids = [str(uuid.uuid4()) for _ in range(rng.choice([1, 1, 1, 1, 3]))]
    flavor = data['flavor']['nova_object.data']
    flavor |= {
        'vcpus': rng.choice([1, 1, 2, 4]),
        'memory_mb': rng.choice([512, 1024, 4096]),
        'root_gb': rng.choice([1, 10]),
        'extra_specs': {},
    }
    kind = rng.random()
    if kind < 0.1:
        flavor['vcpus'] = 1000
    elif kind < 0.2:
        flavor['extra_specs'] = {'capabilities:hypervisor_type': 'none'}
    data |= {'instance_uuid': uuids[0], 'num_instances': len(uuids)}
    return uuids, spec


def counted(both):
    """Return how many requests the shadow has compared."""
    counters = both.shadow.scheduler.health.counters()
    return sum(counters.get('shadow_verdicts', {}).values())


def test_both_agree_on_what_comes_one_after_the_other(both):
    both.start_shadow(filter_scheduler__io_ops_weight_multiplier=0.0)
    rng = random.Random(63)
    for number in range(REQUESTS):
        if number % 10 == 0:
            report(both)
        uuids, spec = request(rng)
        flavor = spec['nova_object.data']['flavor']['nova_object.data']
        hosts = both.ask(uuids, spec=spec)
        wait_until(lambda: counted(both) > number)  # noqa: B023
        # That scheduler knows of the last one by what its host reports.
        for instance, host in zip(uuids, hosts, strict=False):
            both.build(instance, host, flavor)
    found = both.wait_for(REQUESTS)
    print(both.report()['summary'])
    same = found.get(('same', ''), 0) + found.get(('equal', ''), 0)
    # One may differ by what a host had reported a moment before.
    assert same >= 0.95 * REQUESTS, both.report()
    assert found.keys() - {('same', ''), ('equal', '')} <= {
        ('another', f'{name}Weigher') for name in ('CPU', 'Disk', 'RAM')
    }
    # Ten at a time: they are judged by refusals alone.
    with ThreadPoolExecutor(10) as threads:
        made = [request(rng) for _ in range(20)]
        [*threads.map(lambda each: both.ask(each[0], spec=each[1]), made)]
    found = both.wait_for(REQUESTS + len(made))
    print(both.report()['summary'])
    assert found['in flight', ''] > 0
    assert not {'refuses', 'places'} & {verdict for verdict, _ in found}
