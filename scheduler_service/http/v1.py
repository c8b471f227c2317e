"""``/v1``: explanations, past decisions, hosts and daemons, as JSON or CSV.

Served by threads of ``http.routes``, which wait for the engine or read the
database.
"""

from __future__ import annotations

import concurrent.futures
import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple
from urllib import parse

import msgspec

from scheduler_service import errors, moments, texts
from scheduler_service import extender_wire as wire
from scheduler_service.http.access import Guard
from scheduler_service.http.message import CSV, HttpRequest, Reply
from scheduler_service.http.routes import Route
from scheduler_service.listings import HOST_ORDERS, HostCriteria
from scheduler_service.model import (
    Request,
    client_documents,
    document_text,
    documents,
)
from scheduler_service.model.inventory import dashed
from scheduler_service.model.request import ExplainArguments
from scheduler_service.policies import Enforcer
from scheduler_service.request_context import RequestContext
from scheduler_service.scheduler import Scheduler

MAX_BYTES = 1024 * 1024
_MAX_LIMIT = 1000
_MOST_HOSTS = 1_000_000
_MOST_ID = 2**63 - 1
_TIMEOUT_S = 30.0
# Duplicate keys that an error names.
_MOST_NAMED = 20
_DAY = timedelta(days=1)
_TIME = 'a date or time such as 2026-11-01T12:00, or an age such as 12h'


def _number(most: int) -> Callable[[str], int]:
    """Return a parser of whole numbers from 1 to *most*."""

    def number(text: str) -> int:
        digits = text.isascii() and text.isdecimal() and len(text) < 20
        if not digits or not 1 <= int(text) <= most:
            raise ValueError(f'expected an integer of 1 to {most}')
        return int(text)

    return number


def one_of(*values: str) -> Callable[[str], str]:
    """Return a parser of a text that is one of some."""

    def one(text: str) -> str:
        if text not in values:
            raise ValueError(f'expected one of {", ".join(values)}')
        return text

    return one


