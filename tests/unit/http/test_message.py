"""Bodies of requests without their content coding."""

import gzip
import random
import zlib

import pytest

from scheduler_service import errors
from scheduler_service.http import message

EMPTY = gzip.compress(b'', mtime=0)


def content(body: bytes, max_bytes: int = 2**24) -> bytes:
    headers = {'Content-Encoding': 'gzip'}
    request = message.HttpRequest('POST', '/', '', headers, None, body)
    return request.content(max_bytes)


@pytest.fixture
def fed(monkeypatch):
    """Give a list of how many bytes zlib was given, call by call."""
    lengths: list[int] = []
    make = zlib.decompressobj

    class Decoder:
        def __init__(self, bits: int) -> None:
            self._decoder = make(bits)

        def decompress(self, data, max_length):
            lengths.append(len(data))
            return self._decoder.decompress(data, max_length)

        def __getattr__(self, name):
            return getattr(self._decoder, name)

    monkeypatch.setattr(zlib, 'decompressobj', Decoder)
    return lengths


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


def test_work_follows_the_length_when_members_are_few(fed):
    """What follows a member is not copied for each of them."""
    noise = random.Random(1).randbytes(4_000_000)
    body = EMPTY * 900 + gzip.compress(noise, mtime=0)
    assert content(body) == noise
    # No member makes zlib see more than one piece of what follows it.
    assert max(fed) <= 64 * 1024
    assert len(fed) <= 900 + len(body) // (64 * 1024) + 1


def test_body_is_refused_when_its_members_are_too_many(fed):
    """Empty ones would cost time and never reach a limit of bytes."""
    assert content(EMPTY * 999 + gzip.compress(b'{}')) == b'{}'
    fed.clear()
    with pytest.raises(errors.InvalidRequest, match='1000 gzip members'):
        content(EMPTY * 200_000 + gzip.compress(b'{}'))
    assert len(fed) == 1000
