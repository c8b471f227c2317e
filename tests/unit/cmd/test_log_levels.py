"""Levels of loggers that change while the process runs."""

import logging
import subprocess
import sys
import threading

import pytest
from oslo_context import context

from scheduler_service import errors
from scheduler_service.cmd import log_levels
from tests.support.services import new_conf
from tests.support.waiting import LIMIT_S


@pytest.fixture(autouse=True)
def _without_context(monkeypatch):
    """Leave out the context that a test before has left on this thread."""
    monkeypatch.setattr(context, '_request_store', threading.local())


@pytest.fixture(autouse=True)
def _restored():
    root = logging.getLogger()
    before = root.level
    yield
    root.setLevel(before)
    for name in ('one.of', 'another.of'):
        logging.getLogger(name).setLevel(logging.NOTSET)


def test_levels_are_changed_and_those_that_went_are_lifted():
    first = new_conf(default_log_levels=['one.of=ERROR'])
    log_levels.change(first, new_conf(default_log_levels=[]))
    assert logging.getLogger('one.of').level == logging.ERROR
    assert logging.getLogger().level == logging.INFO
    second = new_conf(default_log_levels=['another.of=15'], debug=True)
    log_levels.change(second, first)
    assert logging.getLogger('one.of').level == logging.NOTSET
    assert logging.getLogger('another.of').level == 15
    assert logging.getLogger().level == logging.DEBUG


def test_an_unknown_level_is_refused():
    with pytest.raises(errors.ConfigurationError) as caught:
        log_levels.check(new_conf(default_log_levels=['amqp=WRAN']))
    assert 'default_log_levels: amqp=WRAN' in caught.value.args[0]


@pytest.mark.parametrize('text', [None, 'nonsense', '[loggers]\nkeys=root\n'])
def test_a_log_configuration_that_cannot_be_read_is_refused(tmp_path, text):
    path = tmp_path / 'log.conf'
    if text is not None:
        path.write_text(text)
    with pytest.raises(errors.ConfigurationError) as caught:
        log_levels.check(new_conf(log_config_append=str(path)))
    assert 'log_config_append' in caught.value.args[0]


@pytest.mark.parametrize(
    ('message', 'line'),
    [
        ('Refused: {}', 'Refused: no such thing'),
        ('Refused', 'Refused: scheduler_service.errors.ConfigurationError: '
         'no such thing'),
    ],
)  # fmt: skip
def test_a_line_names_the_error_once(message, line):
    # With a request's context, and without one.
    conf = new_conf(
        logging_default_format_string='%(message)s',
        logging_context_format_string='%(message)s',
    )
    formatter = log_levels.Formatter(config=conf)
    try:
        raise errors.ConfigurationError('no such thing')
    except errors.ConfigurationError as fault:
        made = _record(message.format(fault))
        assert formatter.format(made) == line


def test_a_traceback_is_kept():
    formatter = log_levels.Formatter(config=new_conf())
    try:
        raise errors.ConfigurationError('no such thing')
    except errors.ConfigurationError as fault:
        made = _record(f'Refused: {fault}', sys.exc_info())
    assert 'Traceback' in formatter.format(made)


FORGED = 'no such method: x\n2026-11-23 11:00:00.000 1 INFO all is well'


@pytest.mark.parametrize(
    ('message', 'line'),
    [
        (FORGED, FORGED.replace('\n', r'\n')),
        ('a\rb\x1b[2Jc', r'a\rb\x1b[2Jc'),
        ('a\u2028b\ud800c', r'a\u2028b\ud800c'),
        ('a\tb \u00e9 \U0001f600', 'a\\tb \u00e9 \U0001f600'),
    ],
)
def test_nobody_forges_a_line(message, line):
    conf = new_conf(logging_default_format_string='%(message)s')
    formatter = log_levels.Formatter(config=conf)
    assert formatter.format(_record(message)) == line
    # The record stays as it is for other handlers.
    made = _record(message, (ValueError, ValueError('one'), None))
    first, *rest = formatter.format(made).split('\n')
    assert line in first
    assert 'ValueError: one' in '\n'.join(rest)
    assert made.getMessage() == message


def test_nobody_forges_a_line_by_an_error_that_is_appended():
    conf = new_conf(logging_default_format_string='%(message)s')
    formatter = log_levels.Formatter(config=conf)
    try:
        raise errors.InvalidRequest('x\rall is well')
    except errors.InvalidRequest:
        line = formatter.format(_record('Refused'))
    assert line.endswith(r'InvalidRequest: x\rall is well')


def test_lines_of_text_get_this_form_and_others_do_not(monkeypatch):
    monkeypatch.setattr(logging.getLogger(), 'handlers', [])
    log_levels.set_up(new_conf())
    (handler,) = logging.getLogger().handlers
    assert isinstance(handler.formatter, log_levels.Formatter)
    log_levels.set_up(new_conf(use_json=True))
    (handler,) = logging.getLogger().handlers
    assert not isinstance(handler.formatter, log_levels.Formatter)


def _record(message, exc_info=None):
    return logging.LogRecord(
        'one.of', logging.ERROR, 'a.py', 1, message, (), exc_info
    )


def test_a_warning_of_a_command_cannot_move_the_cursor():
    program = (
        'import logging; from scheduler_service.cmd import log_levels; '
        'log_levels.set_up_command(); '
        'logging.getLogger("scheduler_service").warning("a\\x1b[1m%s", "b\\n")'
    )
    done = subprocess.run(
        [sys.executable, '-c', program],
        capture_output=True, text=True, timeout=LIMIT_S, check=True,
    )  # fmt: skip
    assert done.stderr == 'a\\x1b[1mb\\n\n'
