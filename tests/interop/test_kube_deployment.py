"""deploy/kubernetes on a real API server, with no more rights than it gives.

The daemon has the configuration that is deployed, with other paths and
addresses, and calls the API server as its service account; a kube-scheduler
has the configurations that are shipped.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import os
import pathlib
import re
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import urllib3
import yaml

from tests.support import (
    control_plane,
    deployment,
    kube,
    page_commands,
    processes,
    requirements,
)
from tests.support.databases import migrated_database
from tests.support.deployment import FOLDER
from tests.support.kube import Cluster
from tests.support.paths import PROGRAMS, ROOT
from tests.support.processes import Process
from tests.support.servers import free_port
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.slow
DOMAIN = 'scheduler-service.local'
SPACE = 'scheduler-service'
NODES = 12
SNIPPETS = sorted((FOLDER / 'kube-scheduler').glob('*.yaml'))


@pytest.fixture(scope='module')
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    """A control plane with roles, and nodes half of which have a trait."""
    if control_plane.missing():
        pytest.skip(control_plane.missing())
    deployment.need_kubectl()
    requirements.need_library('kubernetes')
    folder = tmp_path_factory.mktemp('kube')
    with control_plane.cluster(folder, roles=True) as made:
        made.create_nodes(
            kube.node(
                f'node-{number}',
                {'example.com/fpga': '4'} if number % 3 == 0 else {},
                {f'trait.{DOMAIN}/HW_CPU_X86_AVX2': 'true'}
                if number % 2
                else {},
            )
            for number in range(NODES)
        )
        yield made


def kubectl(cluster: Cluster, *args: str) -> str:
    """Run kubectl as somebody who may do everything."""
    done = subprocess.run(
        ['kubectl', '--kubeconfig', cluster.kubeconfig, *args],
        check=False, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@dataclasses.dataclass
class Deployed:
    """A daemon that runs with the deployed configuration.

    :ivar certs: folder of the certificates
    """

    process: Process
    port: int
    certs: pathlib.Path

    def get(self, path: str) -> str:
        """Return what a path answers to the kube-scheduler's certificate."""
        context = ssl.create_default_context(cafile=str(self.certs / 'ca.crt'))
        context.load_cert_chain(
            self.certs / 'client.crt', self.certs / 'client.key'
        )
        with urllib3.PoolManager(ssl_context=context, retries=False) as pool:
            url = f'https://localhost:{self.port}{path}'
            return pool.request('GET', url, timeout=LIMIT_S).data.decode()

    def ready(self) -> dict[str, Any]:
        """Return what /readyz says."""
        told: dict[str, Any] = json.loads(self.get('/readyz'))
        return told

    def hosts(self) -> int:
        """Return how many hosts are known."""
        return int(self.metric('hosts'))

    def metric(self, name: str) -> float:
        """Return a figure; 0 if it is not there."""
        for line in self.get('/metrics').splitlines():
            if line.startswith(f'scheduler_service_{name} '):
                return float(line.rpartition(' ')[2])
        return 0.0


def token_of(cluster: Cluster, account: str) -> str:
    """Return a token of a service account of our namespace."""
    reply = cluster.call(
        'POST',
        f'/api/v1/namespaces/{SPACE}/serviceaccounts/{account}/token',
        {'spec': {'expirationSeconds': 3600}},
    )
    token: str = reply['status']['token']
    return token


def start(
    cluster: Cluster, folder: pathlib.Path, objects: Any, account: str
) -> Deployed:
    """Start a daemon with the settings of a deployment.

    :param account: the service account that it is
    """
    certs, conf, port = folder / 'certs', folder / 'all.conf', free_port()
    subprocess.run(
        ['bash', str(FOLDER / 'certificates.sh'), str(certs)], check=True
    )
    (folder / 'token').write_text(token_of(cluster, account))
    url = migrated_database(f'sqlite:///{folder}/')
    # Of an option that is there twice, the last one counts.
    parts = [text for _, text in sorted(deployment.settings(objects).items())]
    parts.append(
        f'[database]\nconnection = {url}\n'
        f'[http]\nbind_port = {port}\ncert_file = {certs}/tls.crt\n'
        f'key_file = {certs}/tls.key\nca_file = {certs}/ca.crt\n'
        f'[extender]\napi_server = {cluster.url}\n'
        f'api_token_file = {folder}/token\napi_ca_file = {cluster.ca_file}\n'
    )
    conf.write_text('\n'.join(parts))
    process = processes.launch(conf)
    return Deployed(process, port, certs)


