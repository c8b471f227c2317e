"""Text in statements for MariaDB and MySQL."""

import functools
from typing import Any

import pymysql
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pymysql.constants import SERVER_STATUS

from scheduler_service.store.mysql import MySQLSession

_PLAIN = SERVER_STATUS.SERVER_STATUS_NO_BACKSLASH_ESCAPES
SPECIAL = '\\\'"\n\r\0\x1a%`;é\u2028'


@functools.cache
def unconnected(kind: Any) -> Any:
    """Return a connection without a server; it takes a while to make."""
    return kind(defer_connect=True)


def escaped_by(kind: Any, value: object, status: int) -> str:
    """Return a value as a connection of a kind escapes it."""
    connection = unconnected(kind)
    connection.server_status = status
    found: str = connection.escape(value)
    return found


@pytest.mark.parametrize('status', [0, _PLAIN])
@settings(max_examples=50)
@given(text=st.text(st.sampled_from(SPECIAL) | st.characters()))
def test_text_is_escaped_as_the_library_does(status, text):
    made = escaped_by(MySQLSession, text, status)
    assert made == escaped_by(pymysql.connections.Connection, text, status)


@pytest.mark.parametrize('status', [0, _PLAIN])
def test_each_character_is_escaped_as_the_library_does(status):
    for text in map(chr, range(256)):
        made = escaped_by(MySQLSession, text, status)
        assert made == escaped_by(pymysql.connections.Connection, text, status)


@pytest.mark.parametrize('value', [7, 1.5, None, b"'", True, ['a', "'"]])
def test_other_values_are_left_to_the_library(value):
    made = escaped_by(MySQLSession, value, 0)
    assert made == escaped_by(pymysql.connections.Connection, value, 0)
