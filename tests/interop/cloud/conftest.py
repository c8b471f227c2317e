"""One cloud of nova's own services, without a scheduler, for all tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support import nova_cloud, servers
from tests.support.nova_cloud import NovaCloud
from tests.support.nova_databases import NovaDatabases
from tests.support.placement_service import placement_service


@pytest.fixture(scope='package')
def cloud(
    mariadb: Any, rabbitmq: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NovaCloud]:
    """A cloud without a scheduler, and without servers."""
    folder = tmp_path_factory.mktemp('cloud')
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(1) as thread:
        # Each waits long for programs of its own.
        placement = thread.submit(
            stack.enter_context, placement_service(mariadb[1])
        )
        databases = NovaDatabases(mariadb[1])
        stack.callback(databases.close)
        made = NovaCloud(
            folder,
            databases,
            servers.new_vhost(*rabbitmq),
            placement.result(),
            stack.enter_context(nova_cloud.network_service()),
            f'[oslo_messaging_rabbit]\n{nova_cloud.QUORUM}',
        )
        stack.callback(made.stop)
        made.start()
        yield made
