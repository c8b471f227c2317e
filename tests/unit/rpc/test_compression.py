"""Messages that are compressed, and too large when they are unpacked."""

from __future__ import annotations

import pytest
from kombu import compression as library

from scheduler_service.rpc import compression

KINDS = ['gzip', 'bzip2', 'lzma']


@pytest.fixture(autouse=True)
def limited():
    compression.limit()


@pytest.mark.parametrize('kind', KINDS)
def test_a_message_is_what_was_packed(kind):
    content = bytes(range(256)) * 5000
    packed, name = library.compress(content, kind)
    assert library.decompress(packed, name) == content
    assert library.decompress(*library.compress(b'', kind)) == b''


@pytest.mark.parametrize('kind', KINDS)
def test_a_message_is_refused_when_it_is_too_large(kind):
    packed, name = library.compress(bytes(compression.MOST_BYTES + 1), kind)
    assert len(packed) < 100_000
    with pytest.raises(ValueError, match='67108864 bytes'):
        library.decompress(packed, name)


@pytest.mark.parametrize('kind', KINDS)
def test_a_message_is_refused_when_a_part_is_missing(kind):
    packed, name = library.compress(b'x' * 1000, kind)
    with pytest.raises(ValueError, match='not complete'):
        library.decompress(packed[:-1], name)
