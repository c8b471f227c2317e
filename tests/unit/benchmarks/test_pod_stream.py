"""The pods of the benchmark are placed, and older ones go."""

from __future__ import annotations

import json

import msgspec

from benchmarks import kube_caller, pod_stream
from scheduler_service.kube.pod_use import PodSink, PodUse


def test_as_many_pods_stay_as_are_meant_to():
    use = PodUse(15.0)
    sink = PodSink(use, kube_caller.DOMAIN)
    kinds = kube_caller.shapes()
    for line in pod_stream.events(0, 1500, kinds):
        event = json.loads(line)
        pod = msgspec.Raw(json.dumps(event['object']).encode())
        if event['type'] == 'ADDED':
            sink.put(pod)
        else:
            sink.remove(pod)
    assert use.count() == (1000, 0)
    nodes = [f'node-{number:06d}' for number in range(1000)]
    used = use.used('VCPU', use.numbers_of(nodes))
    assert (used > 0).all()
