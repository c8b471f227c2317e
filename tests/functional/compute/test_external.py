"""Hosts that a compute service sends over HTTP come back in order."""

import contextlib
import json
import statistics
import time

import pytest

from scheduler_service import errors
from scheduler_service.store.records import decisions
from tests.support import nova_wire
from tests.support.compute import CONTEXT, HOSTS
from tests.support.engines import store_all
from tests.support.http_client import HttpClient
from tests.support.nova_wire import flavor, spec, thing
from tests.support.servers import free_port
from tests.support.services import new_conf
from tests.support.waiting import SLOWNESS

PATH = '/scheduler/nova/external'
# A filter that looks at load, and a weigher that prefers more memory.
OPTIONS = {
    'filter_scheduler__enabled_filters': ['ComputeFilter', 'RamFilter'],
    'filter_scheduler__weight_classes': ['RAMWeigher'],
}


@pytest.fixture
def serve(serve_external):
    return lambda **more: serve_external(**{**OPTIONS, **more})


def body(*hosts, weights=None, **fields):
    """Return the body of a call with hosts of HOSTS, by their numbers."""
    return {
        'spec': spec(**fields),
        'context': CONTEXT,
        'rebuild': False,
        'resize': False,
        'live': False,
        'vmware': False,
        'hosts': [
            {'host': f'compute-{host}', 'hypervisor_hostname': f'node-{host}'}
            for host in hosts
        ],
        'weights': weights or {},
    }


def ordered(client, document):
    """Return the hosts of an answer, which has nothing else in it."""
    status, answer = client.send('POST', PATH, document)
    assert (status, list(answer)) == (200, ['hosts'])
    return answer['hosts']


def test_hosts_come_back_in_the_order_of_our_weighers(serve):
    client = serve()
    assert ordered(client, body(5, 2, 4)) == [
        'compute-2', 'compute-4', 'compute-5',
    ]  # fmt: skip
    store_all(client.service.daemon.scheduler)
    with client.service.store.reading() as conn:
        (decision,) = decisions.show(conn, CONTEXT['request_id'])
    assert decision['kind'] == 'external'
    assert decision['outcome'] == 'ordered'
    assert not client.service.daemon.scheduler.snapshot().hosts.instances.get(
        CONTEXT['request_id']
    )


@pytest.mark.parametrize(
    ('multiplier', 'expected'),
    [(10.0, 'compute-5'), (1e-5, 'compute-1'), (0.0, 'compute-1')],
)
def test_weights_that_are_sent_count_like_one_more_weigher(
    serve, multiplier, expected
):
    client = serve(compute__external_weight_multiplier=multiplier)
    weights = {'compute-5': 1e300, 'compute-1': -1e300}
    assert ordered(client, body(1, 2, 5, weights=weights))[0] == expected


def test_hosts_that_our_filters_reject_are_left_out(serve):
    client = serve()
    large = flavor(memory_mb=49150)
    # Memory of 1.5 times 32768 - N.
    assert ordered(client, body(1, 2, 3, flavor=large)) == ['compute-1']
    assert ordered(client, body(2, 3, flavor=large)) == []


@pytest.mark.parametrize(
    ('unknown', 'last'), [('last', True), ('dropped', False)]
)
def test_hosts_that_are_not_known_come_last_or_are_left_out(
    serve, unknown, last
):
    client = serve(compute__external_unknown_hosts=unknown)
    document = body(8, 3, 7)
    document['hosts'].append({'host': 'x'})
    found = ordered(client, document)
    assert found == [
        'compute-3',
        *(['compute-8', 'compute-7', 'x'] if last else []),
    ]


def test_a_host_may_be_sent_without_its_node(serve):
    client = serve()
    document = body(2)
    document['hosts'] = [{'host': 'compute-3'}, {'host': 'compute-1'}]
    assert ordered(client, document) == ['compute-1', 'compute-3']


def test_recorded_specs_are_understood(serve):
    client = serve()
    for name in ('simple', 'three', 'dicts'):
        message = nova_wire.sent(name)
        document = {**body(1, 2), 'spec': message['args']['spec_obj']}
        assert ordered(client, document) == ['compute-1', 'compute-2']


