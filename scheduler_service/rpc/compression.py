"""Unpacks compressed messages of the broker, up to a size.

Callers may compress what they send (``[oslo_messaging_rabbit]
kombu_compression``). The library unpacks a message before anybody can look
at its size, and a few kilobytes may be gigabytes then. Stateless.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable
from typing import Any

from kombu import compression

# Bytes of a message when it is unpacked: many times what a request may have.
MOST_BYTES = 64 * 2**20
# Type of the content, as the library names it -> makes what unpacks it.
_UNPACKERS: dict[str, Callable[[], Any]] = {
    'application/x-gzip': zlib.decompressobj,
    'application/x-bz2': bz2.BZ2Decompressor,
    'application/x-lzma': lzma.LZMADecompressor,
}


def limit() -> None:
    """Have the library unpack no more than ``MOST_BYTES`` in this process.

    It drops a message that it cannot unpack.
    """
    for kind, unpacker in _UNPACKERS.items():
        pack, _ = compression.get_encoder(kind)
        compression.register(pack, _bounded(unpacker), kind)


def _bounded(unpacker: Callable[[], Any]) -> Callable[[bytes], bytes]:
    """Return a function that unpacks a whole body.

    It raises ValueError where that is too large, or not complete.
    """

    def unpack(body: bytes) -> bytes:
        work = unpacker()
        content: bytes = work.decompress(body, MOST_BYTES)
        if not work.eof:
            raise ValueError(
                f'the message is not complete, or has more than {MOST_BYTES} '
                'bytes when it is unpacked'
            )
        return content

    return unpack
