"""The files in deploy/kubernetes: rendered, and what the daemon makes of them.

``tests/interop/kube`` gives them to a real API server and kube-scheduler.
"""

from __future__ import annotations

import ssl
import subprocess
from typing import Any

import pytest
import yaml

from scheduler_service.cmd.adapters import new_config
from scheduler_service.conf import parse
from scheduler_service.extenders import policy_file
from tests.support import deployment
from tests.support.deployment import FOLDER
from tests.support.http_client import HttpClient
from tests.support.paths import ROOT
from tests.support.waiting import LIMIT_S

VARIANTS = ('base', 'postgresql', 'bind')
SNIPPETS = sorted((FOLDER / 'kube-scheduler').glob('*.yaml'))


@pytest.fixture(params=VARIANTS)
def objects(request) -> list[dict[str, Any]]:
    return deployment.rendered(FOLDER / request.param)


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [one for one in objects if one['kind'] == kind]


def test_every_kind_is_there_and_belongs_together(objects):
    kinds = {one['kind'] for one in objects}
    assert kinds == {
        'Namespace', 'ServiceAccount', 'ClusterRole', 'ClusterRoleBinding',
        'ConfigMap', 'Secret', 'Service', 'Deployment', 'NetworkPolicy',
        'PodDisruptionBudget',
    }  # fmt: skip
    (deployed,) = of_kind(objects, 'Deployment')
    template = deployed['spec']['template']
    labels = template['metadata']['labels']
    (service,) = of_kind(objects, 'Service')
    assert service['spec']['selector'].items() <= labels.items()
    for kind, name in (
        ('NetworkPolicy', 'podSelector'), ('PodDisruptionBudget', 'selector'),
    ):  # fmt: skip
        for one in of_kind(objects, kind):
            selector = one['spec'][name]['matchLabels']
            assert selector.items() <= labels.items()
    names = {one['metadata']['name'] for one in objects}
    settings, certificates = template['spec']['volumes'][:2]
    for source in settings['projected']['sources']:
        (part,) = source.values()
        assert part['name'] in names
    assert certificates['secret']['secretName'] == 'scheduler-service-tls'
    for binding in of_kind(objects, 'ClusterRoleBinding'):
        assert binding['roleRef']['name'] in names
        (subject,) = binding['subjects']
        assert subject['name'] == template['spec']['serviceAccountName']
        assert subject['namespace'] == deployed['metadata']['namespace']


def test_options_are_known_and_files_are_where_the_pod_has_them(
    objects, tmp_path
):
    (tmp_path / 'conf').mkdir()
    for name, text in deployment.settings(objects).items():
        (tmp_path / 'conf' / name).write_text(text)
    conf = parse(new_config(), ['--config-dir', str(tmp_path / 'conf')])
    (deployed,) = of_kind(objects, 'Deployment')
    (container,) = deployed['spec']['template']['spec']['containers']
    (port,) = container['ports']
    assert conf.http.bind_port == port['containerPort']
    assert conf.kubernetes.enabled
    mounts = {one['name']: one['mountPath'] for one in
              container['volumeMounts']}  # fmt: skip
    for path in (conf.http.cert_file, conf.http.key_file, conf.http.ca_file):
        assert path.startswith(f'{mounts["certificates"]}/')
    assert container['args'] == ['--config-dir', mounts['settings']]
    assert container['livenessProbe']['httpGet']['path'] == '/healthcheck'
    assert container['readinessProbe']['httpGet']['path'] == '/readyz'
    if deployed['spec']['replicas'] == 1:
        assert conf.database.connection.startswith('sqlite:')
    else:
        assert conf.database.connection.startswith('postgresql+psycopg:')
    roles = {one['metadata']['name'] for one in
             of_kind(objects, 'ClusterRole')}  # fmt: skip
    assert (conf.extender.api_server is not None) == (
        'scheduler-service-bind' in roles
    )


def test_certificates_of_cert_manager_are_what_the_deployment_reads(tmp_path):
    made = deployment.rendered(FOLDER / 'cert-manager')
    (deployed,) = of_kind(deployment.rendered(FOLDER / 'base'), 'Deployment')
    volumes = deployed['spec']['template']['spec']['volumes']
    by_secret = {
        one['spec']['secretName']: one['spec']
        for one in of_kind(made, 'Certificate')
    }
    issuers = {one['metadata']['name'] for one in of_kind(made, 'Issuer')}
    for one in by_secret.values():
        assert one['issuerRef']['name'] in issuers
        if not one.get('isCA'):
            assert one['duration'] == '2160h'
    server = by_secret[volumes[1]['secret']['secretName']]
    assert {one['metadata']['namespace'] for one in made} == {
        deployed['metadata']['namespace']
    }
    # The same names as certificates.sh gives.
    made_certificates(tmp_path)
    shown = subprocess.run(
        ['openssl', 'x509', '-in', str(tmp_path / 'tls.crt'), '-noout',
         '-ext', 'subjectAltName'],
        check=True, capture_output=True, text=True, timeout=LIMIT_S,
    ).stdout  # fmt: skip
    for name in server['dnsNames']:
        assert f'DNS:{name}' in shown