Criteria = dict[str, tuple[Callable[[str], Any], str]]
# Parameter of decisions -> parser of its value, and what it selects.
CRITERIA: Criteria = {
    'limit': (_number(_MAX_LIMIT), 'the largest number of decisions'),
    'since': (moments.past, f'the earliest: {_TIME}'),
    'until': (moments.past, f'the latest: {_TIME}'),
    'outcome': (
        str,
        'chosen, ordered, passed, an error, or refused for all errors',
    ),
    'filter': (str, 'the filter that left no host'),
    'project': (str, 'whose request it was'),
    'user': (str, 'the id of its caller'),
    'host': (str, 'a service host that was chosen'),
    'instance': (dashed, 'the uuid of an instance of the request'),
    'pod': (str, 'a pod, as NAMESPACE/NAME'),
    'request': (
        str,
        'an id of the request, of its caller or global; or NAMESPACE/NAME of '
        "pods' scheduling group",
    ),
    'before': (_number(_MOST_ID), 'only those with a smaller id than this'),
}
OFFSET = _number(_MOST_HOSTS), 'how many are left out before'
# As those of ``host list`` and ``capacity``.
HOST_CRITERIA: Criteria = {
    'limit': (_number(_MOST_HOSTS), 'the largest number'),
    'offset': OFFSET,
    'sort': (
        one_of(*HOST_ORDERS, *(f'-{name}' for name in HOST_ORDERS)),
        'the column to sort by, with - before it the largest first; host if '
        'it is absent',
    ),
    'zone': (str, 'hosts of this availability zone'),
    'aggregate': (str, 'hosts of this aggregate, by its id or name'),
    'state': (one_of('up', 'down'), 'hosts that report, or do not'),
    'status': (
        one_of('enabled', 'disabled'),
        'hosts that may be selected, or may not',
    ),
    'name': (str, 'hosts with such a name; * stands for any text'),
}
SHADOW_CRITERIA: Criteria = {
    'since': (moments.past, f'the earliest hour: {_TIME}; 7d without it'),
}
RATES_CRITERIA: Criteria = {
    'since': (moments.past, f'the first minute: {_TIME}; 24h if it is absent'),
    'until': (moments.past, f'the end: {_TIME}'),
}
CAPACITY_CRITERIA: Criteria = {
    'zone': (str, 'only this availability zone'),
    'flavor': (
        client_documents.flavor_of_text,
        'count how many more instances of it fit, such as '
        'vcpus=2,memory_mb=4096,root_gb=20',
    ),
    'by': (
        one_of('zone', 'aggregate', 'host'),
        'with flavor: count by zone, aggregate or host',
    ),
}
_Serve = Callable[[HttpRequest, bytes], Any]


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
            ('GET', '/v1/hosts', self.hosts),
            ('GET', '/v1/hosts/{name}', self.host),
            ('GET', '/v1/capacity', self.capacity),
            ('GET', '/v1/daemons', self.daemons),
            ('GET', '/v1/shadow', self.shadow),
            ('GET', '/v1/rates', self.rates),
            ('GET', '/v1/openapi.json', self.openapi),
        ]
        most = min(max_bytes, MAX_BYTES)
        routes = []
        for method, path, serve in served:
            reply = functools.partial(_reply, serve)
            routes.append(Route(path, reply, 'api', most, (method,)))
            if path in _TABLES:
                reply = functools.partial(_csv, serve, _TABLES[path])
                path += '.csv'
                routes.append(Route(path, reply, 'api', most, (method,)))
        return routes

    def authorize(self, request: HttpRequest, rule: str) -> None:
        """Check a rule of the policy.

        :raises Forbidden: it does not allow this to the client
        """
        credentials = self._guard.credentials(request)
        RequestContext(self._enforcer, credentials).authorize(rule, {})

    def explain(self, request: HttpRequest, content: bytes) -> Any:
        """Explain what would be selected, and why; nothing is claimed."""
        self.authorize(request, 'explain')
        parameters(request)
        try:
            arguments, twice = document_text.parse_json(content)
        except (ValueError, RecursionError) as fault:
            raise errors.InvalidRequest(f'not JSON: {fault}') from None
        if twice:
            raise errors.InvalidRequest('; '.join(twice[:_MOST_NAMED]))
        documents.check_depth(arguments)
        parsed = documents.arguments(arguments, ExplainArguments)
        return self.explained(request, parsed.request, parsed.host)

    def explained(
        self, request: HttpRequest, document: Any, host: str | None
    ) -> Any:
        """Return what would be selected for a document, and why.

        :param request: whose client asks
        :raises InvalidRequest: the document is no request
        :raises HostNotFound: there is no such host
        """
        self.authorize(request, 'explain')
        if self._scheduler.snapshot() is None:
            raise errors.ServiceBusy('The hosts are not loaded yet')
        future = self._scheduler.explain(
            documents.checked_request(document), host
        )
        try:
            return future.result(_TIMEOUT_S)
        except concurrent.futures.TimeoutError:
            raise errors.ServiceBusy(
                f'no result within {_TIMEOUT_S:g} s'
            ) from None

    def decisions(self, request: HttpRequest, content: bytes) -> Any:
        """List the newest decisions, without their reasons."""
        self.authorize(request, 'list_decisions')
        criteria = read_criteria(request, CRITERIA)
        limit = criteria.pop('limit', 20)
        # A row more shows that there are more.
        rows = self._scheduler.decisions(limit + 1, **criteria)
        more = len(rows) > limit
        remarks = [] if rows else self._scheduler.decision_remarks(**criteria)
        return {'decisions': rows[:limit], 'more': more, 'remarks': remarks}

    def decision(self, request: HttpRequest, content: bytes) -> Any:
        """Return the decisions on a request."""
        self.authorize(request, 'show_decision')
        request_id = named(request, 'request_id')
        return {'decisions': self._scheduler.decision(request_id)}

    def hosts(self, request: HttpRequest, content: bytes) -> Any:
        """List hosts, as ``host list`` does."""
        self.authorize(request, 'list_hosts')
        criteria = read_criteria(request, HOST_CRITERIA)
        limit = criteria.pop('limit', _MAX_LIMIT)
        wanted = HostCriteria(
            *map(criteria.get, ('zone', 'aggregate', 'state', 'status',
                                'name', 'sort'))
        )  # fmt: skip
        rows, remarks = self._scheduler.listings.hosts(
            wanted, limit + 1, criteria.get('offset', 0)
        )
        more = len(rows) > limit
        return {'hosts': rows[:limit], 'more': more, 'remarks': remarks}

    def host(self, request: HttpRequest, content: bytes) -> Any:
        """Return the nodes of a host, as ``host show`` does, and more."""
        self.authorize(request, 'show_host')
        return self._scheduler.listings.host(named(request, 'name'))

    def capacity(self, request: HttpRequest, content: bytes) -> Any:
        """Return how full zones are, or what fits, as ``capacity`` does."""
        self.authorize(request, 'list_hosts')
        criteria = read_criteria(request, CAPACITY_CRITERIA)
        zone, flavor = criteria.get('zone'), criteria.get('flavor')
        by, listings = criteria.get('by'), self._scheduler.listings
        if flavor is not None:
            document = {'flavor': flavor, 'availability_zone': zone}
            wanted = documents.checked_request(document)
            rows, remarks = listings.fits(wanted, by or 'zone')
        elif by is not None:
            raise errors.InvalidRequest.at('by', 'only with flavor')
        else:
            rows, remarks = listings.zones(zone)
        return {'capacity': rows, 'remarks': remarks}

    def daemons(self, request: HttpRequest, content: bytes) -> Any:
        """List the daemons, as ``daemon list`` does."""
        self.authorize(request, 'list_daemons')
        parameters(request)
        return {'daemons': self._scheduler.listings.daemons()}

    def shadow(self, request: HttpRequest, content: bytes) -> Any:
        """Return how a shadow's decisions compare, as ``shadow`` does."""
        self.authorize(request, 'list_decisions')
        criteria = read_criteria(request, SHADOW_CRITERIA)
        since = criteria.get('since', timedelta(days=7))
        return self._scheduler.listings.shadow(since)

    def rates(self, request: HttpRequest, content: bytes) -> Any:
        """List how much daemons decided each minute, as ``rates`` does."""
        self.authorize(request, 'list_decisions')
        criteria = read_criteria(request, RATES_CRITERIA)
        since = criteria.get('since', _DAY)
        rows = self._scheduler.listings.rates(since, criteria.get('until'))
        return {'rates': rows, 'remarks': []}

    def openapi(self, request: HttpRequest, content: bytes) -> Any:
        parameters(request)
        return DESCRIPTION


