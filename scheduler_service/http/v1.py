"""``/v1``: explanations and past decisions, as JSON.

Served by threads of ``http.routes``, which wait for the engine or read the
database.
"""

from __future__ import annotations

import concurrent.futures
from typing import Any

import falcon
import msgspec

from scheduler_service import errors
from scheduler_service import extender_wire as wire
from scheduler_service.http import access
from scheduler_service.model import Request, document_text, documents
from scheduler_service.model.inventory import Document
from scheduler_service.policies import Enforcer
from scheduler_service.request_context import RequestContext
from scheduler_service.scheduler import Scheduler

MAX_BYTES = 1024 * 1024
_MAX_LIMIT = 1000
_TIMEOUT_S = 30.0
# Duplicate keys that an error names.
_MOST_NAMED = 20


class _ExplainArgs(Document):
    request: dict[str, Any]
    host: str | None = None


class _Checked:
    """A resource with a rule of the policy."""

    def __init__(self, scheduler: Scheduler, enforcer: Enforcer) -> None:
        self._scheduler = scheduler
        self._enforcer = enforcer

    def authorize(self, req: Any, rule: str) -> None:
        """Check a rule for the client of a request.

        :raises Forbidden: the rule does not allow the request
        """
        caller = RequestContext(self._enforcer, req.env[access.CREDENTIALS])
        caller.authorize(rule, {})


class Explain(_Checked):
    """``/v1/explain``: what would be selected, and the filters' results."""

    def on_post(self, req: Any, resp: Any) -> None:
        """Explain a request; nothing is claimed."""
        self.authorize(req, 'explain')
        try:
            arguments, twice = document_text.parse_json(
                req.bounded_stream.read()
            )
        except (ValueError, RecursionError) as fault:
            raise errors.InvalidRequest(f'not JSON: {fault}') from None
        if twice:
            raise errors.InvalidRequest('; '.join(twice[:_MOST_NAMED]))
        documents.check_depth(arguments)
        parsed = documents.arguments(arguments, _ExplainArgs)
        if self._scheduler.snapshot() is None:
            raise errors.ServiceBusy('The hosts are not loaded yet')
        future = self._scheduler.explain(
            documents.request(parsed.request), parsed.host
        )
        try:
            result = future.result(_TIMEOUT_S)
        except concurrent.futures.TimeoutError:
            raise errors.ServiceBusy(
                f'no result within {_TIMEOUT_S:g} s'
            ) from None
        resp.content_type = falcon.MEDIA_JSON
        resp.data = wire.encode(result)


class Decisions(_Checked):
    """``/v1/decisions``: the newest decisions, without their reasons."""

    def on_get(self, req: Any, resp: Any) -> None:
        """List decisions, the newest first."""
        self.authorize(req, 'list_decisions')
        limit = req.params.get('limit', '20')
        if not isinstance(limit, str) or not (
            limit.isascii() and limit.isdigit() and len(limit) < 6
            and 1 <= int(limit) <= _MAX_LIMIT
        ):  # fmt: skip
            raise errors.InvalidRequest(
                f'limit: expected an integer of 1 to {_MAX_LIMIT}', at='limit'
            )
        resp.content_type = falcon.MEDIA_JSON
        resp.data = wire.encode(
            {'decisions': self._scheduler.decisions(int(limit))}
        )


class DecisionResource(_Checked):
    """``/v1/decisions/REQUEST_ID``: the decisions on a request."""

    def on_get(self, req: Any, resp: Any, request_id: str) -> None:
        """Return the decisions on a request."""
        self.authorize(req, 'show_decision')
        documents.check_text(request_id, 'request_id')
        resp.content_type = falcon.MEDIA_JSON
        resp.data = wire.encode(
            {'decisions': self._scheduler.decision(request_id)}
        )


class OpenApi:
    """``/v1/openapi.json``: the description of ``/v1``."""

    def on_get(self, req: Any, resp: Any) -> None:
        """Return the description."""
        resp.content_type = falcon.MEDIA_JSON
        resp.data = wire.encode(DESCRIPTION)


def add(app: Any, scheduler: Scheduler, enforcer: Enforcer) -> None:
    """Add the routes."""
    decision = DecisionResource(scheduler, enforcer)
    app.add_route('/v1/explain', Explain(scheduler, enforcer))
    app.add_route('/v1/decisions', Decisions(scheduler, enforcer))
    app.add_route('/v1/decisions/{request_id}', decision)
    app.add_route('/v1/openapi.json', OpenApi())


def _responses(good: str, schema: Any, *codes: int) -> dict[str, Any]:
    failures = {
        str(code): {
            'description': 'an error, with its facts',
            'content': {
                'application/json': {
                    'schema': {'$ref': '#/components/schemas/Error'}
                }
            },
        }
        for code in codes
    }
    content = {'application/json': {'schema': schema}}
    return {'200': {'description': good, 'content': content}, **failures}


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
                'summary': 'What would be selected for a request, and why',
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
                'responses': _responses(
                    'the filters and how many hosts each rejects',
                    {'type': 'object', 'required': ['filters']},
                    400, 401, 403, 404, 413, 500, 503,
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
                            'maximum': _MAX_LIMIT, 'default': 20,
                        },
                    }
                ],
                'responses': _responses(
                    'newest first', _DECISIONS, 400, 401, 403, 503
                ),
            }
        },
        '/v1/decisions/{request_id}': {
            'get': {
                'summary': 'The decisions on a request, and why',
                'parameters': [
                    {
                        'name': 'request_id', 'in': 'path', 'required': True,
                        'schema': {'type': 'string', 'minLength': 1},
                    }
                ],
                'responses': _responses(
                    'oldest first', _DECISIONS, 400, 401, 403, 404, 503
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
