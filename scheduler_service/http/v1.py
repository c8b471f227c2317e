"""``/v1``: why things were decided as they were, as JSON."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from typing import Any

import falcon
import msgspec

from scheduler_service import errors
from scheduler_service.engine.scheduler import Scheduler
from scheduler_service.extender import wire
from scheduler_service.model import Request, documents
from scheduler_service.model.inventory import Document

MOST_BYTES = 1024 * 1024
_MOST = 1000
_WAIT_S = 30.0
Body = Callable[[Any], bytes]


class _Explain(Document):
    request: dict[str, Any]
    host: str | None = None


class Explain:
    """What would happen to a request, and what each filter makes of it."""

    def __init__(self, scheduler: Scheduler, body: Body) -> None:
        self._scheduler = scheduler
        self._body = body

    def on_post(self, req: Any, resp: Any) -> None:
        """Explain a request; nothing is claimed."""
        try:
            given = msgspec.json.decode(self._body(req))
        except (
            msgspec.DecodeError,
            UnicodeDecodeError,
            RecursionError,
        ) as fault:
            raise errors.InvalidRequest(f'not JSON: {fault}') from None
        documents.check_depth(given)
        documents.check_text(given)
        asked = documents.arguments(given, _Explain)
        future = self._scheduler.explain(
            documents.request(asked.request), asked.host
        )
        try:
            found = future.result(_WAIT_S)
        except concurrent.futures.TimeoutError:
            raise errors.ServiceBusy(
                f'no answer within {_WAIT_S:g} s'
            ) from None
        resp.content_type = falcon.MEDIA_JSON
        resp.data = wire.encode(found)


class Decisions:
    """The newest decisions, without their reasons."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def on_get(self, req: Any, resp: Any) -> None:
        """List them, the newest first."""
        given = req.params.get('limit', '20')
        if not isinstance(given, str) or not (
            given.isascii() and given.isdigit() and len(given) < 6
            and 1 <= int(given) <= _MOST
        ):  # fmt: skip
            raise errors.InvalidRequest(
                f'limit: expected 1 to {_MOST}', at='limit'
            )
        resp.content_type = falcon.MEDIA_JSON
        resp.data = wire.encode(
            {'decisions': self._scheduler.decisions(int(given))}
        )


class Decision:
    """What was decided under a request id, with the reasons."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def on_get(self, req: Any, resp: Any, request_id: str) -> None:
        """Show it."""
        documents.check_text(request_id, 'request_id')
        resp.content_type = falcon.MEDIA_JSON
        resp.data = wire.encode(
            {'decisions': self._scheduler.decision(request_id)}
        )


class OpenApi:
    """The description of all of this."""

    def on_get(self, req: Any, resp: Any) -> None:
        """Write it."""
        resp.content_type = falcon.MEDIA_JSON
        resp.data = wire.encode(DESCRIPTION)


def add(app: Any, scheduler: Scheduler, body: Body) -> None:
    """Add the routes."""
    app.add_route('/v1/explain', Explain(scheduler, body))
    app.add_route('/v1/decisions', Decisions(scheduler))
    app.add_route('/v1/decisions/{request_id}', Decision(scheduler))
    app.add_route('/v1/openapi.json', OpenApi())


def _answers(good: str, schema: Any, *codes: int) -> dict[str, Any]:
    said = {
        str(code): {
            'description': 'refused, and why',
            'content': {
                'application/json': {
                    'schema': {'$ref': '#/components/schemas/Error'}
                }
            },
        }
        for code in codes
    }
    content = {'application/json': {'schema': schema}}
    return {'200': {'description': good, 'content': content}, **said}


_DECISIONS = {
    'type': 'object',
    'required': ['decisions'],
    'properties': {
        'decisions': {
            'type': 'array',
            'items': {
                'type': 'object',
                'required': ['created_at', 'request_id', 'kind', 'outcome'],
                'properties': {
                    'created_at': {'type': 'number'},
                    'request_id': {'type': 'string'},
                    'kind': {'type': 'string'},
                    'outcome': {'type': 'string'},
                },
            },
        }
    },
}
(_REQUEST,), _SCHEMAS = msgspec.json.schema_components(
    [Request], ref_template='#/components/schemas/{name}'
)
DESCRIPTION: dict[str, Any] = {
    'openapi': '3.1.0',
    'info': {'title': 'scheduler-service', 'version': '1'},
    'security': [{}, {'bearer': []}],
    'paths': {
        '/v1/explain': {
            'post': {
                'summary': 'What would happen to a request, and why',
                'requestBody': {
                    'required': True,
                    'content': {
                        'application/json': {
                            'schema': {
                                'type': 'object',
                                'required': ['request'],
                                'additionalProperties': False,
                                'properties': {
                                    'request': _REQUEST,
                                    'host': {
                                        'type': ['string', 'null'],
                                    },
                                },
                            }
                        }
                    },
                },
                'responses': _answers(
                    'the filters and what they make of the hosts',
                    {'type': 'object', 'required': ['filters']},
                    400, 401, 404, 413, 500, 503,
                ),
            }
        },
        '/v1/decisions': {
            'get': {
                'summary': 'The newest decisions',
                'parameters': [
                    {
                        'name': 'limit', 'in': 'query',
                        'schema': {
                            'type': 'integer', 'minimum': 1,
                            'maximum': _MOST, 'default': 20,
                        },
                    }
                ],
                'responses': _answers(
                    'newest first', _DECISIONS, 400, 401, 503
                ),
            }
        },
        '/v1/decisions/{request_id}': {
            'get': {
                'summary': 'What was decided under a request id, and why',
                'parameters': [
                    {
                        'name': 'request_id', 'in': 'path', 'required': True,
                        'schema': {'type': 'string', 'minLength': 1},
                    }
                ],
                'responses': _answers(
                    'oldest first', _DECISIONS, 400, 401, 404, 503
                ),
            }
        },
    },
    'components': {
        'securitySchemes': {'bearer': {'type': 'http', 'scheme': 'bearer'}},
        'schemas': {
            **_SCHEMAS,
            'Error': {
                'type': 'object',
                'required': ['error'],
                'properties': {
                    'error': {
                        'type': 'object',
                        'required': ['name', 'message', 'code', 'facts'],
                        'properties': {
                            'name': {'type': 'string'},
                            'message': {'type': 'string'},
                            'code': {'type': 'integer'},
                            'facts': {'type': 'object'},
                        },
                    }
                },
            }
        },
    },
}  # fmt: skip
