"""A failure is one line, without passwords."""

from __future__ import annotations

import errno

import pytest
from oslo_config import cfg
from oslo_messaging.transport import TransportURL

from scheduler_service import conf as options
from scheduler_service import errors
from scheduler_service.cmd import adapters, faults


def test_an_error_is_one_line():
    error = errors.Conflict('taken:\n  by another')
    assert faults.line(error) == 'Conflict: taken: by another'


def test_an_error_cannot_move_the_cursor_of_a_terminal():
    error = errors.HostNotFound('There is no host \x1b]0;x\x07')
    assert faults.line(error) == (
        'HostNotFound: There is no host \\x1b]0;x\\x07'
    )
    assert faults.line(RuntimeError('\x1b[31m')).startswith(
        'RuntimeError: \\x1b[31m (this was not expected'
    )
    missing = FileNotFoundError(errno.ENOENT, 'said', 'a\x1b[1m')
    assert faults.line(missing) == (
        'OSError: a\\x1b[1m: there is no such file or folder (said)'
    )
    error = errors.InvalidInventory('two', problems=['a\x1b[1m', 'b'])
    assert faults.details(error) == ['a\\x1b[1m', 'b']


@pytest.mark.parametrize(
    ('number', 'words'),
    [
        (errno.ENOSPC, 'the disk is full'),
        (errno.EROFS, 'the file system is read-only'),
        (errno.EACCES, 'this user may not do that'),
    ],
)
def test_what_files_refuse_is_called_what_it_is(number, words):
    fault = OSError(number, 'said', '/a/file')
    assert faults.line(fault) == f'OSError: /a/file: {words} (said)'


def test_what_nobody_expected_says_so():
    told = faults.line(KeyError('a\nb'))
    assert told.startswith('KeyError: ')
    assert '--debug' in told
    assert '\n' not in told


def test_addresses_have_no_passwords():
    conf = adapters.new_config()
    options.parse(conf, [], default_config_files=[], default_config_dirs=[])
    url = 'mysql+pymysql://u:secret@h:3306/d?password=secret&charset=utf8'
    conf.set_override('connection', url, 'database')
    assert faults.database_address(conf) == 'mysql+pymysql://u@h:3306/d'
    bus = TransportURL.parse(
        cfg.ConfigOpts(), 'rabbit://u:secret@a:1,v:secret@b:2/vhost'
    )
    assert faults.broker_address(bus) == 'rabbit://u@a:1,v@b:2/vhost'
