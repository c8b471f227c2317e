"""Pods on nodes, and how many processors a kube-scheduler counts for each.

Expected figures are those of Kubernetes 1.36.
"""

from __future__ import annotations

from typing import Any

from tests.support import kube

# A runtime class with an overhead of 250m.
HEAVY = 'heavy'
_PENDING = {'type': 'PodResizePending', 'status': 'True'}


def _cpu(amount: str) -> dict[str, Any]:
    return {'requests': {'cpu': amount}}


def _container(name: str, asked: str, **more: Any) -> dict[str, Any]:
    return {'name': name, 'image': 'none', 'resources': _cpu(asked), **more}


def _given(name: str, has: str, allocated: str = '') -> dict[str, Any]:
    """Return the status of a container that has some processors."""
    return {
        'name': name,
        'image': 'none',
        'imageID': '',
        'ready': True,
        'restartCount': 0,
        'resources': _cpu(has),
        'allocatedResources': {'cpu': allocated or has},
    }


def _resized(asked: str, *has: str, reason: str = '') -> dict[str, Any]:
    status: dict[str, Any] = {'containerStatuses': [_given('main', *has)]}
    if reason:
        status['conditions'] = [{**_PENDING, 'reason': reason}]
    return {'spec': {'containers': [_container('main', asked)]},
            'status': status}  # fmt: skip


# Name -> what it is beside an ordinary pod, and the processors that count.
CASES: dict[str, tuple[dict[str, Any], str]] = {
    'shrinking': (_resized('500m', '6'), '6'),
    'growing': (_resized('6', '500m'), '6'),
    'allocated': (_resized('500m', '1', '3'), '3'),
    'deferred': (_resized('6', '500m', reason='Deferred'), '6'),
    'infeasible': (_resized('6', '500m', '1', reason='Infeasible'), '1'),
    'sidecar': (
        {
            'spec': {
                'containers': [_container('main', '1')],
                'initContainers': [
                    _container('side', '500m', restartPolicy='Always'),
                    _container('once', '2'),
                ],
            },
            'status': {'initContainerStatuses': [_given('side', '2')]},
        },
        '4',
    ),
    'whole-pod': (
        {
            'spec': {
                'containers': [_container('main', '1')],
                'resources': _cpu('4'),
            },
            'status': {
                'containerStatuses': [_given('main', '9')],
                'resources': _cpu('8'),
                'allocatedResources': {'cpu': '4'},
            },
        },
        '8',
    ),
    'overhead': (
        {
            'spec': {
                'containers': [_container('main', '1')],
                'resources': _cpu('4'),
                'runtimeClassName': HEAVY,
                'overhead': {'cpu': '250m'},
            },
        },
        '4250m',
    ),
}


def pod(name: str) -> dict[str, Any]:
    """Return the pod of a case, with its status."""
    (more, _) = CASES[name]
    made = kube.pod(name)
    made['spec'].update(more['spec'])
    return {**made, 'status': {'phase': 'Running', **more.get('status', {})}}
