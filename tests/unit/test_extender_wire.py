"""Replies of extenders, as they come over the wire."""

import json
import math

import msgspec
import pytest

from scheduler_service import extender_wire as wire
from tests.support.paths import RECORDINGS

CPU = {'CPU': 1}


@pytest.mark.parametrize(
    'path', sorted(RECORDINGS.glob('thirdparty-*.json')), ids=lambda p: p.stem
)
def test_reply_is_understood_when_a_known_server_sent_it(path):
    told = json.loads(path.read_text())
    reply = told['reply']
    if 'body' not in reply or reply.get('status') != 200:
        return
    document = wire.decode(reply['body'].encode())
    if 'prioritize' in path.name:
        assert all(isinstance(v, int) for v in wire.scores(document).values())
    elif 'bind' in path.name:
        assert 'support Bind' in wire.error_of(document)
    else:
        found = wire.filter_reply(document)
        assert (
            found.nodes is not None
            or found.node_names is not None
            or (found.error or not found.failed)
        )


@pytest.mark.parametrize('count', [0, 1, 2, 500])
def test_scores_are_written_as_json(count):
    names = [f'node-{at}"\\\u20ac' for at in range(count)]
    values = [at % 11 for at in range(count)]
    text = wire.encode(wire.score_list(names, values))
    assert json.loads(text) == [
        {'Host': name, 'Score': value}
        for name, value in zip(names, values, strict=True)
    ]


@pytest.mark.parametrize('kind', [bytes, msgspec.Raw])
@pytest.mark.parametrize('number', [b'1e400', b'9' * 5000])
def test_number_is_infinite_when_it_is_out_of_range(number, kind):
    """Only what reads its field refuses it."""
    for sign, expected in ((b'', math.inf), (b'-', -math.inf)):
        text = b'{"a": "\xff", "b": [%s%s]}' % (sign, number)
        assert wire.decode(kind(text)) == {'a': '\ufffd', 'b': [expected]}
    assert wire.decode(kind(b'[' + b'9' * 4000 + b']')) == [10**4000 - 1]


def test_fields_are_found_in_any_case_and_keys_of_maps_are_kept():
    pod = {'METADATA': {'Labels': {'Name': 'a'}, 'UID': 'u'}}
    sent = {
        'pod': {**pod, 'status': None},
        'Pod': {
            'Spec': {'Containers': [{'RESOURCES': {'Limits': {'CPU': 1}}}]}
        },
        'nodeNameToVictims': {'Spec': {'pods': [pod]}},
        'nodenametometavictims': {'n': {'PODS': [{'uid': 'u'}]}},
    }
    read = {'metadata': {'labels': {'Name': 'a'}, 'uid': 'u'}}
    spec = {'containers': [{'resources': {'limits': CPU}}]}
    assert wire.respelled(sent) == {
        'Pod': {**read, 'spec': spec},
        'NodeNameToVictims': {'Spec': {'Pods': [read]}},
        'NodeNameToMetaVictims': {'n': {'Pods': [{'UID': 'u'}]}},
    }