def _reply(serve: _Serve, request: HttpRequest, content: bytes) -> Reply:
    return Reply(200, wire.encode(serve(request, content)))


def _csv(
    serve: _Serve, table: _Table, request: HttpRequest, content: bytes
) -> Reply:
    rows = serve(request, content)[table.key]
    columns = list(rows[0] if rows else table.row['properties'])
    return Reply(200, texts.csv_table(rows, columns).encode(), CSV)


def named(request: HttpRequest, what: str) -> str:
    """Return the last segment of the path; the query has to be empty."""
    parameters(request)
    last = request.path.rstrip('/').rpartition('/')[2]
    name = parse.unquote(last[:-1] if last in ('.=', '..=') else last)
    documents.check_text(name, what)
    return name


def segment(name: str) -> str:
    """Return a name as :func:`named` reads it.

    Clients drop a segment of dots, also where it is percent-encoded.
    """
    return parse.quote(name, safe='') + '=' * (name in ('.', '..'))


def read_criteria(request: HttpRequest, known: Criteria) -> dict[str, Any]:
    """Return the parsed parameters of the query.

    :raises InvalidRequest: one is not known, or cannot be read
    """
    criteria: dict[str, Any] = {}
    for name, text in parameters(request, *known).items():
        documents.check_text(text, name)
        try:
            if not text:
                raise ValueError('expected a value')
            criteria[name] = known[name][0](text)
        except (ValueError, errors.InvalidRequest) as fault:
            raise errors.InvalidRequest.at(name, str(fault)) from None
    return criteria


