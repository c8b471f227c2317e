"""What a call costs: to this service as an extender, and to an extender.

The first is compared with a health check on the same server, and its
processor time is measured as well, for the two calls that a kube-scheduler
makes for one pod. The second is compared with requests that no extender is
asked about, and that are sent while the extender does not answer.
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
from tests.support import extenders, servers

_POD = {
    'metadata': {'name': 'a', 'namespace': 'default', 'uid': 'u'},
    'spec': {'containers': [{'name': 'c', 'resources': {
        'requests': {'cpu': '100m', 'memory': '128Mi'}}}]},
}  # fmt: skip
_FPGA = {'extra_specs': {'resources:CUSTOM_FPGA': '1'}}


def node(number: int) -> dict[str, Any]:
    """Return a node document of about 5 KB; the store does not have it."""
    return {
        'metadata': {
            'name': f'unknown-{number}', 'uid': f'u{number}',
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


def cpu_ms(pid: int, call: Any, turns: int) -> float:
    """Return the mean processor time of a process for one call."""
    before = common.cpu_seconds(pid)
    for _ in range(turns):
        call()
    return round((common.cpu_seconds(pid) - before) * 1000 / turns, 3)


def serving(port: int, pid: int, turns: int) -> dict[str, Any]:
    """Return how long the extender endpoints of the daemon take."""
    conn = http.client.HTTPConnection('127.0.0.1', port, timeout=60)

    def ask(method: str, path: str, body: bytes | None = None) -> bytes:
        conn.request(method, path, body)
        answer = conn.getresponse()
        text = answer.read()
        assert answer.status == 200, text[:300]
        return text

    def filter_and_prioritize(arguments: dict[str, Any]) -> Any:
        text = json.dumps(arguments).encode()
        assert not json.loads(ask('POST', '/extender/filter', text))['Error']

        def call() -> None:
            ask('POST', '/extender/filter', text)
            ask('POST', '/extender/prioritize', text)

        return call

    names = [f'node-{number:06d}' for number in range(5000)]
    by_name = filter_and_prioritize(
        {'Pod': _POD, 'Nodes': None, 'NodeNames': names}
    )
    by_fewer_names = filter_and_prioritize(
        {'Pod': _POD, 'Nodes': None, 'NodeNames': names[:1000]}
    )

    def healthcheck_twice() -> None:
        for _ in range(2):
            ask('GET', '/healthcheck')

    nodes = {'items': [node(number) for number in range(1000)]}
    by_node = filter_and_prioritize(
        {'Pod': _POD, 'Nodes': nodes, 'NodeNames': None}
    )
    figures = {
        'healthcheck_twice_ms': median_ms(healthcheck_twice, turns),
        'healthcheck_twice_cpu_ms': cpu_ms(pid, healthcheck_twice, turns * 5),
        'names_1000_ms': median_ms(by_fewer_names, turns),
        'names_1000_cpu_ms': cpu_ms(pid, by_fewer_names, turns * 2),
        'names_5000_ms': median_ms(by_name, turns),
        'nodes_1000_ms': median_ms(by_node, max(5, turns // 10)),
    }
    conn.close()
    return figures


def calling(
    caller: Caller, other: Caller, server: Any, turns: int
) -> dict[str, Any]:
    """Return how long requests take with an extender, and without.

    :param other: sends the requests that hang, on a connection of its own
    """

    def with_extender(by: Caller = caller) -> None:
        by.client.select_destinations(
            CONTEXT, common.request(flavor={'memory_mb': 1, **_FPGA})
        )

    figures = {
        'with_ms': median_ms(with_extender, turns // 2),
        'without_ms': median_ms(caller.claimed, turns),
    }
    assert 'filter' in server.verbs()
    server.answer = lambda verb, arguments: extenders.Reply(delay=20)
    waiting = [
        threading.Thread(target=_ignoring_errors, args=(with_extender, other))
        for _ in range(8)
    ]
    for one in waiting:
        one.start()
    figures['beside_hanging_ms'] = median_ms(caller.claimed, turns)
    assert all(one.is_alive() for one in waiting)
    figures['beside_hanging_to_without'] = round(
        figures['beside_hanging_ms'] / figures['without_ms'], 2
    )
    return figures


def _ignoring_errors(call: Any, by: Caller) -> None:
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
        common.import_inventory(config, document)
        with common.daemon(config) as running:
            figures = {
                'serving': serving(port, running.pid, args.turns),
                'calling': calling(
                    Caller(bus), Caller(bus), server, args.turns
                ),
            }
            # Requests still wait for the extender: do not wait for them.
            running.kill()
    common.show(figures, args.json)


if __name__ == '__main__':
    main()
