"""What drivers say about full disks and the like, in words of ours."""

import sqlite3

import psycopg
import pymysql
import pytest
import sqlalchemy as sa

from scheduler_service.store import driver_errors


@pytest.mark.parametrize(
    ('fault', 'beginning'),
    [
        (psycopg.errors.DiskFull('no space'), 'The disk of the database is'),
        (psycopg.errors.ReadOnlySqlTransaction('x'), 'The database is read-'),
        (psycopg.errors.InsufficientPrivilege('x'), 'The database refuses'),
        (
            psycopg.OperationalError(
                'connection failed: FATAL:  password authentication failed '
                'for user "u"'
            ),
            'The database refuses this user',
        ),
        (
            psycopg.OperationalError(
                'connection failed: FATAL:  database "d" does not exist'
            ),
            'There is no such database',
        ),
        (
            psycopg.OperationalError(
                'connection failed: FATAL:  role "u" does not exist'
            ),
            'The database refuses this user',
        ),
        (psycopg.errors.UndefinedTable('x'), 'A table of the database is'),
        (pymysql.err.ProgrammingError(1146, 'x'), 'A table of the database'),
        (pymysql.err.OperationalError(1021, 'x'), 'The disk of the database'),
        (pymysql.err.OperationalError(1290, 'x'), 'The database is read-only'),
        (pymysql.err.OperationalError(1045, 'x'), 'The database refuses'),
        (pymysql.err.OperationalError(1049, 'x'), 'There is no such database'),
        (
            sqlite3.OperationalError('attempt to write a readonly database'),
            'The database is read-only',
        ),
        (
            sqlite3.OperationalError('database or disk is full'),
            'The disk of the database is full',
        ),
        (
            sqlite3.DatabaseError('file is not a database'),
            'The file is not a database',
        ),
    ],
)
def test_what_an_operator_has_to_put_right_is_known(fault, beginning):
    text = driver_errors.sentence(fault)
    assert text.startswith(beginning)
    assert driver_errors.advice(text) in driver_errors.ADVICE.values()


@pytest.mark.parametrize(
    'fault',
    [
        psycopg.errors.UniqueViolation('x'),
        psycopg.errors.DeadlockDetected('x'),
        pymysql.err.DataError(1406, 'Data too long'),
        pymysql.err.OperationalError(2003, "Can't connect"),
        sqlite3.OperationalError('database is locked'),
    ],
)
def test_what_a_statement_can_cause_is_not(fault):
    assert driver_errors.sentence(fault) is None


def test_the_drivers_name_is_left_out():
    fault = ValueError('(psycopg.OperationalError) connection failed\nmore')
    assert driver_errors.first_line(fault) == 'connection failed'


def test_a_fault_without_the_drivers_own_is_its_own():
    fault = sa.exc.DBAPIError('SELECT 1', {}, None)
    assert driver_errors.driver_fault(fault) is fault
