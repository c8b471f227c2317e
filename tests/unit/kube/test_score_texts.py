"""Scores of stored nodes are written as those of any others."""

import json
import random

import numpy as np
import pytest

from scheduler_service.kube.score_texts import ScoreTexts

EVEN = [f'node-{at}"\\\u20ac' for at in range(300)]


@pytest.mark.parametrize('names', [EVEN, [*EVEN[:-1], 'n' * 200]])
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
