"""``scheduler-status upgrade check``: what it finds, and its exit status."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid

import amqp
import kombu
import pytest
import sqlalchemy as sa

from scheduler_service.cmd import status
from scheduler_service.rpc.client import EXCHANGE, TOPIC
from scheduler_service.store.connection import Store
from scheduler_service.store.records import daemons
from tests.rigs.fake_placement import FakePlacement
from tests.support import servers
from tests.support.databases import new_database
from tests.support.waiting import LIMIT_S, wait_until

DATABASE, QUEUES, OPTIONS, START, POLICY, DAEMONS = range(6)
AGE, CELLS, PLACEMENT, NOTIFICATIONS = 7, 8, 9, 10
QUORUM = '[oslo_messaging_rabbit]\nrabbit_quorum_queue = true\n'


@pytest.fixture
def check(tmp_path, ready_sqlite, capsys):
    """Give a function that runs the command with a configuration."""

    def run(
        text: str = '', bus: str = 'inproc://', database: str = ready_sqlite
    ) -> tuple[int, list[tuple[int, str | None]]]:
        path = tmp_path / 'a.conf'
        path.write_text(
            f'[database]\nconnection = {database}\n'
            f'{text}\n[DEFAULT]\ntransport_url = {bus}\n'
        )
        code = status.main(
            ['--config-file', str(path), 'upgrade', 'check', '--json']
        )
        printed = json.loads(capsys.readouterr().out.splitlines()[-1])
        return code, [
            (one['result'], one['details']) for one in printed['checks']
        ]

    return run


@pytest.fixture
def vhost(rabbitmq):
    """The URL of a virtual host, and one as kombu takes it."""
    url = servers.new_vhost(*rabbitmq)
    return url, url.replace('rabbit:', 'amqp:')


def test_nothing_is_found_where_all_is_well(check):
    code, found = check()
    assert code == 0
    assert [result for result, _ in found] == [0] * 11
    assert found[DAEMONS][1] == 'At work: none'


def test_a_table_is_printed_for_people(tmp_path, ready_sqlite, capsys):
    path = tmp_path / 'a.conf'
    path.write_text(
        f'[database]\nconnection = {ready_sqlite}\n'
        '[DEFAULT]\ntransport_url = inproc://\n'
    )
    arguments = ['--config-file', str(path), 'upgrade', 'check']
    assert status.main(arguments) == 0
    assert 'Check: Tables of the database' in capsys.readouterr().out


def test_libraries_print_nothing_beside_the_table(tmp_path, ready_sqlite):
    path = tmp_path / 'a.conf'
    path.write_text(
        f'[database]\nconnection = {ready_sqlite}\n'
        f'[DEFAULT]\ntransport_url = rabbit://a:b@127.0.0.1:{servers.free_port()}/\n'
    )
    # Of its own: in this one the tests have set up logging.
    done = subprocess.run(
        [sys.executable, '-m', 'scheduler_service.cmd.status',
         '--config-file', path, 'upgrade', 'check'],
        capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, '')
    assert 'The broker does not answer' in done.stdout


def test_tables_that_are_not_there_are_a_failure(check, tmp_path):
    code, found = check(database=new_database(f'sqlite:///{tmp_path}/'))
    assert code == 2
    assert 'scheduler-manage db sync' in found[DATABASE][1]
    code, found = check(database='')
    assert (code, found[DATABASE][0]) == (2, 2)


def test_options_with_other_names_are_a_warning(check):
    code, found = check(
        '[DEFAULT]\nscheduler_max_attempts = 3\ncontrol_exchange = nova\n'
        '[scheduler]\nbatch-size = 4\nspeed = 5\n'
        '[service:central]\nworkers = 1\n'
    )
    assert code == 1
    for text in (
        'scheduler_max_attempts is now named [scheduler] max_attempts',
        'a.conf: [scheduler] speed: there is no such option',
        '[DEFAULT] control_exchange = nova does not apply',
    ):
        assert text in found[OPTIONS][1]
    for text in ('workers', 'batch', 'transport_url', 'connection'):
        assert text not in found[OPTIONS][1]


def test_options_of_a_bus_that_is_not_used_are_known(check):
    code, found = check(f'{QUORUM}amqp_durable_queues = true\n')
    assert (code, found[OPTIONS]) == (0, (0, None))


@pytest.mark.parametrize(
    ('rules', 'code', 'text'),
    [
        ('"ping": "role:x"', 0, ''),
        ('"pong": "role:x"', 1, 'no such rules: pong'),
        ('"ping": "role:x and"', 2, 'ping'),
    ],
)
def test_policy_files_are_read(check, tmp_path, rules, code, text):
    (tmp_path / 'policy.yaml').write_text(f'{rules}\n')
    ended, found = check(
        f'[oslo_policy]\npolicy_file = {tmp_path}/policy.yaml\n'
    )
    assert (ended, found[POLICY][0]) == (code, code)
    assert text in (found[POLICY][1] or '')


def test_daemons_of_several_releases_are_a_warning(check, ready_sqlite):
    store = Store.connect(ready_sqlite)

    def register(name, release):
        one = daemons.Registration(str(uuid.uuid4()), name, release, 'f', {})
        store.write(lambda writer: daemons.register(writer, one))

    try:
        register('one', '1.0')
        register('two', '1.0')
        code, found = check()
        assert (code, found[DAEMONS]) == (0, (0, 'At work: 1.0: one, two'))
        register('new', '2.0')
        code, found = check()
    finally:
        store.dispose()
    assert (code, found[DAEMONS][0]) == (1, 1)
    assert '1.0: one, two; 2.0: new' in found[DAEMONS][1]


def test_a_policy_file_in_json_is_a_failure(check, tmp_path):
    (tmp_path / 'policy.json').write_text('{"ping": "role:x"}')
    code, found = check(
        f'[oslo_policy]\npolicy_file = {tmp_path}/policy.json\n'
    )
    assert (code, found[6][0]) == (2, 2)


@pytest.mark.broker
def test_nothing_is_declared_on_the_broker(check, vhost, rabbitmq):
    code, _ = check(bus=vhost[0])
    assert code == 0
    assert servers.names_in(rabbitmq[0], vhost[0], 'queues') == set()
    exchanges = servers.names_in(rabbitmq[0], vhost[0], 'exchanges')
    assert EXCHANGE not in exchanges


@pytest.mark.broker
@pytest.mark.parametrize('part', ['queue', 'exchange'])
def test_a_queue_of_another_kind_is_a_failure(check, vhost, part):
    with kombu.Connection(vhost[1]) as conn, conn.channel() as channel:
        if part == 'queue':
            channel.queue_declare(TOPIC, durable=True, auto_delete=False)
        else:
            channel.exchange_declare(EXCHANGE, 'direct', auto_delete=False)
    code, found = check(QUORUM, vhost[0])
    assert (code, found[QUEUES][0]) == (2, 2)
    assert 'PRECONDITION_FAILED' in found[QUEUES][1]


@pytest.mark.broker
def test_queues_of_the_same_kind_are_well(check, vhost, make_service):
    make_service(url=vhost[0], oslo_messaging_rabbit__rabbit_quorum_queue=True)
    code, found = check(QUORUM, vhost[0])
    assert code == 0, found


@pytest.mark.broker
def test_a_broker_that_is_not_there_is_a_failure(check):
    url = f'rabbit://guest:guest@127.0.0.1:{servers.free_port()}/'
    code, found = check(bus=url)
    assert (code, found[QUEUES]) == (2, (2, 'The broker does not answer'))


@pytest.mark.broker
@pytest.mark.parametrize('part', ['password', 'vhost'])
def test_a_refused_login_is_a_failure(check, rabbitmq, part):
    url = servers.new_vhost(*rabbitmq)
    url = (
        url.replace(':guest@', ':wrong@') if part == 'password' else f'{url}x'
    )
    code, found = check(bus=url)
    assert code == 2
    assert found[QUEUES][0] == 2
    assert 'refuses the login' in str(found[QUEUES][1])


@pytest.mark.parametrize(
    ('text', 'bus', 'place', 'told'),
    [
        ('[scheduler]\nbatch_size = lots\n', 'inproc://', OPTIONS,
         '[scheduler] batch_size'),
        ('', 'bogus://x', QUEUES, 'bogus'),
        ('[filter_scheduler]\nenabled_filters = CoreFiltre\n', 'inproc://',
         START, 'CoreFiltre (did you mean CoreFilter?)'),
    ],
)  # fmt: skip
def test_a_configuration_that_cannot_be_used_is_a_failure(
    check, text, bus, place, told
):
    code, found = check(text, bus)
    assert (code, found[place][0]) == (2, 2)
    assert told in found[place][1]


COMPUTE = '[compute]\nenabled = true\n[scheduler]\ntopic = own\n'


@pytest.mark.broker
def test_a_queue_of_the_compute_service_is_checked_as_well(check, vhost):
    with kombu.Connection(vhost[1]) as conn, conn.channel() as channel:
        channel.queue_declare('scheduler', durable=False, auto_delete=False)
    code, found = check(f'{COMPUTE}{QUORUM}', vhost[0])
    assert (code, found[QUEUES][0]) == (2, 2)
    assert "for the compute service's as they are there" in found[QUEUES][1]
    code, found = check(COMPUTE, vhost[0])
    assert code == 0, found


def api_database(folder, **cells):
    """Return the URL of an API database with cells: name -> URL."""
    url = f'sqlite:///{folder}/api.sqlite'
    engine = sa.create_engine(url)
    with engine.begin() as conn:
        conn.execute(
            sa.text(
                'CREATE TABLE cell_mappings (id INTEGER PRIMARY KEY, '
                'uuid TEXT, name TEXT, database_connection TEXT, '
                'disabled BOOLEAN)'
            )
        )
        for name, cell in cells.items():
            conn.execute(
                sa.text(
                    'INSERT INTO cell_mappings VALUES (NULL, :uuid, :name, '
                    ':url, 0)'
                ),
                {'uuid': str(uuid.uuid4()), 'name': name, 'url': cell},
            )
    engine.dispose()
    return url


@pytest.mark.db
def test_databases_of_the_compute_service_have_to_answer(
    check, mariadb, tmp_path
):
    wrong = sa.make_url(mariadb[1]).set(username='nova', password='wrong')
    shown = wrong.render_as_string(hide_password=False)
    code, found = check(f'[compute]\napi_database = {shown}\n')
    assert (code, found[CELLS][0]) == (2, 2)
    assert 'Access denied' in found[CELLS][1]
    assert 'wrong' not in found[CELLS][1]
    url = api_database(tmp_path, north=shown)
    code, found = check(f'[compute]\napi_database = {url}\n')
    assert (code, found[CELLS][0]) == (1, 1)
    assert found[CELLS][1].startswith('Cell north does not answer: ')
    assert 'Access denied' in found[CELLS][1]


def with_placement(folder, url):
    return (
        f'[compute]\napi_database = {api_database(folder)}\n'
        f'use_placement = true\n[placement]\nauth_type = admin_token\n'
        f'endpoint = {url}\nendpoint_override = {url}\ntoken = admin\n'
        'connect_retries = 0\n'
    )


def test_placement_service_has_to_answer(check, tmp_path):
    with FakePlacement().running() as service:
        code, found = check(with_placement(tmp_path, service.url))
        assert code == 0, found
    (tmp_path / 'api.sqlite').unlink()
    code, found = check(with_placement(tmp_path, service.url))
    assert (code, found[PLACEMENT][0]) == (2, 2)
    # The options of the way to authenticate are known.
    assert found[OPTIONS] == (0, None)


@pytest.mark.slow
def test_requests_that_never_expire_are_found_where_they_can_be_seen(
    check, rabbitmq
):
    _, found = check(COMPUTE, rabbitmq[1])
    assert found[AGE][0] == 0
    assert 'management interface' in found[AGE][1]
    # The management interface cannot listen elsewhere: see queue_check.
    with servers.rabbitmq(beside=10_000) as (broker, bus):
        port = broker.port + 10_000
        servers.rabbitmq_plugin(broker, 'rabbitmq_management', port)
        _, found = check(COMPUTE, bus)
        assert 'no queue scheduler' in found[AGE][1]
        with kombu.Connection(bus.replace('rabbit:', 'amqp:')) as conn:
            queue = kombu.Queue('scheduler', durable=True)
            queue(conn.channel()).declare()
        code, found = check(COMPUTE, bus)
        assert code == found[AGE][0] == 1
        assert 'Set a policy with message-ttl' in found[AGE][1]
        servers.evaluate(
            broker,
            'rabbit_policy:set(<<"/">>, <<"scheduler-age">>, '
            '<<"^scheduler$">>, [{<<"message-ttl">>, 60000}], 0, '
            '<<"queues">>, <<"guest">>)',
        )
        wait_until(
            lambda: (
                check(COMPUTE, bus)[1][AGE]
                == (0, 'Requests expire after 60000 ms')
            ),
            pause_s=0.5,
        )


@pytest.mark.broker
def test_notifications_that_nothing_consumes_are_a_warning(check, vhost):
    notify = '[oslo_messaging_notifications]\ndriver = messagingv2\n'
    with kombu.Connection(vhost[1]) as conn, conn.channel() as channel:
        channel.queue_declare(
            'notifications.info', durable=True, auto_delete=False
        )
        assert check(notify, vhost[0])[1][NOTIFICATIONS] == (0, None)
        for _ in range(3):
            channel.basic_publish(
                amqp.Message('x'), routing_key='notifications.info'
            )
        wait_until(
            lambda: (
                'notifications.info: 3'
                in (check(notify, vhost[0])[1][NOTIFICATIONS][1] or '')
            ),
        )
        code, found = check(notify, vhost[0])
        assert (code, found[NOTIFICATIONS][0]) == (1, 1)
        # Where none are published, the queue may be of another service.
        assert check('', vhost[0])[1][NOTIFICATIONS] == (0, None)
