"""A daemon with pages, and a real browser that looks at them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import browsers
from tests.support.services import Service


@pytest.fixture(scope='module')
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with browsers.daemon(tmp_path_factory.mktemp('pages')) as service:
        yield service


@pytest.fixture(scope='module')
def port(daemon: Service) -> int:
    server = daemon.daemon.http.server
    assert server is not None
    return server.bind_addr[1]


@pytest.fixture(scope='module')
def browser() -> Iterator[Any]:
    with browsers.chromium() as started:
        yield started


@pytest.fixture
def watched(browser: Any, port: int) -> Iterator[browsers.Watched]:
    """Pages of the daemon, of which the browser must not complain."""
    pages = browsers.Watched(browser, f'http://127.0.0.1:{port}')
    yield pages
    pages.close()
    assert pages.complaints == []
