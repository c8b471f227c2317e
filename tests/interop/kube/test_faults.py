"""Daemons that die, stop or hang while a kube-scheduler asks them."""

from __future__ import annotations

import signal

import pytest

from tests.support import kube
from tests.support.kube_nodes import SSD_NODES, asking_for_ssd
from tests.support.waiting import wait_until

PODS = 12


@pytest.mark.parametrize('fault', ['killed', 'stopped', 'hung'])
@pytest.mark.parametrize('ignorable', [True, False])
def test_no_pod_is_lost_when_a_daemon_fails(
    cluster, start_daemon, fault, ignorable
):
    daemon = start_daemon().wait_ready()
    entry = kube.entry(daemon.port, ignorable=ignorable, httpTimeout='300ms')
    half = PODS // 2
    with cluster.scheduler(entry):
        cluster.create_pods(asking_for_ssd(f'a-{n}') for n in range(half))
        wait_until(cluster.placements, 60)
        process = daemon.process
        if fault == 'hung':
            process.popen.send_signal(signal.SIGSTOP)
        else:
            process.end(
                signal.SIGKILL if fault == 'killed' else signal.SIGTERM
            )
        cluster.create_pods(asking_for_ssd(f'b-{n}') for n in range(half))
        if ignorable:
            went = cluster.wait_bound(PODS)
        else:
            # Nobody could say where they may go: they wait.
            wait_until(lambda: cluster.refusal(f'b-{half - 1}'), 60)
            if fault == 'hung':
                process.popen.send_signal(signal.SIGCONT)
            else:
                start_daemon(daemon).wait_ready()
            went = cluster.wait_bound(PODS)
    assert len(went) == PODS
    if not ignorable:
        assert set(went.values()) <= SSD_NODES
