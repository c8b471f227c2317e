"""Why was a request decided as it was, and what would change it?"""

import contextlib
import json
import uuid

import pytest
import sqlalchemy as sa

from scheduler_service import conf as options
from scheduler_service import errors
from scheduler_service.cmd import adapters
from scheduler_service.cmd.connections import registration
from scheduler_service.factory import build
from scheduler_service.model import documents
from scheduler_service.store import schema
from scheduler_service.store.connection import Store
from scheduler_service.store.records import daemons
from tests.support import placement_engines
from tests.support.databases import session
from tests.support.extenders import entry, extender, pass_only
from tests.support.services import new_conf
from tests.support.waiting import LIMIT_S

FLAVOR = {'vcpus': 1, 'memory_mb': 2048, 'root_gb': 1}
LARGE = {**FLAVOR, 'memory_mb': 99_999}


@pytest.fixture
def select(decide):
    return decide


def why(run, *words):
    status, out, err = run('why', *words, '-f', 'json')
    assert status == 0, err
    return json.loads(out), err


def test_a_refusal_has_its_funnel_and_the_smallest_changes(run, select):
    select(LARGE, request_id='req-large', availability_zone='north')
    found, err = why(run, 'req-large')
    assert err == ''
    assert found['outcome'] == 'NoValidHost'
    steps = {step['filter']: step for step in found['decision']['funnel']}
    assert (steps['RamFilter']['start'], steps['RamFilter']['end']) == (2, 0)
    (rejects,) = [
        each
        for each in found['decision']['filters']
        if each['filter'] == 'RamFilter'
    ]
    assert rejects['closest']['host'] in ('compute-1', 'compute-2')
    assert found['passing'] == 0
    (change,) = found['relaxations']
    assert change == {
        'change': 'memory_mb 8,194 in place of 99,999', 'hosts': 1,
    }  # fmt: skip
    status, out, _ = run('why', 'req-large')
    assert status == 0
    assert 'What would let hosts pass' in out
    assert 'memory_mb 8,194 in place of 99,999' in out


def test_a_host_is_judged_beside_the_best(run, select):
    select(FLAVOR, request_id='req-north', availability_zone='north')
    found, err = why(run, 'req-north', '--host', 'compute-3')
    assert (found['as_of'], err) == ('then', '')
    (node,) = found['nodes']
    verdicts = {each['filter']: each for each in node['filters']}
    assert not verdicts['AvailabilityZoneFilter']['passes']
    assert verdicts['RamFilter']['passes']
    amounts = {each['resource']: each for each in node['amounts']}
    assert amounts['MEMORY_MB']['asked'] == 2048
    free, lacks = (amounts['MEMORY_MB'][name] for name in ('free', 'lacks'))
    assert (type(free), free > 2048, lacks) == (int, True, 0)
    assert node['weights']['best'] in ('compute-1', 'compute-2')
    (ram,) = [
        each
        for each in node['weights']['weighers']
        if each['weigher'] == 'RAMWeigher'
    ]
    assert ram['raw'] != ram['best_raw']
    status, out, _ = run('why', 'req-north', '--host', 'compute-3')
    assert status == 0
    assert 'Weights beside the best host, compute-' in out
    assert 'Amounts of compute-3' in out


def test_each_attempt_and_each_instance_can_be_named(run, select):
    for memory in (99_999, 1024):
        select({**FLAVOR, 'memory_mb': memory}, request_id='req-twice')
    assert why(run, 'req-twice', '--attempt', '1')[0]['outcome'] != 'chosen'
    last = why(run, 'req-twice')[0]
    assert last['outcome'] == 'chosen'
    assert last['passing'] == 4
    uuid = why_instance(run)
    words = 'req-twice', '--instance', uuid, '--host', 'compute-1'
    assert why(run, *words)[0]['nodes']
    for more, text in (
        (('--attempt', '3'), 'There is no attempt 3: 2 are kept'),
        (('--instance', f'{uuid[:-1]}{int(uuid[-1], 16) ^ 1:x}'),
         'has no instance'),
        (('--host', 'nowhere'), 'nowhere'),
    ):  # fmt: skip
        status, _, err = run('why', 'req-twice', *more)
        assert status == 1
        assert text in err
    status, _, err = run('why', 'req-none')
    assert (status, err.split(':')[0]) == (1, 'DecisionNotFound')


