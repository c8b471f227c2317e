"""Pools that come with a request for a zone, and are not stored."""

import uuid

import pytest

from scheduler_service import errors
from scheduler_service.store.writing import zones
from tests.support.documents import ADMIN, CONTEXT, OWNER, STRANGER
from tests.support.services import BUSES, shared

import oslo_messaging  # isort: skip

IRON, LEAD = (str(uuid.uuid4()) for _ in range(2))
POOLS = [
    {'id': IRON, 'name': 'iron', 'attributes': {'metal': 'iron'}},
    {'id': LEAD, 'name': 'lead', 'attributes': {'metal': 'lead'}},
]
WANTS_LEAD = {'attributes': {'metal': 'lead'}}


FILTERS = ['attribute', 'pool_id_attribute']


@pytest.fixture(scope='module', params=BUSES)
def dns(request, tmp_path_factory):
    """A daemon with the filters that a DNS service would have."""
    url = ''
    if request.param == 'rabbit':
        url = request.getfixturevalue('rabbitmq')[1]
    with shared(
        tmp_path_factory.mktemp('dns'),
        url,
        pool_scheduler__scheduler_filters=FILTERS,
    ) as service:
        yield service


def ask(dns, context=OWNER, pools=POOLS, **zone):
    return dns.client.schedule_zone(context, zone, keep=False, pools=pools)


def test_the_pool_is_one_of_those_that_were_sent(dns):
    answer = ask(dns, name='example.org.', **WANTS_LEAD)
    assert (answer['pool_id'], answer['pool_name']) == (LEAD, 'lead')
    # An import has no name yet.
    assert ask(dns, **WANTS_LEAD)['pool_id'] == LEAD
    with dns.store.reading() as conn:
        assert LEAD not in {zone.pool_id for zone in zones.listing(conn)}


@pytest.mark.parametrize(
    ('zone', 'context', 'name'),
    [
        ({'attributes': {'metal': 'tin'}}, OWNER, 'NoValidPoolFound'),
        ({}, OWNER, 'MultiplePoolsFound'),
        ({'attributes': {'pool_id': IRON}}, OWNER, 'Forbidden'),
        ({'attributes': {'pool_id': str(uuid.uuid4())}}, ADMIN,
         'PoolNotFound'),
        ({'attributes': {'pool_id': IRON, 'metal': 'lead'}}, ADMIN,
         'ForcedPoolFilteredOut'),
        ({'project_id': 'p', **WANTS_LEAD}, STRANGER, 'Forbidden'),
    ],
)  # fmt: skip
def test_a_refusal_has_its_name(dns, zone, context, name):
    with pytest.raises(errors.SchedulerError) as caught:
        ask(dns, context, **zone)
    assert caught.value.name == name


@pytest.mark.parametrize(
    ('pools', 'place'),
    [
        ('all', 'pools'),
        ([{'id': IRON}], 'pools[0].name'),
        ([*POOLS, {'id': 'x', 'name': 'x'}], 'pools[2].id'),
        ([*POOLS, POOLS[0]], 'pools[2].id'),
        ([{**POOLS[0], 'name': 'a\0'}], 'pools[0].name'),
        ([{**POOLS[0], 'color': 'red'}], 'pools[0].color'),
    ],
)
def test_pools_that_are_not_valid_are_refused_with_the_place(
    dns, pools, place
):
    call = dns.client._client.prepare(version='1.2').call
    with pytest.raises(errors.InvalidRequest) as caught:
        call(OWNER, 'schedule_zone', zone={}, keep=False, pools=pools)
    assert caught.value.facts['at'] == place


def test_pools_that_are_sent_are_never_stored(dns):
    with pytest.raises(errors.InvalidRequest, match='keep: expected false'):
        dns.client.schedule_zone(CONTEXT, {'name': 'a.'}, pools=POOLS)


@pytest.mark.parametrize('more', [{}, {'keep': False}])
def test_a_zone_needs_a_name_where_the_pools_are_those_of_the_store(dns, more):
    with pytest.raises(errors.InvalidRequest, match='name: required'):
        dns.client.schedule_zone(CONTEXT, {}, **more)


def test_callers_of_the_release_before_are_served(dns):
    older = dns.client._client.prepare(version='1.1')
    zone = {'name': 'a.', 'attributes': {'l': 'gold'}}
    answer = older.call(CONTEXT, 'schedule_zone', zone=zone)
    assert answer['pool_name'] == 'gold'


def test_a_daemon_of_the_release_before_says_what_it_serves(
    monkeypatch, make_service
):
    monkeypatch.setattr('scheduler_service.cmd.daemon.VERSION', '1.1')
    older = make_service()
    with pytest.raises(errors.InvalidRequest, match=r'1\.2 is not') as caught:
        ask(older, **WANTS_LEAD)
    assert caught.value.facts == {'version': '1.2', 'served': '1.1'}


def test_a_client_that_is_capped_says_so(dns, monkeypatch):
    monkeypatch.setattr(dns.client._client, 'version_cap', '1.1')
    with pytest.raises(oslo_messaging.RPCVersionCapError):
        ask(dns, **WANTS_LEAD)
    assert dns.client.ping(CONTEXT)['pools'] == 2
