"""PodRequests: what is remembered of pods, and the limits of it."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_service import extender_wire as wire
from scheduler_service.kube.pod_requests import PodRequests


def pod(classes: int = 0, **metadata: Any) -> dict[str, Any]:
    asked = {f'd/CUSTOM_{at}': '1' for at in range(classes)}
    return {
        'metadata': metadata,
        'spec': {'containers': [{'resources': {'limits': asked}}]},
    }


def test_pods_that_ask_the_same_share_a_request():
    requests = PodRequests('d')
    first = requests.of(pod(1, name='a'))
    assert requests.of(pod(1, name='b')) is first
    assert requests.of(pod(2, name='b')) is not first


def test_pods_of_many_characters_do_not_fill_the_memory():
    requests = PodRequests('d')
    large = [
        pod(annotations={'d/note': f'{at}' + 'x' * 2**20}) for at in range(8)
    ]
    first = requests.of(large[0])
    for one in large[1:7]:
        requests.of(one)
    assert requests.of(pod(**large[0]['metadata'])) is first
    # The eighth is the first over 8 MiB: the others are forgotten.
    last = requests.of(large[7])
    assert requests.of(large[0]) is not first
    assert requests.of(pod(**large[7]['metadata'])) is last


def test_pod_is_refused_when_it_asks_for_more_classes_than_a_cluster_has():
    requests = PodRequests('d')
    assert len(requests.of(pod(64)).usage.classes) == 64
    with pytest.raises(wire.WireError, match='65 extended resources; at most'):
        requests.of(pod(65))
