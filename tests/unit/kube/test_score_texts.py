"""Scores of stored nodes are written as those of any others."""

import json
import random

import numpy as np
import pytest

from scheduler_service.kube.score_texts import ScoreTexts

EVEN = [f'node-{at}"\\\u20ac' for at in range(300)]


@pytest.mark.parametrize(
    'names', [EVEN, [*EVEN[:-1], 'n' * 200], ['a', 'b' * 60]]
)
def test_replies_say_the_same_in_any_order_and_however_often_written(names):
    texts = ScoreTexts(names)
    rng = random.Random(1)
    for count in (1, 2, len(names), len(names) // 2, len(names) // 2):
        rows = rng.sample(range(len(names)), count)
        scores = [rng.randrange(11) for _ in rows]
        written = texts.write(np.array(rows), np.array(scores))
        assert json.loads(bytes(written)) == [
            {'Host': names[row], 'Score': score}
            for row, score in zip(rows, scores, strict=True)
        ]


def test_one_long_name_does_not_make_all_replies_long():
    rows, scores = np.arange(100), np.full(100, 10)
    names = [f'node-{at:03}' for at in range(299)]
    even = bytes(ScoreTexts(names).write(rows, scores))
    uneven = bytes(ScoreTexts([*names, 'n' * 200]).write(rows, scores))
    assert len(uneven) < 1.5 * len(even)
    assert b'  ' not in even
