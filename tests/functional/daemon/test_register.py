"""Daemons that share a store, and what commands print of them."""

from __future__ import annotations

import json
import signal
import urllib.request
from collections import Counter
from datetime import datetime, timedelta

import pytest
import yaml

from scheduler_service.cmd import daemon, manage, status
from scheduler_service.factory import build
from scheduler_service.rpc.peers import Peers
from scheduler_service.store import migrate
from scheduler_service.store.connection import Store
from scheduler_service.store.records.daemons import Registration
from tests.support import servers
from tests.support.services import new_conf
from tests.support.waiting import LIMIT_S, wait_until


def server(name, more=''):
    """Return the lines of a daemon's configuration."""
    return f'[scheduler]\nserver = {name}\n{more}'


@pytest.fixture
def run(capsys, tmp_path):
    """Give a function that runs a command with the file of a daemon."""

    def ran(*words, file='0.conf', status=0):
        given = ['--config-file', str(tmp_path / file), *words]
        assert manage.main(given) == status, capsys.readouterr()
        return capsys.readouterr().out

    return ran


@pytest.fixture
def listed(run):
    """Give a function that waits until some daemons are listed."""

    def found(*names):
        def rows():
            rows = json.loads(run('daemon', 'list', '-f', 'json'))
            return rows if [row['name'] for row in rows] == [*names] else None

        return wait_until(rows)

    return found


@pytest.mark.slow
def test_daemons_are_listed_and_differences_are_warned_about(
    launch, ready_sqlite, run, listed, tmp_path, capsys
):
    one = launch(ready_sqlite, 'inproc://', server('one'))
    one.wait_for('Ready:')
    two = launch(ready_sqlite, 'inproc://', server('two'))
    two.wait_for('Ready:')
    first, second = listed('one', 'two')
    assert first['state'] == second['state'] == 'up'
    assert first['configuration'] == second['configuration']
    assert [first['differs'], second['differs']] == [False, False]
    assert first['version'] == second['version'] != ''
    assert run('configuration', 'diff', 'one', 'two', '-f', 'value') == ''
    everything = ('configuration', 'diff', 'one', 'two', '--all', '-f', 'csv')
    assert '[scheduler] server,one,two' in run(*everything)
    # A reload of one of them makes them differ; each is told once.
    path = tmp_path / '1.conf'
    before = path.read_text()
    changed = '[filter_scheduler]\nhost_subset_size = 3\n'
    path.write_text(before + changed)
    two.popen.send_signal(signal.SIGHUP)
    two.wait_for(
        'Configuration reloaded; changed: [filter_scheduler] '
        'host_subset_size: 1 -> 3'
    )
    one.wait_for(
        'Daemon two, which shares the store, is configured differently: see '
        '"scheduler-manage configuration diff one two"'
    )
    two.wait_for('Daemon one, which shares the store')
    # Neither of two has the configuration of most.
    assert [row['differs'] for row in listed('one', 'two')] == [True, True]
    words = ['upgrade', 'check', '--json']
    assert (
        status.main(['--config-file', str(tmp_path / '0.conf'), *words]) == 1
    )
    assert (
        'They are configured differently: one, two' in capsys.readouterr().out
    )
    (row,) = json.loads(
        run('configuration', 'diff', 'one', 'two', '-f', 'json')
    )
    assert row == {
        'option': '[filter_scheduler] host_subset_size', 'one': 1, 'two': 3,
    }  # fmt: skip
    # The files of the first are those that it has, not those of the second.
    same = 'configuration', 'diff', 'one', '-f', 'value', '--exit-code'
    assert run(*same) == ''
    words = 'configuration', 'diff', 'two', '-f', 'csv', '--exit-code'
    found = run(*words, status=1)
    assert '[filter_scheduler] host_subset_size,3,1' in found
    # What a daemon had is kept, by fingerprint and time.
    newest, *_ = past = json.loads(run('configuration', 'list', '-f', 'json'))
    assert yaml.safe_load(run('configuration', 'list', '-f', 'yaml')) == past
    assert [row['daemon'] for row in past].count('two') == 2
    assert newest['daemon'] == 'two'
    words = ['configuration', 'diff', '-f', 'csv', first['configuration']]
    changed = run(*words, newest['fingerprint'])
    assert '[filter_scheduler] host_subset_size,1,3' in changed
    at = datetime.fromisoformat(newest['created_at']) + timedelta(seconds=1)
    assert '1,3' in run(*words, at.isoformat())
    path.write_text(before)
    two.popen.send_signal(signal.SIGHUP)
    one.wait_for('All daemons that share the store are configured alike')
    assert one.count('which shares the store') == 1
    log = ['configuration', 'log', '-f', 'json', '--since']
    first, second = json.loads(run(*log, '1h'))
    option = '[filter_scheduler] host_subset_size'
    assert first == {
        'time': newest['created_at'], 'daemon': 'two', 'option': option,
        'before': 1, 'after': 3,
    }  # fmt: skip
    assert (second['before'], second['after']) == (3, 1)
    assert json.loads(run(*log, second['time'])) == [second]
    # One that ends in order is listed no more; one that is killed is.
    assert two.end() == 0
    listed('one')
    one.popen.kill()
    one.popen.wait()
    assert listed('one')[0]['state'] in ('up', 'silent')


