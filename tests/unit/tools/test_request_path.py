"""What ``tools.request_path`` prints of a recording."""

from __future__ import annotations

import threading

import pytest

from scheduler_service import specops
from scheduler_service.model import documents
from scheduler_service.pipeline import filtering
from tests.support.recording import Function, Recorder, Recording
from tools import request_path

PLAN = Function('pipeline.filtering', 'pipeline/filtering.py',
                'Filtering.plan', 90)  # fmt: skip
INNER = PLAN._replace(name='Filtering.plan.<locals>.<listcomp>')
FILTER = Function('filters', 'filters/__init__.py', 'named.<lambda>', 1)
SERVER = Function('rpc.server', 'rpc/server.py', 'Server._finish', 1)
FOUND = Recording(
    [
        ('bus', SERVER),
        ('engine', PLAN),
        ('engine', FILTER),
        ('engine', INNER),
        ('engine', PLAN),
        ('bus', PLAN),
    ],
    {('rpc.server', 'Pending'): 1, ('pipeline.filtering', 'Passed'): 2},
)


def test_functions_are_listed_once_for_each_thread():
    lines = [line.split() for line in request_path.function_lines(FOUND)]
    assert lines == [
        ['bus:'],
        ['rpc/server.py', 'Server._finish'],
        ['pipeline/filtering.py', 'Filtering.plan'],
        [],
        ['engine:'],
        ['pipeline/filtering.py', 'Filtering.plan'],
        ['filters/__init__.py', 'named.<lambda>'],
        ['pipeline/filtering.py', 'Filtering.plan.<locals>.<listcomp>'],
        [],
    ]


def test_totals_count_functions_once_and_also_without_plugins_and_rpc():
    assert [line.split() for line in request_path.total_lines(FOUND)][2:] == [
        ['bus', '2', '2', '1', '1'],
        ['engine', '3', '2', '2', '1'],
        ['all', 'threads', '4', '3', '2', '1'],
        ['classes', '2', '1'],
    ]


def test_a_row_has_what_the_function_says_of_itself():
    row = list(request_path.row_lines(FOUND))[1]
    said = filtering.Filtering.plan.__doc__.partition('\n')[0]
    assert row == f'   ``pipeline.filtering:Filtering.plan`` | bus | {said}'
    assert '<locals>' not in ''.join(request_path.row_lines(FOUND))


def on_a_thread(*calls):
    """Call each function on a thread of its own; return what is recorded.

    The last is recorded beside the others.
    """
    recorder = Recorder()
    recorder.install()
    idle = None
    for call in calls:
        recorder.start(idle)
        thread = threading.Thread(target=call, name='worker-1')
        thread.start()
        thread.join()
        idle = recorder.stop()
    recorder.uninstall()
    return idle


def test_what_an_idle_thread_executes_is_left_out():
    def both():
        specops.match('1', '<= 2')
        documents.request({'flavor': {'vcpus': 1}})

    found = on_a_thread(lambda: specops.match('1', '<= 2'), both)
    idle = on_a_thread(lambda: specops.match('1', '<= 2'))
    labels = [one.label for one in found.without(idle).functions('worker')]
    assert labels[0] == 'model.documents:request'
    assert 'model.request:Request.__post_init__' in labels
    assert 'specops:match' in [one.label for _, one in found.calls]


def test_instances_are_counted_that_were_not_there_before():
    known = documents.request({'flavor': {'vcpus': 1}})

    def work():
        assert known.resources
        documents.request({'flavor': {'vcpus': 1}})

    found = on_a_thread(lambda: None, work)
    assert found.made[('model.request', 'Request')] == 1
    assert found.made[('model.request', 'Flavor')] == 1


@pytest.mark.parametrize(
    ('rows', 'missing'),
    [
        ([(PLAN.label, 'engine'), (FILTER.label, 'engine')], []),
        ([(FILTER.label, 'engine'), (PLAN.label, 'engine')], []),
        ([(FILTER.label, 'engine')] * 2, [FILTER.label]),
        ([(SERVER.label, 'engine')], [SERVER.label]),
        ([(SERVER.label, 'reply')], [SERVER.label]),
        ([(PLAN.label, 'bus'), (SERVER.label, 'bus')], [SERVER.label]),
    ],
)
def test_rows_that_are_not_called_in_turn_are_missing(rows, missing):
    assert FOUND.missing(rows) == missing
