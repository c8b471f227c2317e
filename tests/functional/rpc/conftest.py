"""A daemon on each kind of bus, which the tests of a module share."""

import pytest

from tests.support.services import BUSES, shared


@pytest.fixture(scope='module', params=BUSES)
def daemon(request, tmp_path_factory):
    """A daemon of the module; its hosts are those of INVENTORY."""
    url = ''
    if request.param == 'rabbit':
        url = request.getfixturevalue('rabbitmq')[1]
    with shared(tmp_path_factory.mktemp('daemon'), url) as service:
        yield service


@pytest.fixture
def service(daemon):
    """The daemon of the module; no claims are left of earlier tests."""
    yield daemon
    daemon.release_all()