def parameters(request: HttpRequest, *names: str) -> dict[str, str]:
    """Return the parameters of the query, which has no others than these."""
    sent: dict[str, str] = {}
    for name, value in parse.parse_qsl(request.query, keep_blank_values=True):
        if name not in names:
            text = 'not a parameter of this resource'
            raise errors.InvalidRequest.at(name, text)
        if name in sent:
            raise errors.InvalidRequest.at(name, 'sent twice')
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


def _responses(good: str, content: Any, *codes: int) -> dict[str, Any]:
    """Return the responses of a resource; each has some codes of errors."""
    failure = {
        'description': 'an error, with its facts',
        'content': _content({'$ref': '#/components/schemas/Error'}),
    }
    return {
        '200': {'description': good, 'content': content},
        **{str(code): failure for code in (400, 401, 403, 503, *codes)},
    }


def _get(
    summary: str, content: Any, parameters: list[Any], *codes: int
) -> dict[str, Any]:
    """Return the description of a resource that is read."""
    return {
        'get': {
            'summary': summary,
            'parameters': parameters,
            'responses': _responses(summary, content, *codes),
        }
    }


def _in_path(name: str) -> dict[str, Any]:
    return {'name': name, 'in': 'path', 'required': True, 'schema': _TEXT}


_STRING = {'type': 'string'}
_TEXT = {'type': 'string', 'minLength': 1}
_LIMIT = {
    'type': 'integer', 'minimum': 1, 'maximum': _MAX_LIMIT, 'default': 20,
}  # fmt: skip
_ID = {'type': 'integer', 'minimum': 1, 'maximum': _MOST_ID}
_OFFSET = {'type': 'integer', 'minimum': 1, 'maximum': _MOST_HOSTS}
_DECISION = _object(
    'created_at request_id kind outcome times first_at',
    created_at={'type': 'string', 'format': 'date-time'},
    request_id=_STRING,
    kind=_STRING,
    outcome=_STRING,
    times={'type': 'integer', 'minimum': 1},
    first_at={'type': 'string', 'format': 'date-time'},
)
_MORE = {'type': 'boolean', 'description': 'whether limit left out any'}
_REMARKS = {
    'type': 'array', 'items': _STRING,
    'description': 'names in the query that nothing has, and similar ones',
}  # fmt: skip
_LIST = {'type': 'array', 'items': {'type': 'object'}}


def _row(names: str, **types: Any) -> dict[str, Any]:
    """Return the schema of a row, whose cells may be null.

    :param names: of the columns, in their order
    :param types: of those that are no text
    """
    text = {'type': ['string', 'null']}
    properties = {name: types.get(name, text) for name in names.split()}
    return {'type': 'object', 'properties': properties}