def test_the_hosts_are_those_of_then(run, select, tmp_path):
    """Though they are full by now, or were not there then."""
    select(FLAVOR, request_id='req-first', availability_zone='north')
    (claim,) = json.loads(run('claim', 'list', '-f', 'json')[1])
    chosen = claim['host']
    other = {'compute-1': 'compute-2', 'compute-2': 'compute-1'}[chosen]
    for _ in range(2):
        select({**FLAVOR, 'memory_mb': 4096}, availability_zone='north')
    found, err = why(run, 'req-first', '--host', chosen)
    assert (found['as_of'], err) == ('then', '')
    (node,) = found['nodes']
    amounts = {each['resource']: each for each in node['amounts']}
    assert amounts['MEMORY_MB']['free'] > 8000
    assert node['weights']['best'] == chosen
    (now,) = found['now']
    assert not now['taken']
    differs = {each['figure']: each for each in now['differs']}
    assert differs['num_instances']['then'] == 0
    assert differs['MEMORY_MB used']['now'] > 2048
    (node,) = why(run, 'req-first', '--host', other)[0]['nodes']
    assert node['weights']['best'] == chosen
    path = tmp_path / 'new.json'
    path.write_text(json.dumps({'hosts': [{'host': 'new', 'vcpus': 4}]}))
    assert run('inventory', 'import', str(path))[0] == 0
    status, _, err = run('why', 'req-first', '--host', 'new')
    assert status == 1
    assert err.startswith('HostNotFound')
    out = run('why', 'req-first', '--host', chosen)[1]
    assert f'{chosen} would not be taken now.' in out
    assert 'What differs since' in out


def test_an_instance_is_judged_beside_those_placed_before_it(run, select):
    select({**FLAVOR, 'memory_mb': 2500}, 3, request_id='req-3',
           availability_zone='north')  # fmt: skip
    claims = json.loads(run('claim', 'list', '-f', 'json')[1])
    free = {}
    for claim in claims:
        words = '--host', claim['host'], '--instance', claim['uuid']
        (node,) = why(run, 'req-3', *words)[0]['nodes']
        assert node['weights']['best'] == claim['host']
        amounts = {each['resource']: each for each in node['amounts']}
        free.setdefault(claim['host'], []).append(
            round(amounts['MEMORY_MB']['free'])
        )
    assert sorted(map(len, free.values())) == [1, 2]
    for some in free.values():
        assert len(set(some)) == len(some)


@pytest.mark.parametrize(
    'engine', [{'filter_scheduler__host_subset_size': 4}], indirect=True
)
def test_a_host_is_judged_beside_the_one_that_was_taken(run, select):
    for _ in range(6):
        select({**FLAVOR, 'memory_mb': 64})
    for claim in json.loads(run('claim', 'list', '-f', 'json')[1]):
        found, _ = why(run, claim['uuid'], '--host', 'compute-1')
        assert found['nodes'][0]['weights']['best'] == claim['host']


def test_another_configuration_is_named(run, select, ready_sqlite):
    select(LARGE, request_id='req-large')
    name_configuration(ready_sqlite, 'abc')
    found, err = why(run, 'req-large')
    assert found['as_of'] == 'then'
    assert found['judged_by'] != 'abc'
    assert err == (
        'The configuration abc is not kept any more: it is judged by the '
        'present one\n'
    )


def test_a_host_is_judged_by_the_configuration_of_then(
    run, select, ready_sqlite, tmp_path
):
    """Whatever the files say by now, unless a file of then has changed."""
    config, policy = tmp_path / 'a.conf', tmp_path / 'policy.json'
    before = config.read_text()
    policy.write_text(json.dumps({
        'kind': 'Policy', 'apiVersion': 'v1', 'extenders': [],
        'predicates': [{'name': 'PodFitsResources'}],
    }))  # fmt: skip
    then = (
        f'{before}[extender]\npolicy_file = {policy}\n'
        '[DEFAULT]\nram_allocation_ratio = 8.0\ncpu_allocation_ratio = 2\n'
        '[pci]\nalias = {"name": "a", "vendor_id": "8086", '
        '"product_id": "0001"}\n'
    )
    config.write_text(then)
    select(FLAVOR, request_id='req-then')
    record_configuration(ready_sqlite, config)
    now = why(run, 'req-then')
    assert now[1] == ''
    config.write_text(f'{before}[filter_scheduler]\nenabled_filters =\n')
    found, err = why(run, 'req-then')
    assert (found, err) == now
    words = 'req-then', '--host', 'compute-1'
    (node,) = why(run, *words)[0]['nodes']
    # Those of the policy file.
    names = {each['filter'] for each in node['filters']}
    assert 'RamFilter' in names
    assert 'ImagePropertiesFilter' not in names
    out = run('why', 'req-then')[1]
    assert f'judged by configuration {found["judged_by"]}' in out
    policy.write_text(policy.read_text() + ' ')
    found, err = why(run, 'req-then')
    assert found['judged_by'] != now[0]['judged_by']
    assert f'{now[0]["judged_by"]} had other files: [files] extender.' in err
    # An option that is not valid any more.
    with session(ready_sqlite) as conn:
        column = schema.configurations.c.document
        old, new = (f'"ram_allocation_ratio":{{"value":{x}' for x in (8.0, -8))
        wrong = sa.func.replace(column, old, new)
        conn.execute(sa.update(schema.configurations).values(document=wrong))
    err = why(run, 'req-then')[1]
    assert 'does not load' in err
    assert 'is judged by the present one' in err