def test_metrics_are_read_at_the_service_with_the_clients_certificate():
    (monitor,) = deployment.rendered(FOLDER / 'monitoring')
    (service,) = of_kind(deployment.rendered(FOLDER / 'base'), 'Service')
    wanted = monitor['spec']['selector']['matchLabels']
    assert wanted.items() <= service['metadata']['labels'].items()
    (endpoint,) = monitor['spec']['endpoints']
    assert endpoint['port'] in {
        one['name'] for one in service['spec']['ports']
    }
    tls = endpoint['tlsConfig']
    parts = tls['ca']['secret'], tls['cert']['secret'], tls['keySecret']
    assert {one['name'] for one in parts} == {'scheduler-service-client'}
    certificates = of_kind(
        deployment.rendered(FOLDER / 'cert-manager'), 'Certificate'
    )
    secrets = [one['spec']['secretName'] for one in certificates]
    assert 'scheduler-service-client' in secrets


@pytest.mark.parametrize('path', SNIPPETS, ids=lambda path: path.stem)
def test_our_own_reader_takes_the_configurations_of_a_kube_scheduler(
    path, tmp_path
):
    certs = tmp_path / 'certs'
    made_certificates(certs)
    text = path.read_text().replace(
        '/etc/kubernetes/scheduler-service', str(certs)
    )
    (one,) = policy_file.read(text.encode(), path.name).extenders
    assert one.filter_verb == 'filter'
    assert one.ignorable or one.managed


def made_certificates(folder) -> None:
    subprocess.run(
        ['bash', str(FOLDER / 'certificates.sh'), str(folder), '10.0.0.7',
         '::1'],
        check=True, capture_output=True, timeout=LIMIT_S,
    )  # fmt: skip


@pytest.mark.parametrize(
    ('name', 'purpose'), [('tls', 'sslserver'), ('client', 'sslclient')]
)
def test_the_certificates_have_what_the_strictest_clients_require(
    tmp_path, name, purpose
):
    # As Python does from 3.13 on, which the image has.
    made_certificates(tmp_path)
    subprocess.run(
        ['openssl', 'verify', '-x509_strict', '-purpose', purpose,
         '-CAfile', str(tmp_path / 'ca.crt'), str(tmp_path / f'{name}.crt')],
        check=True, capture_output=True, timeout=LIMIT_S,
    )  # fmt: skip


def test_the_certificate_has_the_addresses_that_were_given(tmp_path):
    made_certificates(tmp_path)
    shown = subprocess.run(
        ['openssl', 'x509', '-in', str(tmp_path / 'tls.crt'), '-noout',
         '-ext', 'subjectAltName'],
        check=True, capture_output=True, text=True, timeout=LIMIT_S,
    ).stdout  # fmt: skip
    assert 'IP Address:10.0.0.7, IP Address:0:0:0:0:0:0:0:1' in shown


def test_an_image_is_built_without_what_git_ignores():
    ignored, left_out = (
        (ROOT / name).read_text().split('\n')
        for name in ('.gitignore', '.dockerignore')
    )
    expected = [f'**/{one.rstrip("/")}' for one in ignored if one]
    assert [one for one in left_out if one and one[0] != '#'] == expected


def test_only_the_certificate_that_was_made_lets_a_client_in(
    serve_http, tmp_path
):
    made_certificates(tmp_path)
    http = serve_http(
        http__cert_file=str(tmp_path / 'tls.crt'),
        http__key_file=str(tmp_path / 'tls.key'),
        http__ca_file=str(tmp_path / 'ca.crt'),
    )
    asked = {'Pod': {}, 'NodeNames': ['compute-1']}
    context = ssl.create_default_context(cafile=str(tmp_path / 'ca.crt'))
    statuses = []
    for _ in range(2):
        client = HttpClient(http.service, http.port, context=context)
        assert client.send('GET', '/healthcheck')[0] == 200
        statuses.append(client.send('POST', '/extender/filter', asked)[0])
        client.close()
        context.load_cert_chain(
            tmp_path / 'client.crt', tmp_path / 'client.key'
        )
    assert statuses == [401, 200]


INVENTORY = {
    'hosts': [
        {'host': 'good', 'vcpus': 8, 'memory_mb': 131072,
         'traits': ['HW_CPU_X86_AVX2'],
         'resources': {'CUSTOM_EXAMPLE_COM_FPGA': {'total': 4}}},
        {'host': 'small', 'vcpus': 8, 'memory_mb': 16384,
         'traits': ['CUSTOM_GPU', 'HW_CPU_X86_AVX2']},
        {'host': 'plain', 'vcpus': 8, 'memory_mb': 16384},
    ],
    'aggregates': [
        {'id': 1, 'hosts': ['good'], 'metadata': {'pool': 'fast'}},
        {'id': 2, 'hosts': ['small', 'plain'], 'metadata': {'pool': 'slow'}},
    ],
}  # fmt: skip
# Which nodes pass for the pods of the page.
PASSING = {
    'first': ['good', 'small'],
    'no-gpu': ['good'],
    'with-fpga': ['good'],
    'in-a-pool': ['good'],
    'on-a-large-host': ['good'],
}


def test_pods_of_the_page_get_what_they_ask_for(serve_http):
    default = new_config().extender.enabled_filters
    http = serve_http(
        inventory=INVENTORY,
        extender__enabled_filters=[*default, 'JsonFilter'],
    )
    pods = deployment.pods()
    assert pods.keys() == PASSING.keys()
    for name, pod in pods.items():
        asked = {'Pod': pod, 'NodeNames': ['good', 'small', 'plain']}
        status, answer = http.send('POST', '/extender/filter', asked)
        assert (status, answer['Error']) == (200, '')
        assert answer['NodeNames'] == PASSING[name], (name, answer)
        # Anybody can create them.
        assert yaml.safe_dump(pod)
