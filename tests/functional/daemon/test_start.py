"""The start of a daemon process, and what it refuses."""

import contextlib
import os
import signal
import socket
import sqlite3
import subprocess
import sys

import pytest

from tests.support import servers
from tests.support.http_client import HttpClient
from tests.support.servers import free_port
from tests.support.waiting import LIMIT_S


def test_tables_are_awaited_and_logged_once_in_a_line(launch, tmp_path):
    daemon = launch(f'sqlite:///{tmp_path}/none.sqlite', 'inproc://')
    line = daemon.wait_for('Degraded: database unreachable')
    assert line.endswith('"scheduler-manage db sync"); retrying every 0.5 s\n')
    assert daemon.end(signal.SIGINT) == 0


def test_the_usual_places_are_read_without_arguments(tmp_path):
    config = tmp_path / '.scheduler_service/scheduler_service.conf'
    config.parent.mkdir()
    config.write_text('[filter_scheduler]\nhost_subset_size = 0\n')
    done = subprocess.run(
        [sys.executable, '-m', 'scheduler_service.cmd.service'],
        capture_output=True, text=True, timeout=LIMIT_S,
        env={**os.environ, 'HOME': str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 1
    assert f'host_subset_size ({config}): ' in done.stderr
    assert 'Traceback' not in done.stderr


def test_start_is_refused_when_values_cannot_be_used(launch, tmp_path):
    extra = (
        '[filter_scheduler]\nhost_subset_size = 0\n'
        '[scheduler]\nbatch_size = lots\ntopic = $scheduler.topic\n'
        'graceful_shutdown_timeout = 1e308\n'
        '[database]\nlock_timeout = 1e308\n'
        '[extender]\nthreads = 0\nmax_nodes = many\n'
    )
    daemon = launch(f'sqlite:///{tmp_path}/a.sqlite', 'inproc://', extra)
    line = daemon.wait_for('scheduler-service: ConfigurationError: ')
    for text in (
        '[filter_scheduler] host_subset_size',
        '[scheduler] batch_size',
        'it refers to itself',
        '[database] lock_timeout',
        '[scheduler] graceful_shutdown_timeout',
        f'[extender] max_nodes ({tmp_path}/0.conf)',
        f'[extender] threads ({tmp_path}/0.conf)',
    ):
        assert text in line
    assert daemon.popen.wait(LIMIT_S) == 1
    assert not daemon.count('Traceback')


@pytest.mark.parametrize(
    ('extra', 'text'),
    [
        ('[filter_scheduler]\nenabled_filters = RamFiltre\n',
         'did you mean RamFilter?'),
        ('[database]\n'
         'connection = postgresql+psycopg://u:s3cret@127.0.0.1:1/x?foo=bar\n',
         '[database] connection: the driver does not take it'),
        ('[database]\n'
         'connection = mysql+pymysql://u:s3cret@127.0.0.1:1/x?foo=bar\n',
         '[database] connection: the driver does not take it'),
    ],
)  # fmt: skip
def test_start_is_refused_when_a_name_or_an_address_cannot_be_used(
    launch, tmp_path, extra, text
):
    daemon = launch(f'sqlite:///{tmp_path}/a.sqlite', 'inproc://', extra)
    line = daemon.wait_for(text)
    assert line.startswith('scheduler-service: ')
    assert daemon.popen.wait(LIMIT_S) == 1
    assert not daemon.count('Traceback')
    assert not daemon.count('s3cret')


def test_a_missing_file_of_the_driver_is_waited_for(launch):
    daemon = launch(
        'mysql+pymysql://u:p@127.0.0.1:1/x?ssl_ca=/nowhere.pem', 'inproc://'
    )
    daemon.wait_for('Degraded: database unreachable')
    assert daemon.end(signal.SIGTERM) == 0


def test_start_is_refused_when_the_http_port_is_taken(launch, ready_sqlite):
    with socket.create_server(('127.0.0.1', 0)) as taken:
        port = taken.getsockname()[1]
        daemon = launch(
            ready_sqlite, 'inproc://', f'[http]\nbind_port = {port}\n'
        )
        daemon.wait_for('ConfigurationError: [http] bind_host, bind_port')
        assert daemon.popen.wait(LIMIT_S) == 1


def test_health_is_served_when_the_database_is_away_at_the_start(
    launch, tmp_path
):
    port = free_port()
    daemon = launch(
        f'postgresql+psycopg://a@127.0.0.1:{free_port()}/a', 'inproc://',
        f'[http]\nbind_port = {port}\n',
    )  # fmt: skip
    daemon.wait_for('Degraded: database')
    with contextlib.closing(HttpClient(None, port)) as http:
        assert http.send('GET', '/healthcheck') == (200, 'OK')
        status, ready = http.send('GET', '/readyz')
        assert (status, ready['database']) == (503, 'bad')
        assert http.send('GET', '/metrics')[0] == 200
        for path in ('/extender/filter', '/v1/explain'):
            asked = {'Pod': {}, 'NodeNames': ['a'], 'request': {}}
            asked = {'request': {}} if path == '/v1/explain' else asked
            status, answer = http.send('POST', path, asked)
            assert (status, answer['error']['name']) == (503, 'ServiceBusy')
        assert http.send('GET', '/v1/decisions')[0] == 503
    assert daemon.end(signal.SIGTERM) == 0


@pytest.mark.broker
@pytest.mark.parametrize('part', ['password', 'vhost'])
def test_start_is_refused_in_one_line_when_the_login_is(
    launch, ready_sqlite, rabbitmq, part
):
    url = servers.new_vhost(*rabbitmq)
    url = (
        url.replace(':guest@', ':wrong@') if part == 'password' else f'{url}x'
    )
    daemon = launch(ready_sqlite, url)
    line = daemon.wait_for('ConfigurationError: [DEFAULT] transport_url')
    assert 'refuses the login' in line
    assert daemon.popen.wait(LIMIT_S) == 1
    assert 'Traceback' not in ''.join(daemon.lines)


def test_start_is_refused_in_one_line_when_the_tables_are_newer(
    launch, ready_sqlite
):
    path = ready_sqlite.removeprefix('sqlite:///')
    with contextlib.closing(sqlite3.connect(path)) as conn, conn:
        conn.execute("UPDATE alembic_version SET version_num = '0999'")
        conn.execute('DELETE FROM compatible_versions')
    daemon = launch(ready_sqlite, 'inproc://')
    daemon.wait_for(
        'scheduler-service: SchemaMismatch: The tables are at version 0999, '
        'newer than'
    )
    assert daemon.popen.wait(LIMIT_S) == 1
    assert not daemon.count('Ready')
    assert not daemon.count('Traceback')


def test_names_that_do_not_exist_are_warned_about(tmp_path):
    path = tmp_path / 'a.conf'
    # It ends: there is no such driver of databases.
    path.write_text(
        '[scheduler]\ntopik = a\n[schedular]\ntopic = a\n'
        '[database]\nconnection = nonsense://\n'
    )
    done = subprocess.run(
        [sys.executable, '-m', 'scheduler_service.cmd.service',
         '--config-file', str(path)],
        capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 1
    # The log goes to standard output where no file is configured.
    for text in (
        '[scheduler] topik: there is no such option; is topic meant?',
        '[schedular] topic: there is no group schedular; is scheduler meant?',
    ):
        assert text in done.stdout
    assert 'Traceback' not in done.stderr


def test_a_log_that_cannot_be_written_ends_the_start(launch):
    extra = '[DEFAULT]\nlog_file = /no/such/folder/a.log'
    daemon = launch('nonsense://', 'inproc://', extra)
    assert daemon.popen.wait(LIMIT_S) == 1
    daemon.remove()
    assert daemon.lines == [
        'scheduler-service: OSError: /no/such/folder/a.log: No such file or '
        'directory\n'
    ]
