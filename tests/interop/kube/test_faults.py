"""Daemons that die, stop or hang while a kube-scheduler asks them."""

from __future__ import annotations

import signal
from urllib import parse

import pytest
import urllib3

from tests.support import kube
from tests.support.kube_nodes import SSD_NODES, asking_for_ssd
from tests.support.tcp_proxy import Mode, TcpProxy
from tests.support.waiting import LIMIT_S, wait_until

PODS = 12


@pytest.mark.parametrize(
    ('fault', 'ignorable'),
    [('killed', True), ('hung', True), ('stopped', False), ('hung', False)],
)
def test_no_pod_is_lost_when_a_daemon_fails(
    cluster, start_daemon, request, fault, ignorable
):
    # One that hangs goes on, and others are not there afterwards.
    if fault == 'hung':
        daemon = request.getfixturevalue('module_daemon')
        request.addfinalizer(
            lambda: daemon.process.popen.send_signal(signal.SIGCONT)
        )
    else:
        daemon = start_daemon().wait_ready()
    entry = kube.entry(daemon.port, ignorable=ignorable, httpTimeout='300ms')
    half = PODS // 2
    with cluster.scheduler(entry):
        cluster.create_pods(asking_for_ssd(f'a-{n}') for n in range(half))
        wait_until(cluster.placements)
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
            wait_until(lambda: cluster.refusal(f'b-{half - 1}'))
            if fault == 'hung':
                process.popen.send_signal(signal.SIGCONT)
            else:
                start_daemon(daemon).wait_ready()
            went = cluster.wait_bound(PODS)
    assert len(went) == PODS
    if not ignorable:
        assert set(went.values()) <= SSD_NODES


def test_nobody_is_refused_before_the_nodes_are_known(cluster, start_daemon):
    """Until then the scheduler leaves out an extender that is ignorable."""
    proxy = TcpProxy(parse.urlsplit(cluster.url).port or 0)
    try:
        proxy.become(Mode.REFUSE)
        daemon = start_daemon(
            extender__api_server=f'https://127.0.0.1:{proxy.port}'
        )
        daemon.process.wait_for('; nodes are still being loaded')
        assert _status(daemon) == 503
        entry = kube.entry(daemon.port, ignorable=True, preemptVerb='preempt')
        with cluster.scheduler(entry):
            cluster.create_pods([asking_for_ssd('early')])
            cluster.wait_bound(1)
        assert _status(daemon) == 503
        proxy.become(Mode.FORWARD)
        wait_until(lambda: _status(daemon) == 200)
        daemon.process.wait_for('nodes of the cluster are loaded')
        # Without a refusal, from the first pod on.
        with cluster.scheduler(kube.entry(daemon.port)):
            cluster.create_pods(asking_for_ssd(f'ssd-{n}') for n in range(9))
            went = cluster.wait_bound(10)
        del went['early']
        assert set(went.values()) <= SSD_NODES
    finally:
        proxy.close()


def _status(daemon):
    url = f'http://127.0.0.1:{daemon.port}/readyz'
    return urllib3.request('GET', url, timeout=LIMIT_S, retries=False).status