def record_configuration(database, config):
    """Keep the configuration of the decision, as a daemon does."""
    conf = adapters.new_config()
    options.parse(conf, ['--config-file', str(config)])
    entry = registration(conf, 'one', uuid.uuid4().hex)
    store = Store.connect(database)
    store.write(lambda writer: daemons.register(writer, entry))
    store.dispose()
    name_configuration(database, entry.fingerprint)


def name_configuration(database, fingerprint):
    """Have the only decision be made with a configuration."""
    with session(database) as conn:
        text = conn.execute(sa.select(schema.decisions.c.document)).scalar()
        document = {**json.loads(text), 'configuration': fingerprint}
        conn.execute(
            sa.update(schema.decisions).values(document=json.dumps(document))
        )


def test_what_is_not_recorded_is_said_in_a_line(run, select, ready_sqlite):
    select(LARGE, request_id='req-lost')
    with session(ready_sqlite) as conn:
        conn.execute(sa.delete(schema.history))
    status, out, err = run('why', 'req-lost', '-f', 'json')
    assert status == 1
    assert err.splitlines() == [
        'The history does not go back as far as that: the hosts are those of '
        'now'
    ]
    found = json.loads(out)
    assert found['as_of'] == 'now'
    assert found['relaxations']


def test_where_two_changes_are_needed_the_fittest_host_is_shown(run, select):
    """It has least of no resource, among those that are asked for by name."""
    flavor = {'vcpus': 999, 'memory_mb': 999_999, 'root_gb': 1}
    select(flavor, request_id='req-two', availability_zone='north')
    _, out, _ = run('why', 'req-two', '-f', 'json')
    found = json.loads(out)
    assert found['relaxations'] == []
    fittest = found['fittest']
    # The zone has two hosts, of which this one has more memory.
    assert fittest['host'] == 'compute-2'
    by_class = {row['resource']: row for row in fittest['amounts']}
    assert by_class['VCPU']['asked'] == 999
    assert by_class['MEMORY_MB']['free'] == 8194
    assert by_class['MEMORY_MB']['lacks'] == 999_999 - 8194
    _, out, _ = run('why', 'req-two')
    assert 'No single change lets a host pass.' in out
    assert 'Amounts of compute-2' in out


def test_the_hosts_that_were_taken_are_named_with_their_rank(run, select):
    """Of each instance, when it was placed."""
    select({**FLAVOR, 'memory_mb': 2500}, 3, request_id='req-3')
    claims = json.loads(run('claim', 'list', '-f', 'json')[1])
    taken = why(run, 'req-3')[0]['taken']
    assert {each['instance']: each['host'] for each in taken} == {
        claim['uuid']: claim['host'] for claim in claims
    }
    assert [each['rank'] for each in taken] == [1, 1, 1]
    out = run('why', 'req-3')[1]
    assert 'Hosts that were taken' in out
    for claim in claims:
        assert claim['uuid'] in out


@pytest.mark.parametrize(
    'engine', [{'filter_scheduler__host_subset_size': 4}], indirect=True
)
def test_the_rank_is_that_among_the_hosts_of_then(run, select):
    # That each gets the best of four has one chance in ten million.
    for _ in range(12):
        select({**FLAVOR, 'memory_mb': 64})
    ranks = []
    for claim in json.loads(run('claim', 'list', '-f', 'json')[1]):
        found = why(run, claim['uuid'])[0]
        (place,) = found['taken']
        ranks.append(place['rank'])
        better = [
            each['host']
            for each in found['decision']['finalists']
            if each['host'] != place['host']
        ]
        assert ranks[-1] <= len(better) + 1
    assert max(ranks) > 1


@pytest.fixture
def extended(ready_sqlite, tmp_path):
    """Give a function that selects hosts which an extender lets pass."""

    def ask(answer, request_id, **flavor):
        with extender(answer) as server:
            path = tmp_path / 'policy.json'
            path.write_text(json.dumps({
                'kind': 'Policy', 'apiVersion': 'v1',
                'extenders': [entry(server, httpTimeout=10**10)],
            }))  # fmt: skip
            store = Store.connect(ready_sqlite)
            conf = new_conf(
                database__connection=ready_sqlite,
                extender__policy_file=str(path),
            )
            engine = build(conf, store, policy=adapters.policy(conf))
            assert engine.start()
            request = documents.request(
                {'flavor': {**FLAVOR, **flavor}, 'request_id': request_id}
            )
            with contextlib.suppress(errors.SchedulerError):
                engine.select_destinations(request).result(LIMIT_S)
            engine.stop()
            store.dispose()

    return ask


