"""A caller for as long as its input is open; it runs in any release.

``python rolling_caller.py CONFIG TOPIC``: prints a line for each request, JSON
with the instance, and its host or what went wrong. Every third instance is
released again.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import uuid

from scheduler_service import conf as options
from scheduler_service import rpc  # noqa: F401 - chooses the bus's backend
from scheduler_service.cmd import adapters
from scheduler_service.rpc.client import SchedulerClient

THREADS = 2
# Between two requests of a thread: daemons that start need the processor.
PAUSE_S = 0.1
CONTEXT = {'user_id': 'u', 'project_id': 'p', 'roles': ['admin']}
FLAVOR = {'vcpus': 1, 'memory_mb': 64, 'root_gb': 0}
TIMEOUT_S = 60


def placed(client: SchedulerClient, number: int) -> dict[str, str]:
    """Have one instance placed, or placed and released; say what happened."""
    instance = str(uuid.uuid4())
    request = {'instance_uuids': [instance], 'flavor': FLAVOR}
    told = {'instance': instance}
    try:
        answer = client.select_destinations(CONTEXT, request)
        told['host'] = answer['placements'][0]['selected']['host']
        if number % 3 == 0:
            released = client.release(CONTEXT, [instance])
            told['released'] = str(released)
    except Exception as fault:
        told['fault'] = f'{type(fault).__name__}: {fault}'
    return told


def main(config: str, topic: str) -> None:
    """Call until the input ends."""
    conf = adapters.new_config()
    options.parse(conf, ['--config-file', config])
    client = SchedulerClient(conf, topic=topic, timeout=TIMEOUT_S)
    ended = threading.Event()
    writing = threading.Lock()

    def work() -> None:
        for number in itertools.count():
            if ended.wait(PAUSE_S):
                return
            line = json.dumps(placed(client, number))
            with writing:
                print(line, flush=True)

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    ended.set()
    for thread in threads:
        thread.join()


if __name__ == '__main__':
    main(*sys.argv[1:])
