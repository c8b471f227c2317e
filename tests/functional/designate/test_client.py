"""The client that Designate's pool filter uses, on a real daemon."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
import uuid

import pytest
from oslo_config import cfg

from designate_scheduler_service import options
from designate_scheduler_service.client import AskError, Pool, PoolClient, Zone
from scheduler_service import rpc  # noqa: F401 - chooses the bus's backend
from scheduler_service.cmd.program import run_within
from scheduler_service.rpc import transport
from tests.support import servers
from tests.support.documents import ADMIN, OWNER, STRANGER
from tests.support.paths import ROOT
from tests.support.processes import on_topic
from tests.support.services import BUSES

import oslo_messaging  # isort: skip
from tests.support.waiting import SLOWNESS

IRON, LEAD = (str(uuid.uuid4()) for _ in range(2))
POOLS = [
    Pool(id=IRON, name='iron', attributes={'metal': 'iron'}),
    Pool(id=LEAD, name='lead', attributes={'metal': 'lead'}),
]
LEADEN = Zone(name='a.', project_id='p', attributes={'metal': 'lead'})


@pytest.fixture
def client(tmp_path):
    """Give a function that makes a client in a service like Designate."""
    made = []

    def make(url: str, **group: str) -> PoolClient:
        lines = [f'{name} = {value}' for name, value in group.items()]
        path = tmp_path / 'designate.conf'
        path.write_text(
            '[DEFAULT]\ncontrol_exchange = designate\n'
            '[scheduler_service]\n'
            + '\n'.join([f'transport_url = {url}', *lines, ''])
        )
        conf = cfg.ConfigOpts()
        transport.prepare(conf)
        options.register_opts(conf)
        conf(['--config-file', str(path)])
        made.append(PoolClient(conf))
        return made[-1]

    yield make
    for used in made:
        # It waits for a broker that is not there.
        with contextlib.suppress(TimeoutError):
            run_within(2, used._transport.cleanup, 'close')


@pytest.fixture(params=BUSES)
def daemon(request, make_service):
    return make_service(
        request.param,
        pool_scheduler__scheduler_filters=['attribute', 'pool_id_attribute'],
    )


@pytest.fixture
def ask(client, daemon):
    """Give a function that asks the daemon for a pool."""
    used = client(daemon.url, topic=daemon.conf.scheduler.topic)

    def choose(zone=LEADEN, context=OWNER, pools=POOLS) -> str:
        return used.choose(context, zone, pools)

    return choose


def test_the_pool_is_chosen_among_those_of_the_caller(ask):
    assert ask() == LEAD
    # A zone that is being imported has no name.
    assert ask(Zone(attributes={'metal': 'iron'})) == IRON


REFUSALS = [
    ({'attributes': {'metal': 'tin'}}, OWNER,
     'NoValidPoolFound', '2 pools, attribute left 0'),
    ({}, OWNER, 'MultiplePoolsFound', '2 pools match'),
    ({'attributes': {'pool_id': IRON}}, OWNER,
     'Forbidden', 'zone_create_forced_pool'),
    ({'attributes': {'pool_id': 'x'}}, ADMIN, 'PoolNotFound', 'x'),
    ({'attributes': {'pool_id': IRON, 'metal': 'lead'}}, ADMIN,
     'ForcedPoolFilteredOut', 'attribute left it out'),
    ({'project_id': 'p'}, STRANGER, 'Forbidden', 'project p'),
    ({'name': 'a' * 300}, OWNER, 'InvalidRequest', 'name: '),
    ({'attributes': {'metal': 'a' * 2**20}}, OWNER,
     'PayloadTooLarge', 'at most'),
]  # fmt: skip


def test_a_refusal_has_the_name_and_the_sentence_of_the_daemon(ask):
    for zone, context, name, text in REFUSALS:
        with pytest.raises(AskError) as caught:
            ask(Zone(**zone), context)
        assert caught.value.name == name
        assert text in str(caught.value)
        assert '\n' not in str(caught.value)


def test_a_daemon_of_the_release_before_is_named(
    monkeypatch, make_service, client
):
    monkeypatch.setattr('scheduler_service.cmd.daemon.VERSION', '1.1')
    service = make_service()
    with pytest.raises(AskError, match='older than this filter') as caught:
        client(service.url).choose(OWNER, LEADEN, POOLS)
    assert caught.value.name == ''
    assert '1.0 to 1.1' in str(caught.value)


@pytest.mark.broker
def test_no_daemon_has_ever_served_the_topic(client, rabbitmq):
    url = servers.new_vhost(*rabbitmq)
    used = client(url, exchange='wrong', timeout='120')
    started = time.monotonic()
    with pytest.raises(AskError, match='ever served topic') as caught:
        used.choose(OWNER, LEADEN, POOLS)
    assert 'of exchange wrong' in str(caught.value)
    assert time.monotonic() - started < 60 * SLOWNESS


@pytest.mark.broker
def test_no_daemon_is_there_now(client, launch, ready_sqlite, rabbitmq):
    topic = f't{uuid.uuid4().hex[:8]}'
    filters = '[pool_scheduler]\nscheduler_filters = attribute\n'
    daemon = launch(ready_sqlite, rabbitmq[1], on_topic(topic) + filters)
    daemon.wait_for('Ready')
    used = client(rabbitmq[1], topic=topic, timeout='1.5')
    assert used.choose(OWNER, LEADEN, POOLS) == LEAD
    assert daemon.end() == 0
    with pytest.raises(AskError, match=r'No scheduler answered .* 1\.5 s'):
        used.choose(OWNER, LEADEN, POOLS)


@pytest.mark.broker
def test_the_broker_is_unreachable(client):
    url = f'rabbit://guest:guest@127.0.0.1:{servers.free_port()}/'
    with pytest.raises(AskError, match=r'message bus .* is unreachable'):
        client(url, timeout='2').choose(OWNER, LEADEN, POOLS)


@pytest.mark.broker
@pytest.mark.parametrize('part', ['password', 'vhost'])
def test_a_refused_login_is_an_error_of_the_bus(client, rabbitmq, part):
    url = servers.new_vhost(*rabbitmq)
    url = (
        url.replace(':guest@', ':wrong@') if part == 'password' else f'{url}x'
    )
    with pytest.raises(AskError, match=r'message bus .* is unreachable'):
        client(url).choose(OWNER, LEADEN, POOLS)


class Strange:
    """A server whose reply is not one of a daemon."""

    target = oslo_messaging.Target(version='1.2')

    def schedule_zone(self, ctxt, **args):
        """Return what has no pool id."""
        return {'pool': 'iron'}


def test_a_reply_of_another_form_is_an_error(client):
    url = f'inproc://{uuid.uuid4().hex}/'
    used = client(url)
    used._client()
    server = oslo_messaging.get_rpc_server(
        used._transport,
        oslo_messaging.Target(
            exchange='openstack', topic='scheduler-service', server='a'
        ),
        [Strange()],
    )
    server.start()
    try:
        with pytest.raises(AskError, match=r'not valid: .*pool_id'):
            used.choose(OWNER, LEADEN, POOLS)
    finally:
        server.stop()
        server.wait()


def test_it_needs_nothing_of_the_daemon_and_no_numpy():
    script = (
        'import sys\n'
        'for name in ("scheduler_service", "numpy"):\n'
        '    sys.modules[name] = None\n'
        'from designate_scheduler_service import client, options\n'
    )
    subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', script], check=True, cwd=ROOT
    )
