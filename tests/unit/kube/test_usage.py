"""What pods take of nodes."""

from __future__ import annotations

import json
from typing import Any

from scheduler_service.kube.usage import usage_of


def pod(*containers: Any, **annotations: str) -> dict[str, Any]:
    return {
        'metadata': {'annotations': annotations},
        'spec': {
            'containers': [{'resources': one} for one in containers],
            'overhead': {'cpu': '250m'},
        },
    }


def test_requests_are_summed_without_being_rounded():
    asked = {'requests': {'cpu': '100m', 'memory': '1536Ki',
                          'ephemeral-storage': '512Mi'}}  # fmt: skip
    usage = usage_of(pod(asked, asked), 'd')
    assert usage.load == {'VCPU': 0.45, 'MEMORY_MB': 3.0, 'DISK_GB': 1.0}
    assert usage.classes == {}
    assert usage.amounts['pods'] == 1.0


def test_container_counts_for_load_when_it_requests_nothing():
    usage = usage_of(pod({}, {'limits': {'cpu': '1'}}), 'd')
    assert usage.load['VCPU'] == 1.35
    assert usage.load['MEMORY_MB'] == 400.0


def test_classes_are_those_of_containers_and_annotation_together():
    asked = {'limits': {'example.com/fpga': '2', 'd/CUSTOM_A': '1',
                        'example.com/none': '0'}}  # fmt: skip
    own = {'flavor': {'extra_specs': {'resources:CUSTOM_B': '3'}}}
    plain = {'CUSTOM_EXAMPLE_COM_FPGA': 2, 'CUSTOM_A': 1}
    assert usage_of(pod(asked), 'd').classes == plain
    both = usage_of(pod(asked, **{'d/request': json.dumps(own)}), 'd')
    assert both.classes == {**plain, 'CUSTOM_B': 3}
