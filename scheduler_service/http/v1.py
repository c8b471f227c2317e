"""``/v1``: explanations and past decisions, as JSON.

Served by threads of ``http.routes``, which wait for the engine or read the
database.
"""

from __future__ import annotations

import concurrent.futures
import functools
from collections.abc import Callable
from typing import Any
from urllib import parse

import msgspec

from scheduler_service import errors, moments
from scheduler_service import extender_wire as wire
from scheduler_service.http.access import Guard
from scheduler_service.http.message import HttpRequest, Reply
from scheduler_service.http.routes import Route
from scheduler_service.model import Request, document_text, documents
from scheduler_service.model.inventory import Document, dashed
from scheduler_service.policies import Enforcer
from scheduler_service.request_context import RequestContext
from scheduler_service.scheduler import Scheduler

MAX_BYTES = 1024 * 1024
_MAX_LIMIT = 1000
_TIMEOUT_S = 30.0
# Duplicate keys that an error names.
_MOST_NAMED = 20
_TIME = 'a date or time such as 2026-11-01T12:00, or an age such as 12h'


def _limit(text: str) -> int:
    digits = text.isascii() and text.isdecimal()
    if not digits or not 1 <= int(text) <= _MAX_LIMIT:
        raise ValueError(f'expected an integer of 1 to {_MAX_LIMIT}')
    return int(text)


# Parameter of decisions -> parser of its value, and what it selects.
CRITERIA: dict[str, tuple[Callable[[str], Any], str]] = {
    'limit': (_limit, 'at most so many'),
    'since': (moments.past, f'the earliest: {_TIME}'),
    'until': (moments.past, f'the latest: {_TIME}'),
    'outcome': (
        str,
        'chosen, ordered, passed, an error, or refused for all errors',
    ),
    'filter': (str, 'the filter that left no host'),
    'project': (str, 'whose request it was'),
    'host': (str, 'a service host that was chosen'),
    'instance': (dashed, 'the uuid of an instance of the request'),
    'pod': (str, 'a pod, as NAMESPACE/NAME'),
}
_Serve = Callable[[HttpRequest, bytes], Any]


class _ExplainArgs(Document):
    request: dict[str, Any]
    host: str | None = None


class V1:
    """The resources of ``/v1``; each returns a document.

    :param guard: says in which roles admitted clients act
    """

    def __init__(
        self, scheduler: Scheduler, guard: Guard, enforcer: Enforcer
    ) -> None:
        self._scheduler = scheduler
        self._guard = guard
        self._enforcer = enforcer

    def routes(self, max_bytes: int) -> list[Route]:
        """Return the routes.

        :param max_bytes: of a body
        """
        served: list[tuple[str, str, _Serve]] = [
            ('POST', '/v1/explain', self.explain),
            ('GET', '/v1/decisions', self.decisions),
            ('GET', '/v1/decisions/{request_id}', self.decision),
            ('GET', '/v1/openapi.json', self.openapi),
        ]
        return [
            Route(
                path,
                functools.partial(_reply, serve),
                'api',
                min(max_bytes, MAX_BYTES),
                (method,),
            )
            for method, path, serve in served
        ]

    def _authorize(self, request: HttpRequest, rule: str) -> None:
        credentials = self._guard.credentials(request)
        RequestContext(self._enforcer, credentials).authorize(rule, {})

    def explain(self, request: HttpRequest, content: bytes) -> Any:
        """Explain what would be selected, and why; nothing is claimed."""
        self._authorize(request, 'explain')
        _parameters(request)
        try:
            arguments, twice = document_text.parse_json(content)
        except (ValueError, RecursionError) as fault:
            raise errors.InvalidRequest(f'not JSON: {fault}') from None
        if twice:
            raise errors.InvalidRequest('; '.join(twice[:_MOST_NAMED]))
        documents.check_depth(arguments)
        parsed = documents.arguments(arguments, _ExplainArgs)
        if self._scheduler.snapshot() is None:
            raise errors.ServiceBusy('The hosts are not loaded yet')
        future = self._scheduler.explain(
            documents.checked_request(parsed.request), parsed.host
        )
        try:
            return future.result(_TIMEOUT_S)
        except concurrent.futures.TimeoutError:
            raise errors.ServiceBusy(
                f'no result within {_TIMEOUT_S:g} s'
            ) from None

    def decisions(self, request: HttpRequest, content: bytes) -> Any:
        """List the newest decisions, without their reasons."""
        self._authorize(request, 'list_decisions')
        criteria: dict[str, Any] = {'limit': 20}
        for name, text in _parameters(request, *CRITERIA).items():
            documents.check_text(text, name)
            try:
                if not text:
                    raise ValueError('expected a value')
                criteria[name] = CRITERIA[name][0](text)
            except ValueError as fault:
                raise errors.InvalidRequest(
                    f'{name}: {fault}', at=name
                ) from None
        limit = criteria.pop('limit')
        # A row more shows that there are more.
        rows = self._scheduler.decisions(limit + 1, **criteria)
        return {'decisions': rows[:limit], 'more': len(rows) > limit}

    def decision(self, request: HttpRequest, content: bytes) -> Any:
        """Return the decisions on a request."""
        self._authorize(request, 'show_decision')
        _parameters(request)
        last = request.path.rstrip('/').rpartition('/')[2]
        request_id = parse.unquote(last)
        documents.check_text(request_id, 'request_id')
        return {'decisions': self._scheduler.decision(request_id)}

    def openapi(self, request: HttpRequest, content: bytes) -> Any:
        _parameters(request)
        return DESCRIPTION


