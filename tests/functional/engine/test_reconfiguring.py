"""A daemon in this process that takes other options while it decides."""

from __future__ import annotations

import contextlib
import json
import threading

import pytest

from scheduler_service import errors
from tests.support import extenders
from tests.support.documents import CONTEXT
from tests.support.extenders import entry, pass_only
from tests.support.http_client import HttpClient
from tests.support.servers import free_port
from tests.support.services import hosts_of, reconfigure
from tests.support.waiting import LIMIT_S

LIMITS = {
    'scheduler__batch_size': 3,
    'scheduler__snapshot_max_age': 9.0,
    'scheduler__decisions_kept': 11,
    'scheduler__service_down_time': 17.0,
    'scheduler__claim_timeout': 19.0,
    'scheduler__outcome_retention': 99.0,
}


def test_limits_and_timeouts_are_taken(make_service):
    service = make_service()
    scheduler = service.daemon.scheduler
    old = scheduler._store.timeouts
    reconfigure(service, database__lock_timeout=1.5, **LIMITS)
    assert scheduler._store.timeouts != old
    assert scheduler._store.timeouts.lock == 1.5
    for part in (
        scheduler._loop,
        scheduler._source,
        scheduler.recorder,
        scheduler.outcomes,
        scheduler.host_state_writer,
    ):
        assert part._options is scheduler._options
    for name, value in LIMITS.items():
        option = name.removeprefix('scheduler__')
        assert getattr(scheduler._options, option) == value
    assert service.select_hosts() == ['compute-4']


@pytest.mark.db
@pytest.mark.parametrize('database', ['postgresql', 'mariadb'])
def test_connections_get_the_new_time_limits(make_service, database):
    service = make_service(database=database)
    service.select_hosts()
    reconfigure(service, database__lock_timeout=2.0)
    with service.daemon.store.reading() as conn:
        query = {
            'postgresql': 'SHOW lock_timeout',
            'mariadb': 'SELECT @@innodb_lock_wait_timeout',
        }[database]
        assert str(conn.exec_driver_sql(query).scalar()) in ('2s', '2')
    # The engine's own connections are made anew, too.
    assert len(service.select_hosts()) == 1


def test_what_was_worked_out_by_other_ratios_is_forgotten(make_service):
    hosts = [{'host': 'a', 'vcpus': 4, 'memory_mb': 1000, 'local_gb': 10}]
    service = make_service(inventory={'hosts': hosts})
    wide = {'vcpus': 4, 'memory_mb': 1200}
    for _ in range(2):
        client = service.client
        why = client.explain(CONTEXT, {'flavor': wide})
        assert len(why['placements']) == 1
        reconfigure(service, ram_allocation_ratio=1.0)
        why = client.explain(CONTEXT, {'flavor': wide})
        assert why['error']['name'] == 'NoValidHost'
        with pytest.raises(errors.NoValidHost):
            client.select_destinations(CONTEXT, {'flavor': wide})
        reconfigure(service)
    answer = client.select_destinations(CONTEXT, {'flavor': wide})
    assert hosts_of(answer) == ['a']


def test_pool_filters_and_the_default_pool_are_taken(make_service):
    gold = '11111111-0000-4000-8000-000000000001'
    service = make_service()
    zone = {'name': 'a.', 'attributes': {'l': 'gold'}}
    client = service.client
    assert client.schedule_zone(CONTEXT, zone, keep=False)['pool_id'] != gold
    reconfigure(service, pool_scheduler__scheduler_filters=['attribute'])
    assert client.schedule_zone(CONTEXT, zone, keep=False)['pool_id'] == gold


def test_a_policy_is_taken(make_service, tmp_path):
    path = tmp_path / 'policy.yaml'
    path.write_text('"ping": "!"\n')
    service = make_service()
    service.client.ping(CONTEXT)
    reconfigure(service, oslo_policy__policy_file=str(path))
    with pytest.raises(errors.Forbidden):
        service.client.ping(CONTEXT)


def test_extenders_are_exchanged_while_one_is_asked(make_service, tmp_path):
    waiting, go_on = threading.Event(), threading.Event()

    def wait_first(verb, asked):
        waiting.set()
        go_on.wait(LIMIT_S)
        return pass_only('compute-1')(verb, asked)

    def policy(server):
        path = tmp_path / f'{server.port}.json'
        document = {
            'apiVersion': 'kubescheduler.config.k8s.io/v1',
            'kind': 'KubeSchedulerConfiguration',
            'extenders': [entry(server)],
        }
        path.write_text(json.dumps(document))
        return str(path)

    with (
        extenders.extender(wait_first) as first,
        extenders.extender(pass_only('compute-2')) as second,
    ):
        service = make_service(extender__policy_file=policy(first))
        asked = service.daemon.scheduler
        answers = []
        thread = threading.Thread(
            target=lambda: answers.append(service.select_hosts())
        )
        thread.start()
        assert waiting.wait(LIMIT_S)
        reconfigure(service, extender__policy_file=policy(second))
        assert asked._queue.away == 1
        go_on.set()
        thread.join()
        # The verdict of an extender that is configured no more is dropped.
        assert answers == [['compute-2']]
        assert second.verbs() == ['filter']
        assert asked._queue.away == 0
        reconfigure(service)
        assert service.select_hosts() == ['compute-4']


def test_an_extender_that_cannot_be_used_changes_nothing(
    make_service, tmp_path
):
    path = tmp_path / 'policy.json'
    tls = {'caFile': f'{tmp_path}/none.pem'}
    path.write_text(
        json.dumps(
            {
                'apiVersion': 'kubescheduler.config.k8s.io/v1',
                'kind': 'KubeSchedulerConfiguration',
                'extenders': [
                    {
                        'urlPrefix': 'https://a',
                        'filterVerb': 'filter',
                        'enableHTTPS': True,
                        'tlsConfig': tls,
                    }
                ],
            }
        )
    )
    service = make_service()
    with pytest.raises(errors.ConfigurationError):
        reconfigure(
            service,
            extender__policy_file=str(path),
            scheduler__batch_size=1,
        )
    assert service.daemon.scheduler._options.batch_size == 64


def test_nodes_of_pods_are_judged_by_the_new_filters(make_service):
    port = free_port()
    service = make_service(http__bind_port=port)
    pod = {'metadata': {'name': 'a', 'uid': 'b'}, 'spec': {'containers': []}}
    asked = {'Pod': pod, 'NodeNames': ['compute-1', 'compute-4']}
    with contextlib.closing(HttpClient(None, port)) as http:
        _, before = http.send('POST', '/extender/filter', asked)
        assert before['NodeNames'] == ['compute-1', 'compute-4']
        reconfigure(
            service,
            extender__enabled_filters=['IsolatedHostsFilter'],
            filter_scheduler__isolated_hosts=['compute-1'],
            http__idle_timeout=5.0,
            http__max_connections=77,
        )
        _, after = http.send('POST', '/extender/filter', asked)
        assert after['NodeNames'] == ['compute-4']
    server = service.daemon.http.server
    assert server.clients.idle_timeout == 5.0
    assert server.clients.total == 77
