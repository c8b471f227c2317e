"""Hostile calls of the external-scheduler form: recorded ones, changed.

Whatever is sent, the answer has only names that were sent, and no other key;
or it is a refusal. It is never a failure of the server.
"""

import json
import random

import pytest

from tests.support import fuzzing, nova_wire

COUNT = 300
SENT = [
    {'host': f'compute-{number}', 'hypervisor_hostname': f'node-{number}'}
    for number in (1, 3, 5, 9)
]
STORAGE = {
    'size': 1, 'availability_zone': 'nova', 'project_id': 'p', 'metadata': {},
}  # fmt: skip


def specs(service):
    """Return specs that the callers of a service send."""
    if service == 'nova':
        recorded = [nova_wire.sent(name) for name in nova_wire.REQUESTS]
        return [one['args']['spec_obj'] for one in recorded]
    return [
        {
            'share_properties': STORAGE,
            'volume_properties': STORAGE,
            'share_type': {'extra_specs': {'a': 'b'}},
        }
    ]


def body(spec):
    """Return the body of a call that has nothing wrong."""
    context = nova_wire.context_of(nova_wire.sent('simple'))
    weights = {'compute-1': 1.5, 'compute-9': 0.0}
    return {'spec': spec, 'context': context, 'hosts': SENT,
            'weights': weights}  # fmt: skip


@pytest.mark.parametrize('service', ['nova', 'manila', 'cinder'])
def test_many_hostile_calls(serve_external, service):
    client = serve_external()
    rng, found = random.Random(service), specs(service)
    statuses = {200: 0, 400: 0, 413: 0}
    for _ in range(COUNT):
        document = fuzzing.replaced(
            rng, body(rng.choice(found)), rng.randrange(1, 4)
        )
        text = json.dumps(document).encode()
        status, answer = client.send(
            'POST', f'/scheduler/{service}/external', text
        )
        assert status in statuses, (text, answer)
        statuses[status] += 1
        if status == 200:
            assert list(answer) == ['hosts']
            named = [one['host'] for one in document['hosts']]
            assert {*answer['hosts']} <= {*named}
            assert len({*answer['hosts']}) == len(answer['hosts'])
    # Else the test would only show that all is refused, or all let pass.
    assert statuses[200] > COUNT / 50
    assert statuses[400] > COUNT / 50
