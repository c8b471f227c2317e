"""The line that a daemon writes for each decision, and the ids in it."""

import json
import logging
import re

import pytest

from scheduler_service import errors
from tests.support.databases import ready_database
from tests.support.documents import CONTEXT, SMALL
from tests.support.engines import store_all
from tests.support.processes import on_topic
from tests.support.waiting import wait_until

LOGGER = 'scheduler_service.store.workers.decision_recorder'
GLOBAL = 'req-99999999-0000-4000-8000-000000000001'
CALLER = {
    **CONTEXT,
    'request_id': 'req-11111111-0000-4000-8000-000000000001',
    'global_request_id': GLOBAL,
}
HUGE = {'vcpus': 999, 'memory_mb': 512}


@pytest.fixture
def lines(make_service, caplog):
    """Give a service, and a function that returns the lines so far."""
    caplog.set_level(logging.INFO, LOGGER)

    def texts():
        store_all(service.daemon.scheduler)
        return [
            record.getMessage()
            for record in caplog.records
            if record.name == LOGGER
        ]

    service = make_service()
    return service, texts


@pytest.mark.broker
@pytest.mark.db
def test_json_lines_carry_the_context_of_the_caller(
    connect, launch, rabbitmq, postgresql, topic
):
    daemon = launch(
        ready_database(postgresql[1]),
        rabbitmq[1],
        f'[DEFAULT]\nuse_json = true\n{on_topic(topic)}',
    )
    daemon.wait_for('Ready:')
    client = connect(rabbitmq[1], topic)
    client.select_destinations(
        CALLER, {'flavor': SMALL, 'project_id': 'owner'}
    )
    line = json.loads(daemon.wait_for('select_destinations: chosen host'))
    assert line['levelname'] == 'INFO'
    assert line['name'] == LOGGER
    context = line['context']
    assert context['user'] == CALLER['user_id']
    assert context['project_id'] == CALLER['project_id']
    assert context['request_id'] == CALLER['request_id']
    assert context['global_request_id'] == GLOBAL
    assert re.fullmatch(
        r'select_destinations: chosen host compute-4; [\d.]+ ms, request '
        f'{CALLER["request_id"]}, project owner',
        line['message'],
    )
    assert daemon.end() == 0
    assert not daemon.count('"levelname": "WARNING"')


def test_each_outcome_is_told(lines):
    service, texts = lines
    client = service.client
    client.select_destinations(CONTEXT, {'flavor': SMALL})
    client.select_destinations(
        CONTEXT, {'flavor': SMALL, 'num_instances': 9}, claim=False
    )
    with pytest.raises(errors.NoValidHost):
        client.select_destinations(CONTEXT, {'flavor': HUGE})
    client.schedule_zone(CONTEXT, {'name': 'a.'})
    client.explain(CONTEXT, {'flavor': SMALL})
    client.ping(CONTEXT)
    found = [re.sub(r'; .*', '', line) for line in texts()]
    assert found[0] == 'select_destinations: chosen host compute-4'
    assert found[1].startswith('select_destinations: chosen hosts compute-')
    assert found[1].endswith(', nothing claimed')
    assert ' x 2' in found[1]
    assert found[2:] == [
        'select_destinations: NoValidHost',
        'schedule_zone: chosen pool default',
    ]


def test_a_message_with_many_requests_gets_one_line(lines):
    service, texts = lines
    small = {'select_destinations': {'flavor': SMALL}}
    huge = {'select_destinations': {'flavor': HUGE}}
    wrong = {'select_destinations': {'flavor': 'none'}}
    service.client.schedule_many(CALLER, [small, small, huge, small, wrong])
    (line,) = texts()
    assert line.startswith(
        'schedule_many: 5 requests, 3 chosen, 1 NoValidHost, '
        '1 InvalidRequest; '
    )
    assert f'request {CALLER["request_id"]}, project p' in line


def test_there_are_no_lines_when_they_are_turned_off(make_service, caplog):
    caplog.set_level(logging.INFO, LOGGER)
    service = make_service(scheduler__log_decisions=False)
    service.select_hosts()
    store_all(service.daemon.scheduler)
    assert not [record for record in caplog.records if record.name == LOGGER]


def test_a_caller_cannot_write_lines_of_its_own(lines, caplog):
    service, texts = lines
    evil = 'a\n2026 INFO nothing happened'
    service.client.select_destinations(
        {**CALLER, 'global_request_id': evil},
        {'flavor': SMALL, 'request_id': evil, 'project_id': evil},
    )
    (line,) = texts()
    assert '\n' not in line
    assert ascii(evil) in line
    (record,) = [record for record in caplog.records if record.name == LOGGER]
    assert '\n' not in record.context.global_request_id
    # What cannot be a line of a log is no id to look for.
    (kept,) = kept_decisions(service, CALLER['request_id'])
    assert kept['global_request_id'] is None


def kept_decisions(service, request_id):
    """Return the decisions of a request, once there is one."""
    scheduler = service.daemon.scheduler

    def kept():
        try:
            return scheduler.decision(request_id)
        except errors.DecisionNotFound:
            return []

    return wait_until(kept)


def test_the_ids_of_the_caller_are_kept_and_found(make_service):
    service = make_service()
    client = service.client
    mine = CALLER['request_id']
    answer = client.select_destinations(CALLER, {'flavor': SMALL})
    assert answer['request_id'] == mine
    zone = client.schedule_zone(CALLER, {'name': 'a.'})
    assert zone['request_id'] == mine
    named = {'flavor': SMALL, 'request_id': 'req-named'}
    answer = client.select_destinations(CALLER, named)
    assert answer['request_id'] == 'req-named'
    many = [{'select_destinations': {'flavor': SMALL}}] * 2
    ids = {
        one['result']['request_id']
        for one in client.schedule_many(CALLER, many)
    }
    assert len(ids) == 2
    # The recorder may be storing them at this moment.
    wait_until(lambda: len(kept_decisions(service, GLOBAL)) == 5)
    assert len(kept_decisions(service, mine)) == 5
    (kept,) = kept_decisions(service, 'req-named')
    assert kept['caller_request_id'] == mine
    assert kept['global_request_id'] == GLOBAL
    with pytest.raises(errors.DecisionNotFound):
        service.daemon.scheduler.decision('req-other')
    # Callers without ids get fresh ones, as before.
    answer = client.select_destinations(CONTEXT, {'flavor': SMALL})
    (kept,) = kept_decisions(service, answer['request_id'])
    assert kept['caller_request_id'] is None


def test_lines_are_written_by_themselves(make_service, caplog):
    caplog.set_level(logging.INFO, LOGGER)
    service = make_service()
    service.select_hosts()
    (line,) = wait_until(
        lambda: [record for record in caplog.records if record.name == LOGGER],
    )
    assert line.threadName == 'decision-recorder'
