"""The reply of prioritize for nodes of one table, in a few steps.

Writing the names and numbers of hundreds of nodes takes longer than working
the numbers out. So what is written of a node is kept for each score.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from scheduler_service.columns.dictionary import Rows
from scheduler_service.extender import wire

_SCORES = 11


class ScoreTexts:
    """The texts of all nodes of a table; used by one thread at a time.

    :param names: of the nodes, by row
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        # Of row x 11 + score; None: not written yet.
        self._texts = np.full(len(names) * _SCORES, None, object)

    def write(self, rows: Rows, scores: Sequence[int]) -> msgspec.Raw:
        """Return the reply.

        :param rows: int64[m], of the nodes, at least one
        :param scores: of these nodes, 0 to 10 each
        """
        at = rows * _SCORES + np.array(scores, np.int64)
        texts = self._texts.take(at).tolist()
        if None in texts:
            self._fill(at)
            texts = self._texts.take(at).tolist()
        return msgspec.Raw(b'[%s]' % b','.join(texts))

    def _fill(self, at: Rows) -> None:
        for index in at.tolist():
            if self._texts[index] is None:
                row, score = divmod(index, _SCORES)
                name = wire.encode(self._names[row])
                self._texts[index] = b'{"Host":%s,"Score":%d}' % (name, score)
