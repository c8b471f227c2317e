"""Us as an extender, and others' as ours: what a call costs.

The figures stand beside a request that does nothing on the same server, and
beside requests that no extender is asked about.
"""

from __future__ import annotations

import argparse
import http.client
import json
import pathlib
import statistics
import tempfile
import threading
from typing import Any

from benchmarks import common
from benchmarks.rpc import CONTEXT, Caller
from tests import extenders, servers

_POD = {
    'metadata': {'name': 'a', 'namespace': 'default', 'uid': 'u'},
    'spec': {'containers': [{'name': 'c', 'resources': {
        'requests': {'cpu': '100m', 'memory': '128Mi'}}}]},
}  # fmt: skip
_FPGA = {'extra_specs': {'resources:CUSTOM_FPGA': '1'}}


def node(number: int) -> dict[str, Any]:
    """Return a node of some 5 KB that the store does not know."""
    return {
        'metadata': {
            'name': f'strange-{number}', 'uid': f'u{number}',
            'labels': {'topology.kubernetes.io/zone': f'z{number % 3}',
                       'kubernetes.io/arch': 'amd64'},
            'managedFields': [{'manager': 'x', 'fieldsV1': {
                f'f:{at}': {'.': {}} for at in range(60)}}],
        },
        'spec': {'podCIDR': '10.0.0.0/24'},
        'status': {
            'allocatable': {'cpu': '31500m', 'memory': '124Gi',
                            'ephemeral-storage': '500Gi', 'pods': '250'},
            'conditions': [{'type': 'Ready', 'status': 'True'}],
            'images': [{'names': [f'registry.example/image-{at}:1'],
                        'sizeBytes': at} for at in range(40)],
            'nodeInfo': {'architecture': 'amd64'},
        },
    }  # fmt: skip


def median_ms(call: Any, turns: int) -> float:
    """Return the median time of a call."""
    for _ in range(3):
        call()
    times = [common.timed(call) * 1000 for _ in range(turns)]
    return round(statistics.median(times), 3)


def serving(port: int, turns: int) -> dict[str, Any]:
    """Time our own endpoints."""
    conn = http.client.HTTPConnection('127.0.0.1', port, timeout=60)

    def ask(method: str, path: str, body: bytes | None = None) -> bytes:
        conn.request(method, path, body)
        answer = conn.getresponse()
        text = answer.read()
        assert answer.status == 200, text[:300]
        return text

    def both(asked: dict[str, Any]) -> Any:
        text = json.dumps(asked).encode()
        assert not json.loads(ask('POST', '/extender/filter', text))['Error']

        def call() -> None:
            ask('POST', '/extender/filter', text)
            ask('POST', '/extender/prioritize', text)

        return call

    names = [f'node-{number:06d}' for number in range(5000)]
    by_name = both({'Pod': _POD, 'Nodes': None, 'NodeNames': names})
    nodes = {'items': [node(number) for number in range(1000)]}
    by_node = both({'Pod': _POD, 'Nodes': nodes, 'NodeNames': None})
    found = {
        'healthcheck_twice_ms': median_ms(
            lambda: [ask('GET', '/healthcheck') for _ in range(2)], turns
        ),
        'names_5000_ms': median_ms(by_name, turns),
        'nodes_1000_ms': median_ms(by_node, max(5, turns // 10)),
    }
    conn.close()
    return found


def calling(
    caller: Caller, other: Caller, server: Any, turns: int
) -> dict[str, Any]:
    """Time requests with and without an extender, and while it hangs.

    :param other: calls what hangs, on a connection of its own
    """

    def with_extender(by: Caller = caller) -> None:
        by.client.select_destinations(
            CONTEXT, common.request(flavor={'memory_mb': 1, **_FPGA})
        )

    found = {
        'with_ms': median_ms(with_extender, turns // 2),
        'without_ms': median_ms(caller.claimed, turns),
    }
    assert 'filter' in server.verbs()
    server.answer = lambda verb, asked: extenders.Reply(delay=20)
    waiting = [
        threading.Thread(target=_quietly, args=(with_extender, other))
        for _ in range(8)
    ]
    for one in waiting:
        one.start()
    found['beside_hanging_ms'] = median_ms(caller.claimed, turns)
    assert all(one.is_alive() for one in waiting)
    found['beside_hanging_to_without'] = round(
        found['beside_hanging_ms'] / found['without_ms'], 2
    )
    return found


def _quietly(call: Any, by: Caller) -> None:
    try:
        call(by)
    except Exception:
        return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--turns', type=int, default=200)
    parser.add_argument('--json', action='store_true')
    args = parser.parse_args()
    with (
        common.database(None) as database,
        common.bus(None) as bus,
        extenders.extender() as server,
        tempfile.TemporaryDirectory() as folder,
    ):
        place = pathlib.Path(folder)
        port = servers.free_port()
        (place / 'policy.json').write_text(json.dumps({
            'kind': 'Policy', 'extenders': [{
                'urlPrefix': server.url, 'filterVerb': 'filter',
                'prioritizeVerb': 'prioritize', 'weight': 1,
                'nodeCacheCapable': True, 'httpTimeout': 60 * 10**9,
                'managedResources': [
                    {'name': 'scheduler-service.local/CUSTOM_FPGA'}],
            }],
        }))  # fmt: skip
        config = common.write_config(place, database, bus)
        with config.open('a') as more:
            more.write(
                f'[http]\nbind_port = {port}\n'
                f'[extender]\npolicy_file = {place}/policy.json\n'
            )
        document = common.inventory(10_000)
        for one in document['hosts'][:200]:
            one['resources'] = {'CUSTOM_FPGA': {'total': 100_000}}
        (place / 'inventory.json').write_text(json.dumps(document))
        common.manage(config, 'db', 'sync')
        common.manage(
            config, 'inventory', 'import', str(place / 'inventory.json')
        )
        with common.daemon(config) as running:
            figures = {
                'serving': serving(port, args.turns),
                'calling': calling(
                    Caller(bus), Caller(bus), server, args.turns
                ),
            }
            # It waits for the extender; nobody waits for it here.
            running.kill()
    common.show(figures, args.json)


if __name__ == '__main__':
    main()