@pytest.fixture(scope='module')
def objects(cluster: Cluster) -> list[dict[str, Any]]:
    """What is deployed, once it is: the daemon may bind."""
    folder = FOLDER / 'bind'
    kubectl(cluster, 'apply', '-f', str(FOLDER / 'base' / 'namespace.yaml'))
    kubectl(cluster, 'apply', '-k', str(folder))
    return deployment.rendered(folder)


@pytest.fixture(scope='module')
def deployed(cluster, objects, tmp_path_factory) -> Iterator[Deployed]:
    made = start(cluster, tmp_path_factory.mktemp('run'), objects, SPACE)
    try:
        made.process.wait_for('Ready: ')
        wait_until(lambda: made.hosts() == NODES)
        yield made
    finally:
        made.process.remove()


@pytest.mark.parametrize('variant', ['base', 'postgresql'])
def test_an_api_server_accepts_all_objects(cluster, variant):
    kubectl(cluster, 'apply', '-f', str(FOLDER / 'base' / 'namespace.yaml'))
    told = kubectl(
        cluster, 'apply', '--dry-run=server', '-k', str(FOLDER / variant)
    )
    assert told.count('(server dry run)') == len(
        deployment.rendered(FOLDER / variant)
    )


def test_the_rights_are_enough(deployed):
    ready = deployed.ready()
    assert (ready['ready'], ready['degraded']) == (True, [])


@pytest.mark.parametrize('path', SNIPPETS, ids=lambda path: path.stem)
def test_a_kube_scheduler_places_pods_by_a_shipped_configuration(
    cluster, deployed, path
):
    document = yaml.safe_load(
        path.read_text().replace(
            '/etc/kubernetes/scheduler-service', str(deployed.certs)
        )
    )
    (entry,) = document['extenders']
    entry['urlPrefix'] = f'https://127.0.0.1:{deployed.port}/extender'
    percentage = document.get('percentageOfNodesToScore')
    name = f'by-{path.stem}'
    pods = {
        f'{name}-{key}': pod for key, pod in deployment.pods().items()
        if key in ('first', 'with-fpga')
    }  # fmt: skip
    before = deployed.metric('extender_verb_nodes_total{direction="received",'
                             'verb="filter"}')  # fmt: skip
    for key, pod in pods.items():
        pod['metadata']['name'] = key
        pod['spec']['schedulerName'] = name
    cluster.create_pods(pods.values())
    with cluster.scheduler(entry, name=name, percentage=percentage):
        wait_until(lambda: pods.keys() <= cluster.placements().keys())
    node = cluster.placements()
    assert int(node[f'{name}-first'].removeprefix('node-')) % 2 == 1
    assert int(node[f'{name}-with-fpga'].removeprefix('node-')) % 3 == 0
    after = deployed.metric('extender_verb_nodes_total{direction="received",'
                            'verb="filter"}')  # fmt: skip
    assert after > before
    assert deployed.metric('extender_verb_errors_total{verb="filter"}') == 0
    bound = 'http_requests_total{route="/extender/bind",status="200"}'
    if entry.get('bindVerb'):
        assert deployed.metric(bound) > 0
        assert deployed.metric('extender_verb_errors_total{verb="bind"}') == 0


# Kinds of operators that the page uses: group, version, kind.
KINDS = (
    ('cert-manager.io', 'v1', 'Issuer'),
    ('cert-manager.io', 'v1', 'Certificate'),
    ('monitoring.coreos.com', 'v1', 'ServiceMonitor'),
    ('monitoring.coreos.com', 'v1', 'PrometheusRule'),
)


