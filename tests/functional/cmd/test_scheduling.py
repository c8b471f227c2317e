"""Commands that schedule, with and without a daemon."""

from __future__ import annotations

import json
import sqlite3
import sys
from datetime import UTC, datetime
from importlib import metadata

import pytest

from scheduler_service import errors
from scheduler_service.cmd import manage
from scheduler_service.store.claims import pod_claims
from scheduler_service.store.claims.pod_claims import PodClaim
from scheduler_service.store.reading import loading
from tests.support.commands import printed_json
from tests.support.databases import connect
from tests.support.documents import SMALL
from tests.support.engines import store_all


def test_select_shows_reasons_when_run_on_the_store(run, tmp_path):
    request = tmp_path / 'r.json'
    request.write_text(json.dumps({'request_id': 'req-1', 'flavor': SMALL}))
    ask = ['select', '--local', '--request', str(request)]
    dry = printed_json(run(*ask, '--dry-run', '-f', 'json'))
    assert dry['placements'][0]['selected']['host'] == 'compute-4'
    assert 'finalists' not in str(dry['explanation'])
    table = run(*ask, '--explain')[1]
    assert 'compute-4' in table
    assert 'RamFilter' in table
    kept = printed_json(run('decision', 'show', 'req-1', '-f', 'json'))
    assert kept[0]['outcome'] == 'chosen'
    assert 'chosen' in run('decision', 'list')[1]
    assert 'RAMWeigher' in run('decision', 'show', 'req-1')[1]
    uuid = kept[0]['placements'][0]['instance_uuid']
    status, told, _ = run('release', '--local', uuid)
    assert (status, told) == (0, '1 of 1 held a claim.\n')
    assert run('release', '--local', uuid)[0] == 1
    assert run('decision', 'show', 'nothing')[0] == 1


def test_audit_fails_and_counts_all_that_differs(run, tmp_path, ready_sqlite):
    status, told, _ = run('audit')
    assert status == 0
    assert told.startswith('0 differences in ')
    uuid, group = (
        f'{digit * 8}-0000-4000-8000-000000000001' for digit in '78'
    )
    document = tmp_path / 'more.json'
    document.write_text(json.dumps({
        'instances': [{'uuid': uuid, 'host': 'compute-1'}],
        'server_groups': [{'uuid': group}],
    }))  # fmt: skip
    run('inventory', 'import', str(document))
    status, told, _ = run('audit')
    assert status == 1
    assert told.endswith(', 1 server groups: 1 running\n')
    assert run('audit', '-f', 'json')[0] == 1
    request = tmp_path / 'r.json'
    request.write_text(json.dumps({'flavor': SMALL, 'instance_group': group}))
    run('select', '--local', '--request', str(request))
    with sqlite3.connect(ready_sqlite.removeprefix('sqlite:///')) as database:
        database.execute('DELETE FROM server_group_members')
    database.close()
    status, told, _ = run('audit', '--fix')
    assert status == 1
    assert f'membership: {group} compute-4 ' in told
    assert told.endswith(': 1 membership, 1 running\n')


def test_select_shows_reasons_when_nothing_fits(run, tmp_path):
    request = tmp_path / 'r.json'
    request.write_text(json.dumps({'flavor': {'memory_mb': 99999}}))
    ask = ['select', '--local', '--request', str(request)]
    status, _, err = run(*ask)
    assert status == 1
    assert 'RamFilter' in err
    assert 'closest: compute-4' in err
    # The reasons can be read again.
    word, name = err.splitlines()[0].split()
    assert (word, name[:4]) == ('Request', 'req-')
    assert 'RamFilter' in run('decision', 'show', name)[1]
    assert 'Request' not in run(*ask, '--dry-run')[2]
    assert 'RamFilter' in run(*ask, '--host', 'compute-1')[1]
    status, out, err = run(*ask, '--explain')
    assert (status, 'closest: compute-4' in err) == (1, True)
    assert 'Filters that reject hosts' in out
    status, out, _ = run(*ask, '--explain', '-f', 'json')
    refusal = json.loads(out)['error']
    assert (status, refusal['name']) == (1, 'NoValidHost')
    assert refusal['facts']['funnel'][-1]['end'] == 0


def test_zone_schedule_shows_reasons_when_no_pool_fits(run):
    ask = ['zone', 'schedule', '--local', '--name', 'z.', '--explain']
    status, out, err = run(*ask, '--attribute', 'tier=none')
    assert status == 1
    assert 'NoValidPoolFound' in err
    assert 'attribute' in out


def test_select_fails_when_the_request_cannot_be_read(run, tmp_path):
    request = tmp_path / 'r.json'
    request.write_text('{"flavor": ')
    ask = ['select', '--local', '--request']
    for path in (str(request), str(tmp_path / 'nothing.json')):
        status, _, err = run(*ask, path)
        assert status == 1
        assert err.startswith(f'InvalidRequest: {path}: ')