def test_what_extenders_took_out_is_named(run, extended):
    """Of a request that they let pass, and of one that they refused."""
    extended(pass_only('compute-2', 'compute-3'), 'req-some')
    found, err = why(run, 'req-some')
    assert (found['passing'], err) == (2, '')
    (place,) = found['taken']
    assert (place['host'], place['rank']) == (
        found['decision']['finalists'][0]['host'], 1,
    )  # fmt: skip
    (node,) = why(run, 'req-some', '--host', 'compute-1')[0]['nodes']
    failed = [each for each in node['filters'] if not each['passes']]
    assert [(each['filter'], each['reason']) for each in failed] == [
        ('extenders and placement', 'Extenders or placement took it out')
    ]
    assert node['weights']['best'] == place['host']
    extended(pass_only(), 'req-none')
    status, out, _ = run('why', 'req-none')
    assert status == 1
    assert (
        '4 hosts pass the filters; extenders or the placement service took '
        'them out.'
    ) in out
    # What a filter refuses could pass the filters with another amount.
    extended(pass_only('compute-2'), 'req-large', memory_mb=99_999)
    assert why(run, 'req-large')[0]['relaxations']


@pytest.fixture
def with_placement(ready_sqlite, fake):
    """Give a function that asks for so much of a provider below a host's.

    Three hosts have it, the last of them the most.
    """
    store = Store.connect(ready_sqlite)
    roots = [placement_engines.add_host(store, fake) for _ in range(3)]
    for root, amount in zip(roots, (1, 1, 2), strict=True):
        fake.add_provider(root, CUSTOM_FPGA=amount)

    def ask(amount, request_id):
        group = {'suffix': '1', 'resources': {'CUSTOM_FPGA': amount}}
        request = placement_engines.request(
            *placement_engines.new(),
            resource_groups=[group],
            request_id=request_id,
        )
        with (
            placement_engines.engine(store, fake) as running,
            contextlib.suppress(errors.NoValidHost),
        ):
            running.select_destinations(request).result(LIMIT_S)
        return [f'h-{root}' for root in roots]

    yield ask
    store.dispose()


def test_what_placement_took_out_is_named(run, with_placement):
    """Of a request with a candidate, and of one without."""
    first, _, last = with_placement(2, 'req-some')
    found, err = why(run, 'req-some')
    assert (found['passing'], found['passing_filters'], err) == (1, 3, '')
    (place,) = found['taken']
    assert (place['host'], place['rank']) == (last, 1)
    (node,) = why(run, 'req-some', '--host', first)[0]['nodes']
    failed = [each for each in node['filters'] if not each['passes']]
    assert [(each['filter'], each['reason']) for each in failed] == [
        ('extenders and placement', 'Extenders or placement took it out')
    ]
    assert node['weights']['best'] == last
    with_placement(3, 'req-none')
    status, out, _ = run('why', 'req-none')
    assert status == 1
    assert (
        '3 hosts pass the filters; extenders or the placement service took '
        'them out.'
    ) in out


def test_a_block_that_is_damaged_is_named(run, select, ready_sqlite):
    select(FLAVOR, request_id='req-one')
    columns = schema.history.c
    with session(ready_sqlite) as conn:
        run_id, number = conn.execute(
            sa.select(schema.decisions.c.run, schema.decisions.c.block)
        ).one()
        block = sa.update(schema.history).where(columns.number == number)
        conn.execute(block.values(data=b'x'))
    status, _, err = run('why', 'req-one')
    assert status == 1
    assert err.startswith(
        'This decision cannot be made again: '
        f'Block {number} of run {run_id} is damaged: '
    )
    with session(ready_sqlite) as conn:
        conn.execute(sa.delete(schema.history))
    _, _, err = run('why', 'req-one')
    assert err.endswith('its request is not recorded any more\n')


def why_instance(run):
    _, out, _ = run('claim', 'list', '-f', 'json')
    return json.loads(out)[0]['uuid']


def test_a_decision_on_a_zone_cannot_be_made_again(run):
    words = 'zone', 'schedule', '--local', '--name', 'example.org.'
    assert run(*words)[0] == 0
    _, out, _ = run('decision', 'list', '-f', 'json')
    (row,) = json.loads(out)
    status, out, err = run('why', row['request_id'])
    assert status == 1
    assert 'cannot be made again' in err
    assert 'schedule_zone: chosen' in out
    status, out, _ = run('why', row['request_id'], '-f', 'json')
    assert (status, json.loads(out)['as_of']) == (1, None)