def test_daemons_that_reload_together_are_not_warned_about(
    make_store, monkeypatch, caplog
):
    """One is recorded a moment before the other."""
    # They look at each other where they are woken.
    monkeypatch.setattr(daemon, '_INTERVAL_S', 3600.0)
    store = make_store('sqlite')
    url = store.engine.url.render_as_string(hide_password=False)
    looks = Counter()

    def register(name):
        own = build(new_conf(database__connection=url), store)
        made = daemon.DaemonRegister(
            store,
            Registration(name, name, '1', 'before', {}),
            Peers(own.health),
            lambda: looks.update([name]),
            own.introspection,
            own.health,
        )
        made.start()
        return own.introspection, made

    running = {name: register(name) for name in ('one', 'two')}
    wait_until(lambda: len(looks) == 2)

    def look():
        seen = looks.copy()
        for _, each in running.values():
            each.wake()
        wait_until(lambda: all(looks[name] > seen[name] for name in running))

    for _, each in running.values():
        each.change(each.entry._replace(fingerprint='after'))
        look()
    counted = [own.daemons_differing for own, _ in running.values()]
    for _, each in running.values():
        assert each.stop(LIMIT_S)
    assert counted == [0, 0]
    assert 'shares the store' not in caplog.text


def test_configurations_are_shown_with_sources_and_without_secrets(
    launch, ready_sqlite, run, listed, monkeypatch, tmp_path
):
    monkeypatch.setenv('OS_SCHEDULER__BATCH_SIZE', '5')
    more = '[compute]\ntransport_url = rabbit://a:hunter2@b/\n'
    daemon = launch(ready_sqlite, 'inproc://', server('one', more))
    daemon.wait_for('Ready:')
    listed('one')
    for words in ([], ['--daemon', 'one']):
        text = run('configuration', 'show', '-f', 'json', *words)
        assert 'hunter2' not in text
        rows = {load['option']: load for load in json.loads(text)}
        file = str(tmp_path / '0.conf')
        assert rows['[scheduler] server'] == {
            'option': '[scheduler] server', 'value': 'one', 'source': file,
        }  # fmt: skip
        assert rows['[compute] transport_url']['value'] == '***'
        assert rows['[database] connection']['value'] == '***'
        assert rows['[scheduler] batch_size'] == {
            'option': '[scheduler] batch_size', 'value': 5,
            'source': 'variable OS_SCHEDULER__BATCH_SIZE',
        }  # fmt: skip
        assert '[scheduler] max_attempts' not in rows
        every = run('configuration', 'show', '--all', '-f', 'value', *words)
        assert '[scheduler] max_attempts 3 default' in every


def test_a_daemon_that_is_not_registered_has_no_configuration(
    ready_sqlite, capsys, tmp_path
):
    path = tmp_path / 'a.conf'
    path.write_text(f'[database]\nconnection = {ready_sqlite}\n')
    missing = 'No daemon x is registered'
    for words, expected in (
        (['show', '--daemon', 'x'], missing),
        (['diff', 'x'], missing),
        (['diff', '2001-02-03', '1m'], 'recorded until 2001-02-03T00:00:00'),
    ):
        given = ['--config-file', str(path), 'configuration', *words]
        assert manage.main(given) == 1
        assert expected in capsys.readouterr().err


@pytest.mark.broker
@pytest.mark.slow
def test_daemons_on_a_topic_with_other_databases_hear_of_each_other(
    launch, make_url, rabbitmq, run, topic, tmp_path, capsys
):
    bus = servers.new_vhost(*rabbitmq)
    names = ['one', 'two', 'three']
    # Not a copy of the tests' template: a copy has the same id.
    stores = [make_url('sqlite'), make_url('sqlite', empty=True)]
    migrate.sync(Store.connect(stores[1]))
    metrics = servers.free_port()
    daemons = [
        launch(
            stores[name == 'three'],
            bus,
            f'[scheduler]\nserver = {name}\ntopic = {topic}\n'
            + (f'[http]\nbind_port = {metrics}\n' if name == 'one' else ''),
        )
        for name in names
    ]
    one, two, three = daemons
    text = (
        'other daemons on the topic have another database, and decide a part '
        'of the requests: '
    )
    for each in (one, two):
        assert each.wait_for(f'Degraded: {text}').endswith(': three\n')
    assert three.wait_for(f'Degraded: {text}')
    # The first line names those that were heard of by then; it is repeated.
    assert three.wait_for(f'{text}one, two')

    def elsewhere():
        rows = json.loads(run('daemon', 'list', '-f', 'json'))
        names = {row['name']: row['other_database'] for row in rows}
        return names == {'one': ['three'], 'two': ['three']}

    wait_until(elsewhere)
    words = ['--config-file', str(tmp_path / '0.conf'), 'upgrade', 'check']
    assert status.main([*words, '--json']) == 1
    text = 'Other daemons on the topic have another database: three'
    assert text in capsys.readouterr().out
    address = f'http://127.0.0.1:{metrics}/metrics'
    body = urllib.request.urlopen(address).read().decode()
    assert 'scheduler_service_daemons_elsewhere 1.0' in body
    three.end()
    one.wait_for('All daemons on the topic share the database again')