def test_select_fails_when_no_daemon_answers(
    run, tmp_path, make_service, capsys
):
    request = tmp_path / 'r.json'
    request.write_text(json.dumps({'flavor': SMALL}))
    service = make_service()
    config = tmp_path / 'c.conf'
    config.write_text(f'[DEFAULT]\ntransport_url = {service.url}\n')
    ask = ['--config-file', str(config), 'select', '--request', str(request)]
    assert manage.main([*ask, '--explain']) == 0
    assert 'compute-4' in capsys.readouterr().out
    assert manage.main([*ask, '--host', 'compute-1']) == 0
    capsys.readouterr()
    assert manage.main(['--config-file', str(config), 'ping']) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) < 80
    assert any(line.startswith('counters:') for line in lines)
    zone = ['zone', 'schedule', '--name', 'z.', '--explain']
    assert manage.main(['--config-file', str(config), *zone]) == 0
    assert 'default' in capsys.readouterr().out
    config.write_text(
        '[DEFAULT]\ntransport_url = inproc://nobody/\n'
        'rpc_response_timeout = 1\n'
    )
    assert manage.main(ask) == 1
    assert 'No daemon answered' in capsys.readouterr().err


@pytest.fixture
def asking(make_service, tmp_path, capsys):
    """Give a function that runs a command which asks a daemon."""
    service = make_service(scheduler__server='one')
    config = tmp_path / 'asking.conf'
    config.write_text(f'[DEFAULT]\ntransport_url = {service.url}\n')

    def ask(*words, status=0):
        given = ['--config-file', str(config), *words]
        assert manage.main(given) == status
        return capsys.readouterr()

    return service, ask


def test_ping_has_the_last_minute_and_what_is_degraded_since_when(asking):
    service, ask = asking
    service.select_hosts(flavor=SMALL)
    store_all(service.daemon.scheduler)
    health = service.daemon.scheduler.health
    (before,) = json.loads(ask('ping', '-f', 'json').out)
    assert before['degraded_since'] is None
    assert before['release'] == metadata.version('scheduler-service')
    assert before['recent']['requests'] == {'chosen': 1}
    assert before['recent']['stages']['claim']['count'] == 1
    health.degrade('test', 'something is wrong')
    (after,) = json.loads(ask('ping', 'one', '-f', 'json').out)
    assert after['degraded'] == ['something is wrong']
    lines = ask('ping', 'one').out.splitlines()
    assert lines[:2] == ['degraded:', '- something is wrong']
    assert lines[2].startswith('degraded_since:')
    since = datetime.fromisoformat(after['degraded_since'])
    assert 0 <= (datetime.now(UTC) - since).total_seconds() < 60
    err = ask('--timeout', '4', 'ping', 'noe', status=1).err
    assert err == (
        'ServiceBusy: Daemon noe does not answer, but one does; '
        'there are one; is one meant?\n'
    )


def test_top_prints_a_line_for_each_time_where_it_is_piped(asking):
    service, ask = asking
    service.select_hosts(flavor=SMALL)
    with pytest.raises(errors.NoValidHost):
        service.select_hosts(flavor={'vcpus': 999})
    lines = ask('top', '--count', '2').out.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert 'last minute, per second:  rate ' in line
        assert 'queue 0' in line
        assert line.endswith('one: well')
    service.daemon.scheduler.health.degrade('test', 'something is wrong')
    assert ask('top', '--count', '1').out.endswith('one: something is wrong\n')


def test_top_prints_tables_on_a_terminal(asking, monkeypatch):
    service, ask = asking
    with pytest.raises(errors.NoValidHost):
        service.select_hosts(flavor={'vcpus': 999})
    store_all(service.daemon.scheduler)
    monkeypatch.setattr(sys.stdout, 'isatty', lambda: True, raising=False)
    text = ask('top', '--count', '1').out
    for part in (
        'rates per second, of the last minute',
        'Stages of the last minute',
        'CoreFilter NoValidHost',
        'Fullest zones',
        'MEMORY_MB',
    ):
        assert part in text


@pytest.mark.parametrize('command', [('release', '--local'),
                                     ('claim', 'release')])  # fmt: skip
def test_a_release_names_the_pods_among_what_it_released(
    run, ready_sqlite, command
):
    pod, uid = 'default/web', '99999999-0000-4000-8000-000000000001'
    store = connect(ready_sqlite)
    with store.reading() as conn:
        host = min(loading.host_names(conn))
    claim = PodClaim(uid, pod, host, host, {'MEMORY_MB': 64})
    store.write(lambda writer: pod_claims.confirm(writer, [claim]))
    status, told, _ = run(*command, uid)
    assert status == 0
    assert f'{uid} released (pod {pod} on {host})\n' in told
