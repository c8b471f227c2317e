"""Payloads that nobody should send, and what becomes of them."""

from __future__ import annotations

import copy
import json
import random
import socket
from typing import Any

from scheduler_service import errors
from tests.support.waiting import LIMIT_S

# Errors that a caller may get.
NAMES = {
    kind.__name__
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.SchedulerError)
}
_WORDS = (
    'flavor', 'request', 'vcpus', 'memory_mb', 'instance_uuids', 'hosts',
    'host', 'Pod', 'Nodes', 'NodeNames', 'items', 'metadata', 'name', 'spec',
    'zone', 'attributes', 'instances', 'claim', 'move', 'requests', 'image',
    'extra_specs', 'scheduler_hints', 'query', 'host_name', 'instance_info',
    'aggregates', 'id', '\x00', '\ud800', 'a' * 300, '',
)  # fmt: skip
_ODD = (
    None, True, False, 0, -1, 1.5, 2**31, 2**63, 2**70, -(2**70), 1e308, '',
    'x', '\x00', '\ud800', 'a' * 5000, '%d%s%n', '\u202e', [], {}, [None],
    '00000000-0000-0000-0000-000000000001', 'REQUIRED', '["=", "$a", 1]',
)  # fmt: skip


def value(rng: random.Random, depth: int = 0) -> Any:
    """Return something that JSON can hold, of any shape."""
    kind = rng.random()
    if depth > 5 or kind < 0.5:
        return rng.choice(_ODD)
    if kind < 0.7:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind < 0.72:
        return nested(rng.choice((10, 40, 200)))
    return {
        rng.choice(_WORDS): value(rng, depth + 1)
        for _ in range(rng.randrange(5))
    }


def nested(depth: int) -> Any:
    """Return a list in a list in a list."""
    found: Any = 1
    for _ in range(depth):
        found = [found]
    return found


def mutated(rng: random.Random, document: Any) -> Any:
    """Return a document with something in it replaced."""
    if rng.random() < 0.25 or not document:
        return value(rng)
    if isinstance(document, dict):
        key = rng.choice(list(document))
        changed = {**document, key: mutated(rng, document[key])}
        if rng.random() < 0.1:
            changed.pop(key)
        return changed
    if isinstance(document, list):
        at = rng.randrange(len(document))
        return [
            *document[:at],
            mutated(rng, document[at]),
            *document[at + 1 :],
        ]
    return value(rng)


def replaced(rng: random.Random, document: Any, times: int) -> Any:
    """Return a copy of a document with parts replaced, mostly deep in it."""
    changed = copy.deepcopy(document)
    for _ in range(times):
        place = changed
        while place:
            key = rng.choice(
                list(place) if isinstance(place, dict) else range(len(place))
            )
            inner = place[key]
            if not isinstance(inner, dict | list) or rng.random() < 0.1:
                # A copy, since what is odd is there only once.
                place[key] = copy.deepcopy(value(rng))
                break
            place = inner
    return changed


_PATHS = (
    '/healthcheck', '/readyz', '/metrics', '/v1/explain', '/v1/decisions',
    '/v1/decisions/x', '/extender/filter', '/extender/prioritize',
    '/extender/preempt', '/extender/bind', '/', '/%00', '/../../etc/passwd',
    '/v1/decisions/%ff%fe', '/v1/decisions?limit=%00', '/' + 'a' * 9000,
)  # fmt: skip
_GOOD = {
    'Pod': {'metadata': {'name': 'a'}, 'spec': {'containers': [
        {'resources': {'requests': {'cpu': '1'}}}]}},
    'Nodes': {'items': [{'metadata': {'name': 'n'}}]},
    'NodeNames': None,
    'request': {'flavor': {'vcpus': 1}},
    'NodeNameToMetaVictims': {'n': {'Pods': [{'UID': 'u'}]}},
}  # fmt: skip


def http_request(rng: random.Random) -> bytes:
    """Return the bytes of a request that is wrong in some way."""
    method = rng.choice(('GET', 'POST', 'PUT', 'HEAD', 'BREW', 'get', ''))
    path = rng.choice(_PATHS)
    text = json.dumps(mutated(rng, _GOOD)).encode('utf-8', 'replace')
    if rng.random() < 0.2:
        text = rng.randbytes(rng.randrange(200))
    length = str(len(text))
    if rng.random() < 0.15:
        length = rng.choice(('-1', 'x', '99999999999', '0', '1e3', ''))
    headers = [f'Host: {rng.choice(("a", "", "[::"))}',
               f'Content-Length: {length}', 'Connection: close']  # fmt: skip
    if rng.random() < 0.15:
        headers.append(rng.choice((
            'Transfer-Encoding: chunked', 'Expect: 100-continue',
            'X: ' + 'y' * 70000, 'no colon', ': empty', 'A\x00: b',
            'Content-Encoding: gzip', 'Authorization: Bearer \xff',
        )))  # fmt: skip
    version = rng.choice(('HTTP/1.1', 'HTTP/1.1', 'HTTP/1.0', 'HTTP/9', ''))
    head = f'{method} {path} {version}\r\n' + '\r\n'.join(headers)
    return head.encode('latin-1', 'replace') + b'\r\n\r\n' + text


