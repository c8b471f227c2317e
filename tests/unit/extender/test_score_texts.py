"""Scores of stored nodes are written as those of any others."""

from __future__ import annotations

import random

import numpy as np

from scheduler_service.extender import wire
from scheduler_service.extender.score_texts import ScoreTexts


def test_replies_are_the_same_in_any_order_and_however_often_written():
    names = [f'node-{at}"\\\u20ac' for at in range(300)]
    texts = ScoreTexts(names)
    rng = random.Random(1)
    for count in (1, 2, 300, 120, 120):
        rows = rng.sample(range(300), count)
        scores = [rng.randrange(11) for _ in rows]
        written = texts.write(np.array(rows), scores)
        same = wire.score_list([names[row] for row in rows], scores)
        assert bytes(written) == bytes(same)
