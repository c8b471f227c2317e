"""Requests made from noise and from the OpenAPI description."""

import uuid
from typing import Any

import pytest

from tests.support import fuzzing
from tests.support.documents import CONTEXT, SMALL
from tests.support.engines import store_all

pytestmark = pytest.mark.slow


def test_server_survives_when_requests_are_malformed(serve_http):
    """The small form of benchmarks.fuzz, over real sockets."""
    http = serve_http(http__request_timeout=2.0)
    told = fuzzing.http_face(http.port, 150, seed=5)
    assert told['server_errors'] == []
    assert http.send('GET', '/healthcheck') == (200, 'OK')


def test_replies_match_openapi_when_made_from_it(serve_http):
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, settings
    from schemathesis.specs.openapi.checks import (
        positive_data_acceptance,
    )

    http = serve_http()
    http.service.client.select_destinations(
        CONTEXT, {'flavor': SMALL, 'request_id': f'req-{uuid.uuid4()}'}
    )
    store_all(http.service.daemon.scheduler)
    base = f'http://127.0.0.1:{http.port}'
    schema = schemathesis.openapi.from_url(f'{base}/v1/openapi.json')

    quietly = settings(
        max_examples=10,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    for result in schema.get_all_operations():

        @quietly
        @given(case=result.ok().as_strategy())
        def check(case: Any) -> None:
            # A schema cannot say that text has no NUL, or that uuids
            # differ: those are refused too.
            case.call_and_validate(
                base_url=base, excluded_checks=[positive_data_acceptance]
            )

        check()
