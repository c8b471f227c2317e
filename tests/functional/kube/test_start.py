"""Daemons that are told to follow a cluster that they cannot follow."""

import pytest
import yaml

from scheduler_service import errors
from scheduler_service.cmd.daemon import Daemon
from tests.support import requirements
from tests.support.services import new_conf


def test_daemon_does_not_start_when_no_cluster_can_be_followed(tmp_path):
    """Either the library is missing, or the file is."""
    conf = new_conf(
        database__connection=f'sqlite:///{tmp_path}/a.sqlite',
        kubernetes__enabled=True,
        kubernetes__kubeconfig=str(tmp_path / 'none'),
    )
    with pytest.raises(errors.ConfigurationError, match='API server'):
        Daemon(conf, 'inproc://')


@pytest.mark.parametrize(
    'text', ['', '[a]', 'root:x:0:0', '*a', 'clusters: 1']
)
def test_daemon_does_not_start_when_the_file_is_no_kubeconfig(tmp_path, text):
    requirements.need_library('kubernetes')
    path = tmp_path / 'kubeconfig'
    path.write_text(text)
    conf = new_conf(
        database__connection=f'sqlite:///{tmp_path}/a.sqlite',
        kubernetes__enabled=True,
        kubernetes__kubeconfig=str(path),
    )
    with pytest.raises(errors.ConfigurationError, match='API server'):
        Daemon(conf, 'inproc://')


def test_daemon_does_not_start_when_a_label_has_no_target(tmp_path):
    conf = new_conf(
        database__connection=f'sqlite:///{tmp_path}/a.sqlite',
        kubernetes__labels={'pool': 'nothing'},
        http__bind_port=0,
    )
    with pytest.raises(errors.ConfigurationError, match='pool: nothing'):
        Daemon(conf, 'inproc://')


def test_daemon_does_not_start_when_what_it_manages_is_no_resource(tmp_path):
    conf = new_conf(
        database__connection=f'sqlite:///{tmp_path}/a.sqlite',
        kubernetes__managed_resources=['example.com/fpga', 'cpu'],
        http__bind_port=0,
    )
    with pytest.raises(errors.ConfigurationError, match='not all are ext'):
        Daemon(conf, 'inproc://')


@pytest.fixture
def follower(tmp_path):
    """A daemon that would follow a cluster, and its kubeconfig file."""
    requirements.need_library('kubernetes')
    path = tmp_path / 'kubeconfig'
    path.write_text(yaml.safe_dump(kubeconfig('first')))
    options = {
        'database__connection': f'sqlite:///{tmp_path}/a.sqlite',
        'kubernetes__enabled': True,
        'kubernetes__kubeconfig': str(path),
    }
    return Daemon(new_conf(**options), 'inproc://'), path, options


def kubeconfig(token):
    """Return a kubeconfig of a cluster that is not there."""
    return {
        'current-context': 'c',
        'contexts': [{'name': 'c', 'context': {'cluster': 'c', 'user': 'u'}}],
        'clusters': [
            {'name': 'c', 'cluster': {'server': 'http://127.0.0.1:1'}}
        ],
        'users': [{'name': 'u', 'user': {'token': token}}],
    }


def test_credentials_are_replaced_where_they_differ(follower):
    daemon, path, options = follower
    cluster = daemon.adapters[0]
    first = cluster._api
    cluster.check(new_conf(**options))()
    assert cluster._api is first
    path.write_text(yaml.safe_dump(kubeconfig('second')))
    cluster.check(new_conf(**options))()
    assert cluster._api is not first
    assert {one._next for one in cluster._followers} == {cluster._api}


def test_credentials_that_cannot_be_used_are_refused(follower):
    daemon, path, options = follower
    path.unlink()
    with pytest.raises(errors.ConfigurationError, match='API server'):
        daemon.reconfigure(new_conf(**options))
