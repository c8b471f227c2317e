"""Writes the reply of prioritize for nodes of one table from cached texts.

Writing the names and scores of hundreds of nodes takes longer than computing
the scores. So the text of each node is cached, padded with blanks to equal
length: JSON allows blanks between values.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from scheduler_service import extender_wire as wire
from scheduler_service.columns.dictionary import Ints, Rows

_BEST = 10


class ScoreTexts:
    """The texts of all nodes of a table; used by one thread at a time.

    :param names: of the nodes, by row
    """

    def __init__(self, names: Sequence[str]) -> None:
        heads = [b'{"Host":%s,"Score":' % wire.encode(name) for name in names]
        width = max(map(len, heads), default=0)
        self._heads = _matrix([head.rjust(width) for head in heads], width)
        tails = [b'%2d},' % score for score in range(_BEST + 1)]
        self._tails = _matrix(tails, len(tails[0]))

    def write(self, rows: Rows, scores: Ints) -> msgspec.Raw:
        """Return the reply.

        :param rows: int64[m], of the nodes, at least one
        :param scores: int64[m], of these nodes, 0 to 10 each
        """
        texts = np.concatenate(
            (self._heads.take(rows, axis=0), self._tails.take(scores, axis=0)),
            axis=1,
        )
        # Without the last comma.
        return msgspec.Raw(b'[%s]' % texts.ravel().data[:-1])


def _matrix(texts: Sequence[bytes], width: int) -> np.ndarray:
    """Return texts that are equally long, uint8[n, width]."""
    joined = np.frombuffer(b''.join(texts), np.uint8)
    return joined.reshape(len(texts), width)
