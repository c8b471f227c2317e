"""What is told of a broker that cannot be reached."""

from __future__ import annotations

import pytest
from amqp.exceptions import AccessRefused, RecoverableConnectionError

from scheduler_service.rpc import rabbit


@pytest.mark.parametrize(
    ('fault', 'told'),
    [
        (OSError(111, 'Connection refused'),
         '[Errno 111] Connection refused'),
        (OSError('two\n lines'), 'two lines'),
        (TimeoutError(), 'TimeoutError'),
        (RecoverableConnectionError(), 'RecoverableConnectionError'),
        (RecoverableConnectionError('Socket closed'), 'Socket closed'),
        (AccessRefused('no such user', (10, 40), 'open'),
         'open: (403) no such user'),
        (OSError('amqp://guest:a@b%2f@host:1/v is gone'),
         'amqp://host:1/v is gone'),
    ],
)  # fmt: skip
def test_a_fault_is_one_line_without_passwords(fault, told):
    assert rabbit.words(fault) == told