def http_face(port: int, count: int, seed: int) -> dict[str, Any]:
    """Send malformed requests; return what was answered, in numbers.

    Whoever waits for a body that does not come is cut off in time: then
    there is no answer.
    """
    rng = random.Random(seed)
    answers: dict[str, int] = {}
    server_errors = []
    for _ in range(count):
        sent = http_request(rng)
        said = b''
        try:
            with socket.create_connection(('127.0.0.1', port), 10) as sock:
                sock.sendall(sent)
                while piece := sock.recv(65536):
                    said += piece
        except OSError:
            said = said or b'cut off'
        status = said.split(b' ')[1:2] if said[:5] == b'HTTP/' else [b'none']
        name = status[0].decode('latin-1') if status else 'none'
        answers[name] = answers.get(name, 0) + 1
        if name in ('500', '501', '502'):
            server_errors.append((repr(sent[:300]), repr(said[-300:])))
    return {'requests': count, 'answers': answers,
            'server_errors': server_errors}  # fmt: skip


_UUID = '11111111-2222-4333-8444-55555555555{}'
_METHODS: dict[str, Any] = {
    'select_destinations': {
        'request': {'flavor': {'vcpus': 1, 'memory_mb': 1, 'extra_specs': {}},
                    'instance_uuids': [_UUID.format(1)], 'image': {},
                    'scheduler_hints': {'query': '["=", "$a", 1]'}},
        'claim': False, 'explain': True, 'move': False,
    },
    'schedule_zone': {'zone': {'name': 'a.', 'attributes': {}}, 'keep': True},
    'schedule_many': {'requests': [
        {'select_destinations': {'flavor': {}}}, {'schedule_zone': {}}]},
    'explain': {'request': {'flavor': {'vcpus': 1}}, 'host': 'compute-1'},
    'release': {'instances': [_UUID.format(2)]},
    'confirm': {'instances': [_UUID.format(2)]},
    'drop_moves': {'instances': [_UUID.format(2)]},
    'ping': {},
    'update_host_state': {'hosts': [{'host': 'compute-1', 'vcpus_used': 1,
                                     'stats': {}, 'instances': []}]},
    'heartbeat': {'hosts': ['compute-1']},
    'update_instance_info': {'host_name': 'compute-1', 'instance_info':
                             {'uuid': _UUID.format(3), 'flavor': {}}},
    'delete_instance_info': {'host_name': 'compute-1',
                             'instance_uuid': _UUID.format(3)},
    'sync_instance_info': {'host_name': 'compute-1',
                           'instance_uuids': [_UUID.format(4)]},
    'update_aggregates': {'aggregates': [
        {'id': 9, 'hosts': ['compute-1'], 'metadata': {'a': 'b'}}]},
    'delete_aggregate': {'aggregate': 9},
}  # fmt: skip
_VERSIONS = ('1.0', '1.1', '1.1', '1.1', '1.1', '1.1', '2.0', '0.9', '1.99')


def rpc_call(rng: random.Random) -> tuple[Any, str, str, dict[str, Any]]:
    """Return (context, method, version, arguments), wrong in some way."""
    method = rng.choice(list(_METHODS))
    args = mutated(rng, _METHODS[method])
    if not isinstance(args, dict):
        args = {'request': args}
    if rng.random() < 0.02:
        args = {**args, 'huge': 'x' * 1_200_000}
    if rng.random() < 0.03:
        method = rng.choice(('nothing', '__init__', '_parse', '', 'a' * 999))
    context: Any = {'user_id': 'u', 'project_id': 'p', 'roles': ['admin']}
    if rng.random() < 0.05:
        context = rng.choice(({}, {'roles': 5}, {'user_id': ['x']}))
    return context, method, rng.choice(_VERSIONS), args


def rpc(client: Any, count: int, seed: int, known: Any) -> dict[str, Any]:
    """Call with payloads that are wrong; return the outcomes, in numbers.

    :param client: a stock RPC client on the topic
    :param known: names of errors that callers may get
    """
    rng = random.Random(seed)
    outcomes: dict[str, int] = {}
    unnamed = []
    for _ in range(count):
        context, method, version, args = rpc_call(rng)
        try:
            client.prepare(version=version, timeout=LIMIT_S).call(
                context, method, **{str(k): v for k, v in args.items()}
            )
            name = 'answered'
        except Exception as fault:
            name = type(fault).__name__.removesuffix('_Remote')
            if name == 'SchedulerError' or name not in known:
                unnamed.append((method, version, repr(args)[:300],
                                repr(fault)[:300]))  # fmt: skip
        outcomes[name] = outcomes.get(name, 0) + 1
    return {'calls': count, 'outcomes': outcomes, 'unnamed': unnamed}
