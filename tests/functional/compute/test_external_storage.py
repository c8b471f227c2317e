"""Share and block storage services send hosts over HTTP, too."""

import pytest

from scheduler_service.store.records import decisions
from tests.support.compute import CONTEXT
from tests.support.engines import store_all
from tests.support.nova_wire import spec, thing

PROPERTIES = {'manila': 'share_properties', 'cinder': 'volume_properties'}
SERVICES = pytest.mark.parametrize('service', PROPERTIES)


OPTIONS = {
    'filter_scheduler__enabled_filters': ['ComputeFilter', 'DiskFilter'],
    'filter_scheduler__weight_classes': ['RAMWeigher'],
}


def send(client, service, document):
    """Return status and answer of a call of a service."""
    return client.send('POST', f'/scheduler/{service}/external', document)


def body(service, *hosts, size=10, weights=None, **properties):
    """Return the body of a call of a service."""
    return {
        'spec': {
            PROPERTIES[service]: {'size': size, **properties},
            'something': {'else': [1]},
        },
        'context': CONTEXT,
        'hosts': [{'host': host} for host in hosts],
        'weights': weights or {},
    }


@SERVICES
def test_known_hosts_are_ordered_and_others_keep_their_order(
    serve_external, service
):
    client = serve_external(**OPTIONS)
    sent = ['b@x#p', 'compute-3', 'a@x#p', 'compute-1']
    assert send(client, service, body(service, *sent)) == (
        200,
        {'hosts': ['compute-1', 'compute-3', 'b@x#p', 'a@x#p']},
    )
    store_all(client.service.daemon.scheduler)
    with client.service.store.reading() as conn:
        (decision,) = decisions.show(conn, CONTEXT['request_id'])
    assert decision['kind'] == 'external'
    assert decision['unknown'] == 2


@SERVICES
def test_the_weights_that_are_sent_count(serve_external, service):
    client = serve_external(
        **OPTIONS, compute__external_weight_multiplier=10.0
    )
    weights = {'compute-1': 1.0, 'compute-3': 5.0}
    document = body(service, 'compute-1', 'compute-3', weights=weights)
    assert send(client, service, document)[1] == {
        'hosts': ['compute-3', 'compute-1']
    }


@SERVICES
def test_a_size_that_a_known_host_has_not_free_leaves_it_out(
    serve_external, service
):
    client = serve_external(
        **OPTIONS, compute__external_unknown_hosts='dropped'
    )
    document = body(service, 'compute-1', 'x', size=501)
    assert send(client, service, document) == (200, {'hosts': []})


WRONG = [
    {},
    spec(),
    thing('RequestSpec', '1.15'),
    {'share_properties': None, 'volume_properties': None},
    {'share_group_type': {}},
    {'share_properties': 7, 'volume_properties': 7},
    {'share_properties': {'size': -1}, 'volume_properties': {'size': -1}},
    {'share_properties': {'size': 'x'}, 'volume_properties': {'size': []}},
    # What the other service sends.
    {'share_properties': {'size': 1}},
    {'volume_properties': {'size': 1}},
]


@SERVICES
def test_what_is_not_ours_is_answered_with_400(serve_external, service):
    client = serve_external(**OPTIONS)
    for wrong in WRONG:
        if set(wrong) == {PROPERTIES[service]}:
            continue
        document = {**body(service, 'compute-1'), 'spec': wrong}
        status, answer = send(client, service, document)
        assert (status, answer['error']['name']) == (400, 'InvalidRequest')


@SERVICES
@pytest.mark.parametrize(('needed', 'status'), [(True, 401), (False, 200)])
def test_the_token_may_be_waived(
    serve_external, tmp_path, service, needed, status
):
    (tmp_path / 'token').write_text('secret')
    client = serve_external(
        **OPTIONS,
        http__token_file=str(tmp_path / 'token'),
        compute__external_scheduler_authentication=needed,
    )
    document = body(service, 'compute-1')
    assert send(client, service, document)[0] == status
    assert client.send('GET', '/metrics')[0] == 401
