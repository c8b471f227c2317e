"""A daemon with HTTP, which the tests of a module share."""

import pytest

from tests.support.http_client import HttpClient
from tests.support.servers import free_port
from tests.support.services import shared


@pytest.fixture(scope='module')
def http(tmp_path_factory):
    """A client of a daemon whose hosts are those of INVENTORY."""
    port = free_port()
    folder = tmp_path_factory.mktemp('http')
    with shared(folder, http__bind_port=port) as service:
        client = HttpClient(service, port)
        yield client
        client.close()