WRONG = [
    b'{',
    b'[]',
    {},
    {**body(1), 'spec': {}},
    {**body(1), 'hosts': 7},
    {**body(1), 'weights': {'a': 'b'}},
    body(
        1,
        requested_resources=[
            thing('RequestGroup', '1.3', resources={'CUSTOM_A': 1})
        ],
    ),
    {**body(1), 'spec': thing('RequestSpec', '2.0')},
]


def test_what_is_not_ours_is_answered_with_an_error(serve):
    client = serve()
    for document in WRONG:
        status, answer = client.send('POST', PATH, document)
        assert status == 400, document
        assert answer['error']['name'] == 'InvalidRequest'
    assert client.send('GET', PATH)[0] == 405


def test_the_path_is_there_only_where_it_is_configured(serve):
    client = serve(compute__external_scheduler=False)
    assert client.send('POST', PATH, body(1))[0] == 404
    assert new_conf().compute.external_scheduler is False


@pytest.mark.parametrize(('needed', 'status'), [(True, 401), (False, 200)])
def test_the_token_may_be_waived_for_this_path_alone(
    serve, tmp_path, needed, status
):
    (tmp_path / 'token').write_text('secret')
    client = serve(
        http__token_file=str(tmp_path / 'token'),
        compute__external_scheduler_authentication=needed,
    )
    assert client.send('POST', PATH, body(1))[0] == status
    assert client.send('GET', '/metrics')[0] == 401


def test_a_thousand_hosts_are_ordered_in_a_few_milliseconds(serve):
    hosts = [
        {**HOSTS['hosts'][0], 'host': f'compute-{number}',
         'hypervisor_hostname': f'node-{number}', 'memory_mb': 8192 + number}
        for number in range(1000)
    ]  # fmt: skip
    client = serve(inventory={'hosts': hosts})
    names = [f'compute-{number}' for number in range(1000)]
    document = json.dumps(
        body(*range(1000), weights=dict.fromkeys(names, 1.0))
    ).encode()
    times = []
    for _ in range(30):
        start = time.process_time()
        found = ordered(client, document)
        times.append(time.process_time() - start)
    assert found == names[::-1]
    # Of a processor, of which other programs take none.
    assert statistics.median(times) < 0.05 * SLOWNESS


def test_calls_may_have_a_listener_of_their_own(serve, tmp_path):
    token = tmp_path / 'token'
    token.write_text('secret')
    own = free_port()
    http = serve(
        http__token_file=str(token),
        compute__external_scheduler_bind_port=own,
        compute__external_scheduler_authentication=False,
    )
    with contextlib.closing(HttpClient(http.service, own)) as alone:
        status, found = alone.send('POST', PATH, body(1, 2))
        assert (status, len(found['hosts'])) == (200, 2)
        status, _ = alone.send('GET', '/healthcheck')
        assert status == 200
        status, found = alone.send('GET', '/v1/decisions')
        assert (status, found['error']['name']) == (404, 'NotFound')
    status, _ = http.send('POST', PATH, body(1), Authorization='Bearer secret')
    assert status == 404


def test_pages_do_not_reach_an_open_listener_by_their_names(serve):
    own = free_port()
    http = serve(
        compute__external_scheduler_bind_port=own,
        compute__external_scheduler_authentication=False,
        http__allowed_hosts=['scheduler.example'],
    )
    with contextlib.closing(HttpClient(http.service, own)) as alone:
        for host, expected in (('page.example', 403),
                               ('scheduler.example', 200)):  # fmt: skip
            assert alone.send('POST', PATH, body(1), Host=host)[0] == expected


def test_a_listener_for_everybody_needs_authentication_turned_off(
    make_service,
):
    with pytest.raises(errors.ConfigurationError, match='bind_host'):
        make_service(
            inventory=HOSTS,
            compute__external_scheduler_bind_port=free_port(),
            compute__external_scheduler_bind_host='0.0.0.0',
            compute__external_scheduler=True,
            **OPTIONS,
        )