def add_kind(cluster: Cluster, group: str, version: str, kind: str) -> None:
    """Have an API server take objects of a kind, whatever is in them."""
    plural = f'{kind.lower()}s'
    anything = {'type': 'object', 'x-kubernetes-preserve-unknown-fields': True}
    cluster.call(
        'POST', '/apis/apiextensions.k8s.io/v1/customresourcedefinitions',
        {'metadata': {'name': f'{plural}.{group}'},
         'spec': {
             'group': group, 'scope': 'Namespaced',
             'names': {'kind': kind, 'plural': plural,
                       'singular': kind.lower()},
             'versions': [{'name': version, 'served': True, 'storage': True,
                           'schema': {'openAPIV3Schema': anything}}]}},
    )  # fmt: skip
    kubectl(
        cluster, 'wait', '--for=condition=Established', 'crd',
        f'{plural}.{group}',
    )  # fmt: skip


def test_every_line_of_the_page_works(cluster, deployed, tmp_path):
    for kind in KINDS:
        add_kind(cluster, *kind)
    entry = yaml.safe_load(
        (FOLDER / 'kube-scheduler/names.yaml').read_text().replace(
            '/etc/kubernetes/scheduler-service', str(deployed.certs)
        )
    )['extenders'][0]  # fmt: skip
    entry['urlPrefix'] = f'https://127.0.0.1:{deployed.port}/extender'
    with cluster.scheduler(entry):
        texts = run_lines(cluster, deployed, tmp_path)
    copied = {
        path.name: path
        for path in (tmp_path / 'etc/kubernetes').rglob('*.*')
    }  # fmt: skip
    assert copied.keys() == {
        'ca.crt', 'client.crt', 'client.key', 'names.yaml',
    }  # fmt: skip
    text = copied['names.yaml'].read_text()
    (address,) = re.findall(r'https://(.*):9393', text)
    ipaddress.ip_address(address)
    assert 'pod_filter: passed' in texts
    assert 'pod_prioritize' not in texts


def run_lines(cluster: Cluster, deployed: Deployed, tmp_path: Any) -> str:
    """Run the lines of the page; return what they printed."""
    root = tmp_path / 'root'
    folder = root / 'deploy/kubernetes'
    shutil.copytree(FOLDER, folder)
    shutil.copytree(ROOT / 'etc', root / 'etc')
    (tmp_path / 'etc/kubernetes').mkdir(parents=True)
    texts = ''
    page = page_commands.page('kubernetes')
    ran = 0
    for line in page_commands.lines(page):
        if line in page_commands.NOT_RUN:
            continue
        own = line.replace('/etc/kubernetes', f'{tmp_path}/etc/kubernetes')
        if ' exec ' in line:
            # There is no kubelet: the daemon's own store is asked.
            cluster.wait_bound(1)
            own = own.partition(' -- ')[2].replace(
                '--config-dir /etc/scheduler_service',
                f'--config-file {deployed.certs.parent}/all.conf',
            )
        if line.startswith('curl'):
            # The daemon that is asked had its certificates before.
            own = own.replace('certificates/', f'{deployed.certs}/')
            own = own.replace('localhost:9393', f'localhost:{deployed.port}')
        done = subprocess.run(
            ['bash', '-euo', 'pipefail', '-c', own], cwd=folder,
            env={**os.environ, 'KUBECONFIG': cluster.kubeconfig,
                 'PATH': f'{PROGRAMS}:{os.environ["PATH"]}'},
            check=False, capture_output=True, text=True, timeout=LIMIT_S,
        )  # fmt: skip
        assert done.returncode == 0, (line, done.stderr)
        texts += done.stdout
        ran += 1
    assert ran >= 18
    return texts


def test_without_the_rights_the_daemon_says_so(cluster, objects, tmp_path):
    cluster.send(
        'POST', f'/api/v1/namespaces/{SPACE}/serviceaccounts',
        {'metadata': {'name': 'nobody'}},
    )  # fmt: skip
    made = start(cluster, tmp_path, objects, 'nobody')
    try:
        wait_until(lambda: 'nodes of the cluster' in str(degraded(made)))
        assert made.hosts() == 0
    finally:
        made.process.remove()


def degraded(made: Deployed) -> Any:
    """Return what is degraded; nothing before it answers."""
    try:
        return made.ready()['degraded']
    except urllib3.exceptions.HTTPError:
        return []
