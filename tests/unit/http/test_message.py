"""Bodies of requests without their content coding."""

import gzip
import random

import pytest

from scheduler_service import errors
from scheduler_service.http import message

EMPTY = gzip.compress(b'', mtime=0)


def content(body: bytes, max_bytes: int = 2**24) -> bytes:
    headers = {'Content-Encoding': 'gzip'}
    request = message.HttpRequest('POST', '/', '', headers, None, body)
    return request.content(max_bytes)


def test_members_are_joined_when_they_are_longer_than_a_piece():
    """Ends of members are anywhere in what is read at a time."""
    noise = random.Random(1)
    parts = [noise.randbytes(size) for size in (200_000, 0, 65_536, 1, 65_513)]
    body = b''.join(gzip.compress(part, mtime=0) for part in parts)
    assert content(body) == b''.join(parts)
    plain = b' ' * 2**24
    assert content(gzip.compress(plain)) == plain


@pytest.mark.parametrize('more', [0, 1])
def test_content_is_limited_to_its_bytes_when_in_members(more):
    body = gzip.compress(b'x' * 1000) * 9 + gzip.compress(b'x' * more) + EMPTY
    if more:
        with pytest.raises(errors.PayloadTooLarge):
            content(body, 9000)
    else:
        assert content(body, 9000) == b'x' * 9000


def test_body_is_refused_when_its_members_are_too_many():
    """Empty ones would cost time and never reach a limit of bytes."""
    assert content(EMPTY * 999 + gzip.compress(b'{}')) == b'{}'
    with pytest.raises(errors.InvalidRequest, match='1000 gzip members'):
        content(EMPTY * 1000 + gzip.compress(b'{}'))
