"""Daemons that serve HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.http_client import HttpClient
from tests.support.servers import free_port


@pytest.fixture
def serve_http(make_service):
    made = []

    def make(**more: Any) -> HttpClient:
        port = free_port()
        service = make_service(http__bind_port=port, **more)
        made.append(HttpClient(service, port))
        return made[-1]

    yield make
    for http in made:
        http.close()
