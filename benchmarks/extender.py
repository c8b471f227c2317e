"""What a call costs: to this service as an extender, and to an extender.

The first is compared with an extender that does nothing, in turns, for the
two calls that a kube-scheduler makes for one pod: see
``benchmarks.kube_serving``. The second is compared with requests that no
extender is asked about, and that are sent while the extender does not answer.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import tempfile
import threading
from typing import Any

from benchmarks import common, kube_serving
from benchmarks.rpc import CONTEXT, Caller
from tests.support import extenders

_FPGA = {'extra_specs': {'resources:CUSTOM_FPGA': '1'}}


def median_ms(call: Any, turns: int) -> float:
    """Return the median time of a call."""
    for _ in range(3):
        call()
    times = [common.timed(call) * 1000 for _ in range(turns)]
    return round(statistics.median(times), 3)


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


def as_extender(turns: int, pods: int, placements: int) -> dict[str, Any]:
    """Return what a kube-scheduler's calls cost."""
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        certs = extenders.certificates(place)
        with kube_serving.sides(place, certs, placements) as made:
            return {
                'names': kube_serving.by_names(made, turns, pods),
                'objects': kube_serving.by_objects(made, turns),
            }


def as_caller(turns: int) -> dict[str, Any]:
    """Return what it costs to call an extender."""
    with (
        common.database(None) as database,
        common.bus(None) as bus,
        extenders.extender() as server,
        tempfile.TemporaryDirectory() as folder,
    ):
        place = pathlib.Path(folder)
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
            more.write(f'[extender]\npolicy_file = {place}/policy.json\n')
        document = common.inventory(10_000)
        for one in document['hosts'][:200]:
            one['resources'] = {'CUSTOM_FPGA': {'total': 100_000}}
        common.import_inventory(config, document)
        with common.daemon(config) as running:
            figures = calling(Caller(bus), Caller(bus), server, turns)
            # Requests still wait for the extender: do not wait for them.
            running.kill()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--turns', type=int, default=10)
    parser.add_argument(
        '--pods', type=int, default=200, help='in each turn (default: 200)'
    )
    parser.add_argument(
        '--placements',
        type=int,
        default=200,
        help='pods placed in a second meanwhile (default: 200); 0: the '
        'cluster is not followed, and the library kubernetes not needed',
    )
    parser.add_argument(
        '--only', choices=('serving', 'calling'), help='measure one side'
    )
    parser.add_argument('--json', action='store_true')
    args = parser.parse_args()
    figures: dict[str, Any] = {}
    if args.only != 'calling':
        figures.update(as_extender(args.turns, args.pods, args.placements))
    if args.only != 'serving':
        figures['calling'] = as_caller(20 * args.turns)
    if args.json:
        common.show(figures, True)
        return
    for name, section in figures.items():
        print(f'{name}:')
        common.show(section, False)


if __name__ == '__main__':
    main()
