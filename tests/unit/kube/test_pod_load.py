"""Scores of distances and weights."""

import numpy as np

from scheduler_service.kube.pod_load import LoadScoring

EVEN = {'VCPU': 1.0, 'MEMORY_MB': 1.0, 'DISK_GB': 1.0}


def test_score_falls_by_a_point_when_the_distance_doubles():
    weights = np.zeros(6)
    distances = np.array([0.0, 0.0, 1.0, 3.0, 7.0, 5000.0])
    scoring = LoadScoring(EVEN)
    assert scoring.scores(distances, weights, lead=True).tolist() == [
        10,
        9,
        8,
        7,
        6,
        0,
    ]
    assert scoring.scores(distances, weights).tolist() == [10, 10, 9, 8, 7, 0]


def test_weights_keep_their_distance_when_load_does_not_count():
    scoring = LoadScoring({})
    assert scoring.scores(None, np.array([1.0, 0.95, 0.0])).tolist() == [
        10,
        9,
        0,
    ]
    assert scoring.scores(None, np.array([0.02, 0.0])).tolist() == [10, 9]
    assert scoring.scores(None, np.array([1.0, 1.0])).tolist() == [0, 0]
    assert scoring.scores(None, np.array([])).tolist() == []


def test_weighers_that_say_nothing_leave_the_scores_to_load():
    distances = np.array([0.0, 1.0, 3.0])
    scoring = LoadScoring(EVEN)
    assert scoring.scores(distances, None).tolist() == (
        scoring.scores(distances, np.zeros(3)).tolist()
    )
