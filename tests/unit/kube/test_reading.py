"""Pods as requests."""

from __future__ import annotations

import json
from typing import Any

from scheduler_service.kube import reading
from scheduler_service.model import documents


def test_amounts_are_summed_when_a_pod_has_init_containers():
    def asks(cpu: str, **more: Any) -> dict[str, Any]:
        return {'resources': {'requests': {'cpu': cpu}}, **more}

    amounts = reading.pod_amounts({'spec': {
        'containers': [asks('1'), asks('500m')],
        'initContainers': [
            asks('200m', restartPolicy='Always'), asks('2'),
        ],
        'overhead': {'cpu': '100m'},
    }})  # fmt: skip
    assert str(amounts['cpu'].normalize()) == '2.3'


def test_flavor_is_that_of_the_annotation_when_there_is_one():
    told = {'flavor': {'vcpus': 3}, 'availability_zone': 'z'}
    pod = {'metadata': {'annotations': {'d/request': json.dumps(told)}}}
    found = reading.pod_request(pod, 'd')
    assert found.flavor == documents.request(told).flavor
