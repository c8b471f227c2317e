"""What the client makes of answers that a placement service seldom gives.

The adapter is a stand-in: a service of these versions cannot be had.
"""

from typing import Any

import pytest

from scheduler_service import errors
from scheduler_service.compute.placement.client import PlacementClient


class Adapter:
    """Answers each call by path."""

    retriable_status_codes = None
    connect_retries = status_code_retries = 0
    connect_retry_delay = status_code_retry_delay = None

    def __init__(self, answers: dict[str, tuple[int, Any]]) -> None:
        self._answers = answers

    def request(self, path: str, method: str, **how: Any) -> Any:
        """Return the answer of a path."""
        status, body = self._answers[path]
        return type(
            'Answer',
            (),
            {
                'status_code': status,
                'json': lambda self: body,
                'headers': {'OpenStack-API-Version': 'placement 1.36'},
            },
        )()


def versions(newest: str) -> tuple[int, Any]:
    """Return the answer of the root."""
    return 200, {'versions': [{'id': 'v1.0', 'max_version': newest}]}


@pytest.mark.parametrize('newest', ['1.9', '1.35', '0.99'])
def test_a_service_that_is_too_old_is_an_error_that_says_so(newest):
    client = PlacementClient(Adapter({'/': versions(newest)}))
    with pytest.raises(errors.PlacementUnavailable, match=r'1\.36 is needed'):
        client.check()
    for newer in ('1.36', '1.100', '2.0'):
        PlacementClient(Adapter({'/': versions(newer)})).check()


def test_a_version_that_is_refused_is_explained():
    client = PlacementClient(
        Adapter(
            {
                '/': versions('1.30'),
                '/resource_providers': (406, {}),
            }
        )
    )
    with pytest.raises(errors.PlacementUnavailable, match='too old'):
        client.provider_uuids()


def test_an_answer_that_is_not_expected_is_an_error():
    client = PlacementClient(Adapter({'/allocations': (500, {})}))
    with pytest.raises(errors.PlacementUnavailable, match='500'):
        client.post_allocations({})


def test_a_refusal_without_a_reason_is_a_refusal():
    client = PlacementClient(Adapter({'/allocations': (409, 'what?')}))
    answer = client.post_allocations({})
    assert (answer.done, answer.code, answer.detail) == (False, '', '')


@pytest.mark.parametrize(
    'text', [b'', b'<html>', b'{"resource_providers": 1}']
)
def test_a_long_answer_that_cannot_be_read_is_an_error(text):
    class Odd(Adapter):
        def request(self, path: str, method: str, **how: Any) -> Any:
            answer = super().request('/', 'GET')
            answer.content = text
            return answer

    with pytest.raises(errors.PlacementUnavailable, match='cannot be read'):
        PlacementClient(Odd({'/': (200, {})})).provider_uuids()