_NAMES = {'type': 'array', 'items': _STRING}
_NUMBER = {'type': ['number', 'null']}
_AMOUNTS = [
    f'{field}{end}'
    for field in ('vcpus', 'memory_mb', 'local_gb')
    for end in ('_used', '', '_capacity')
]
_HOST = _row(
    f'host node zone status state {" ".join(_AMOUNTS)} used instances '
    'aggregates disabled_reason',
    **dict.fromkeys((*_AMOUNTS, 'used', 'instances'), _NUMBER),
    aggregates=_NAMES,
)
# How full a zone is, or with a flavor, how many more instances fit.
_PLACE = _row(
    'zone resource capacity used over out free full ends_first',
    **dict.fromkeys(
        ('capacity', 'used', 'over', 'out', 'free', 'full'), _NUMBER
    ),
    ends_first={'type': ['boolean', 'string']},
)
_DAEMON = _row(
    'name state version configuration differs other_database degraded '
    'degraded_since started last_sign',
    differs={'type': 'boolean'},
    other_database=_NAMES,
    degraded=_NAMES,
)
_VERDICT = _row(
    'verdict cause requests mean_ms slowest_ms request_id',
    **dict.fromkeys(('requests', 'mean_ms', 'slowest_ms'), _NUMBER),
)
_COUNTS = {'type': 'object', 'additionalProperties': {'type': 'integer'}}
_RATE = _row(
    'minute daemon decisions refused p50_ms p99_ms outcomes filters durations',
    **dict.fromkeys(('decisions', 'refused', 'p50_ms', 'p99_ms'), _NUMBER),
    **dict.fromkeys(('outcomes', 'filters', 'durations'), _COUNTS),
)


class _Table(NamedTuple):
    """A resource that is a table.

    :ivar key: of its rows
    :ivar row: schema of a row
    :ivar summary: of the list
    :ivar known: parameters
    """

    key: str
    row: dict[str, Any]
    summary: str
    known: Criteria

    def operations(self, path: str) -> dict[str, Any]:
        """Return the descriptions of the resource, as JSON and as CSV."""
        document = _object(
            self.key, **{self.key: {'type': 'array', 'items': self.row}},
            **({'more': _MORE} if 'limit' in self.known else {}),
            **({'remarks': _REMARKS} if self.known else {}),
        )  # fmt: skip
        limit = {**_LIMIT, 'maximum': _MOST_HOSTS, 'default': _MAX_LIMIT}
        if self.row is _DECISION:
            limit = _LIMIT
        parameters = [
            {'name': name, 'in': 'query', 'description': text,
             'schema': {'limit': limit, 'before': _ID,
                        'offset': _OFFSET}.get(name, _TEXT)}
            for name, (_, text) in self.known.items()
        ]  # fmt: skip
        csv = {'text/csv': {'schema': _STRING}}
        return {
            path: _get(self.summary, _content(document), parameters),
            f'{path}.csv': _get(self.summary, csv, parameters),
        }


_TABLES = {
    '/v1/decisions': _Table(
        'decisions', _DECISION, 'The newest decisions, newest first', CRITERIA
    ),
    '/v1/hosts': _Table(
        'hosts', _HOST, 'Hosts by their names', HOST_CRITERIA
    ),
    '/v1/capacity': _Table(
        'capacity', _PLACE, 'How full zones are, or what fits',
        CAPACITY_CRITERIA,
    ),
    '/v1/daemons': _Table(
        'daemons', _DAEMON, 'Daemons that share the store', {}
    ),
    '/v1/shadow': _Table(
        'shadow', _VERDICT, 'How decisions of a shadow compare',
        SHADOW_CRITERIA,
    ),
    '/v1/rates': _Table(
        'rates', _RATE, 'How much each daemon decided in each minute',
        RATES_CRITERIA,
    ),
}  # fmt: skip
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
                    _content(_object('filters')), 404, 413, 500,
                ),
            }
        },
        **{
            name: described
            for path, table in _TABLES.items()
            for name, described in table.operations(path).items()
        },
        '/v1/decisions/{request_id}': _get(
            'The decisions on a request, and why',
            _content(_object('decisions', decisions=_LIST)),
            [_in_path('request_id')], 404,
        ),
        '/v1/hosts/{name}': _get(
            'A host: its nodes, what is left, its claims',
            _content(_object('nodes resources claims')),
            [_in_path('name')], 404,
        ),
    },
    'components': {
        'securitySchemes': {'bearer': {'type': 'http', 'scheme': 'bearer'}},
        'schemas': {**_SCHEMAS, 'Error': _object('error', error=_ERROR)},
    },
}  # fmt: skip
