"""Threads that are the first to parse a document at the same time."""

import subprocess
import sys

# Types are worked out once in a process, so each try has one of its own.
TRIES = """
import os, sys, threading
from scheduler_service.model import Instance, documents
from scheduler_service.rpc.endpoints import _SelectArgs
documents.prepare()
sys.setswitchinterval(1e-6)
HOST = {
    'host': 'a', 'pci_device_pools': [{'count': 1}], 'metrics': [],
    'numa_topology': {'cells': []},
}
def run(barrier):
    barrier.wait()
    documents.host_report(HOST)
    documents.parse(
        {'uuid': '11111111-2222-4333-8444-555555555555', 'host': 'a'}, Instance
    )
    documents.request({'flavor': {'vcpus': 1}})
    documents.arguments({'request': {}}, _SelectArgs)
def work():
    barrier = threading.Barrier(8)
    threads = [threading.Thread(target=run, args=[barrier]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
for _ in range(40):
    child = os.fork()
    if not child:
        work()
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit('a process crashed')
"""


def test_threads_may_parse_their_first_documents_together():
    done = subprocess.run(
        [sys.executable, '-c', TRIES], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
