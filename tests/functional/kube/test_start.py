"""Daemons that are told to follow a cluster that they cannot follow."""

from __future__ import annotations

import pytest

from scheduler_service import errors
from scheduler_service.cmd.daemon import Daemon
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


def test_daemon_does_not_start_when_a_label_has_no_target(tmp_path):
    conf = new_conf(
        database__connection=f'sqlite:///{tmp_path}/a.sqlite',
        kubernetes__labels={'pool': 'nothing'},
    )
    with pytest.raises(errors.ConfigurationError, match='pool: nothing'):
        Daemon(conf, 'inproc://')