def _reply(serve: _Serve, request: HttpRequest, content: bytes) -> Reply:
    return Reply(200, wire.encode(serve(request, content)))


def _parameters(request: HttpRequest, *names: str) -> dict[str, str]:
    """Return the parameters of the query, which has no others than these."""
    sent: dict[str, str] = {}
    for name, value in parse.parse_qsl(request.query, keep_blank_values=True):
        if name not in names:
            raise errors.InvalidRequest(
                f'{name}: not a parameter of this resource', at=name
            )
        if name in sent:
            raise errors.InvalidRequest(f'{name}: sent twice', at=name)
        sent[name] = value
    return sent


def _content(schema: Any) -> dict[str, Any]:
    return {'application/json': {'schema': schema}}


def _object(required: str, **properties: Any) -> dict[str, Any]:
    return {
        'type': 'object',
        'required': required.split(),
        'properties': properties,
    }


def _responses(good: str, schema: Any, *codes: int) -> dict[str, Any]:
    """Return the responses of a resource; each has some codes of errors."""
    failure = {
        'description': 'an error, with its facts',
        'content': _content({'$ref': '#/components/schemas/Error'}),
    }
    return {
        '200': {'description': good, 'content': _content(schema)},
        **{str(code): failure for code in (400, 401, 403, 503, *codes)},
    }


_STRING = {'type': 'string'}
_TEXT = {'type': 'string', 'minLength': 1}
_LIMIT = {
    'type': 'integer', 'minimum': 1, 'maximum': _MAX_LIMIT, 'default': 20,
}  # fmt: skip
_DECISION = _object(
    'created_at request_id kind outcome',
    created_at={'type': 'string', 'format': 'date-time'},
    request_id=_STRING,
    kind=_STRING,
    outcome=_STRING,
)
_DECISIONS = _object(
    'decisions',
    decisions={'type': 'array', 'items': _DECISION},
    more={'type': 'boolean', 'description': 'whether limit left out any'},
)
_ERROR = _object(
    'name message code facts',
    name=_STRING,
    message=_STRING,
    code={'type': 'integer'},
    facts={'type': 'object'},
)
(_REQUEST,), _SCHEMAS = msgspec.json.schema_components(
    [Request], ref_template='#/components/schemas/{name}'
)
_EXPLAIN = {
    **_object('request', request=_REQUEST, host={'type': ['string', 'null']}),
    'additionalProperties': False,
}
DESCRIPTION: dict[str, Any] = {
    'openapi': '3.1.0',
    'info': {'title': 'scheduler-service', 'version': '1'},
    'security': [{}, {'bearer': []}],
    'paths': {
        '/v1/explain': {
            'post': {
                'summary': 'What would be selected for a request, and why',
                'requestBody': {
                    'required': True, 'content': _content(_EXPLAIN),
                },
                'responses': _responses(
                    'the filters and how many hosts each rejects',
                    _object('filters'), 404, 413, 500,
                ),
            }
        },
        '/v1/decisions': {
            'get': {
                'summary': 'The newest decisions',
                'parameters': [
                    {'name': name, 'in': 'query', 'description': text,
                     'schema': _LIMIT if name == 'limit' else _TEXT}
                    for name, (_, text) in CRITERIA.items()
                ],
                'responses': _responses('newest first', _DECISIONS),
            }
        },
        '/v1/decisions/{request_id}': {
            'get': {
                'summary': 'The decisions on a request, and why',
                'parameters': [
                    {'name': 'request_id', 'in': 'path', 'required': True,
                     'schema': _TEXT}
                ],
                'responses': _responses('oldest first', _DECISIONS, 404),
            }
        },
    },
    'components': {
        'securitySchemes': {'bearer': {'type': 'http', 'scheme': 'bearer'}},
        'schemas': {**_SCHEMAS, 'Error': _object('error', error=_ERROR)},
    },
}  # fmt: skip
