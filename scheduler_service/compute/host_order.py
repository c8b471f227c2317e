"""External scheduler calls: a service sends hosts, and gets their order.

Compute, share and block storage services call, each on a path of its own: a
fork of the compute service for example sends the hosts that passed its own
filters, with their weights. The hosts are filtered and weighed here once
more, by their stored state. Nothing is claimed. The answer is exactly
``{"hosts": [...]}``. Status 400 says that the request is not for this
scheduler: the caller then keeps its own order.

:class:`HostOrderer` owns copies of the newest host table; any thread may call
it.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from scheduler_service import errors
from scheduler_service import extender_wire as wire
from scheduler_service.bus.wire import name_caller
from scheduler_service.columns import HostTable
from scheduler_service.columns.table import Snapshot
from scheduler_service.columns.table_copies import TableCopier
from scheduler_service.compute.endpoint import RebuildCheck
from scheduler_service.compute.translation import text, translate
from scheduler_service.http import access
from scheduler_service.http.message import HttpRequest, Reply
from scheduler_service.http.routes import Listener, Route, Router
from scheduler_service.model import Request, documents
from scheduler_service.pipeline import HostPipeline
from scheduler_service.store.records import decisions

KIND = 'external'
_Translator = Callable[[dict[str, Any], dict[str, Any]], Request]
# Best hosts that a decision records.
_RECORDED = 10
_MAX_HOSTS = 100_000


class SentHost(msgspec.Struct):
    """A host of a call.

    :ivar hypervisor_hostname: None: any node of the service host
    """

    host: str
    hypervisor_hostname: str | None = None


class ExternalOptions(NamedTuple):
    """How hosts are ordered.

    :ivar multiplier: of the sent weights
    :ivar keep_unknown: hosts that are not in the store come last; else they
        are left out
    """

    multiplier: float = 1.0
    keep_unknown: bool = True


class HostOrderer:
    """Filters and orders hosts that are sent.

    :param snapshot: gives the newest snapshot, None before the first
    :param record: stores a decision
    :ivar rebuilds: says whether a request is the rebuild that it says it is
    """

    def __init__(
        self,
        pipeline: HostPipeline,
        snapshot: Callable[[], Snapshot | None],
        record: Callable[[decisions.Decision], None],
        options: ExternalOptions,
        rebuilds: RebuildCheck,
    ) -> None:
        self.rebuilds = rebuilds
        self._pipeline = pipeline
        self._snapshot = snapshot
        self._record = record
        self._options = options
        self._copier = TableCopier()

    def use(self, pipeline: HostPipeline, options: ExternalOptions) -> None:
        """Order by another pipeline, from the next call on."""
        with self._copier.lock:
            self._pipeline = pipeline
            self._options = options
            self._copier.forget()

    def order(
        self,
        request: Request,
        hosts: Sequence[SentHost],
        weights: Mapping[str, float],
    ) -> list[str]:
        """Return the names of the hosts that pass, best first.

        Only sent names, each once; hosts of equal weight keep the order in
        which they were sent.

        :param weights: of hosts by name; a host without gets the least
        :raises NoValidHost: a request filter refuses the request
        :raises FilterFault: a filter or weigher failed
        """
        snapshot = self._snapshot()
        unknown = [sent.host for sent in hosts]
        funnel: list[dict[str, Any]] = []
        ordered: list[str] = []
        with self._copier.lock:
            keep_unknown = self._options.keep_unknown
            if snapshot is not None:
                table = self._copier.copy(snapshot.hosts).table
                stored, rows, unknown = _split(table, hosts)
                request = request.offered_form(table.resources)
                passing = self._filter(table, request, rows, funnel)
                names = [stored[at] for at in passing.tolist()]
                ordered = self._sort(
                    table, request, names, rows[passing], weights
                )
        if keep_unknown:
            ordered += unknown
        names = list(dict.fromkeys(ordered))
        outcome = 'ordered' if names else 'NoValidHost'
        reasons = {
            'project_id': request.project_id,
            **decisions.asked(KIND, request),
            'hosts': len(hosts),
            'unknown': len(unknown),
            'funnel': funnel,
            'best': names[:_RECORDED],
        }
        self._record(
            decisions.Decision(request.request_id, KIND, outcome, reasons)
        )
        return names

    def _filter(
        self,
        table: HostTable,
        request: Request,
        rows: Any,
        funnel: list[dict[str, Any]],
    ) -> Any:
        """Return the places of rows that pass; *funnel* gets the counts."""
        passing = np.ones(len(rows), np.bool_)
        for filter_, mask in self._pipeline.filter_results(table, request):
            start = int(np.count_nonzero(passing))
            passing &= mask[rows]
            end = int(np.count_nonzero(passing))
            if end < start:
                funnel.append(
                    {'filter': filter_.name, 'start': start, 'end': end}
                )
        return np.flatnonzero(passing)

    def _sort(
        self,
        table: HostTable,
        request: Request,
        names: Sequence[str],
        rows: Any,
        weights: Mapping[str, float],
    ) -> list[str]:
        """Return names by the sum of our weights and the sent ones."""
        ranking = self._pipeline.weigh_hosts(
            table, table.mask_of(rows), request
        )
        if ranking is None:
            return []
        totals = np.zeros(len(table))
        totals[ranking.rows] = ranking.totals
        sent = _normalised([weights.get(name) for name in names])
        sums = totals[rows] + self._options.multiplier * sent
        order = np.argsort(-sums, kind='stable')
        return [names[at] for at in order.tolist()]


def _split(
    table: HostTable, hosts: Sequence[SentHost]
) -> tuple[list[str], Any, list[str]]:
    """Return names and rows of stored hosts, and the names of the others."""
    rows: Mapping[tuple[str, str], int] = table.topology.memoize(
        'rows by host and node',
        lambda: {
            (table.host_at(row), table.node_at(row)): row
            for row in range(len(table))
        },
    )
    stored, found, unknown = [], [], []
    for sent in hosts:
        name, node = sent.host, sent.hypervisor_hostname
        row = rows.get((name, name if node is None else node))
        if row is None and node is None:
            row = next(iter(table.rows_of_host(name).tolist()), None)
        if row is None:
            unknown.append(name)
        else:
            stored.append(name)
            found.append(row)
    return stored, np.array(found, np.intp), unknown


def _normalised(weights: Sequence[float | None]) -> Any:
    """Scale weights to 0 to 1, as for a weigher."""
    given = [weight for weight in weights if weight is not None]
    low, high = min(given, default=0.0), max(given, default=0.0)
    if not high > low:
        return np.zeros(len(weights))
    values = np.array(
        [low if weight is None else weight for weight in weights]
    )
    # Half of each, since the difference may be too large for a float.
    return (values / 2 - low / 2) / (high / 2 - low / 2)


class _Args(msgspec.Struct):
    spec: dict[str, Any]
    hosts: list[SentHost]
    weights: dict[str, float] = {}
    context: dict[str, Any] = {}


_read = msgspec.json.Decoder(_Args).decode


def routes(orderer: HostOrderer, max_bytes: int) -> list[Route]:
    """Return the routes of the call."""
    return [
        Route(
            path,
            functools.partial(_serve, orderer, translate),
            'evaluate',
            max_bytes,
            ('POST',),
            needs_hosts=True,
        )
        for path, translate in _TRANSLATORS.items()
    ]


def listener(
    orderer: HostOrderer,
    conf: Any,
    health: Any,
    are_hosts_loaded: Callable[[], bool],
) -> Listener:
    """Return the listener for these calls alone.

    :raises ConfigurationError: other machines could connect without a token
    """
    group = conf.compute
    host = str(group.external_scheduler_bind_host)
    # Other machines call by any name; pages reach loopback by their own.
    hosts = conf.http.allowed_hosts if access.is_loopback(host) else None
    guard = access.Guard(None, False, [], hosts=hosts)
    if group.external_scheduler_authentication:
        option = '[compute] external_scheduler_bind_host'
        guard = access.guard_of(conf.http, bind_host=(option, host))
    unserved = Route('other', _not_found, 'evaluate', 0)
    router = Router(
        routes(orderer, conf.http.max_body_bytes),
        unserved,
        guard,
        health,
        are_hosts_loaded,
        {'evaluate': 1},
    )
    return Listener(
        router,
        (host, group.external_scheduler_bind_port),
        '[compute] external_scheduler_bind_port',
    )


def _not_found(request: HttpRequest, body: bytes) -> Reply:
    raise errors.NotFound(f'{request.path} is not served here')


def _serve(
    orderer: HostOrderer,
    read: _Translator,
    request: HttpRequest,
    body: bytes,
) -> Reply:
    """Order the hosts of a call.

    :param read: makes a request of ours from a spec and a context
    """
    try:
        args = _read(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise errors.InvalidRequest(f'cannot be read: {fault}') from None
    if len(args.hosts) > _MAX_HOSTS:
        raise errors.InvalidRequest(f'hosts: at most {_MAX_HOSTS}')
    name_caller(args.context)
    placed = read(args.spec, args.context)
    orderer.rebuilds.verify(placed, args.context)
    try:
        names = orderer.order(placed, args.hosts, args.weights)
    except errors.NoValidHost:
        names = []
    return Reply(200, wire.encode({'hosts': names}))


def _instance_request(
    spec: dict[str, Any], context: dict[str, Any]
) -> Request:
    """Return a request of the compute service, always for one instance.

    The instance has a new uuid where the request has none.
    """
    data = spec.get('nova_object.data')
    given = data.get('instance_uuid') if isinstance(data, dict) else None
    instance = given if isinstance(given, str) else str(uuid.uuid4())
    request = translate(spec, [instance], context).request
    request.refuse_groups()
    return request


class _Properties(msgspec.Struct):
    """Properties of the share or volume to create; the size in GB."""

    size: int | None = None
    project_id: str | None = None
    user_id: str | None = None
    availability_zone: str | None = None


class _Spec(msgspec.Struct):
    """A request of the share service or of the block storage service."""

    share_properties: _Properties | None = None
    volume_properties: _Properties | None = None
    availability_zone: str | None = None


def _storage_request(
    name: str, spec: Any, context: Mapping[str, Any]
) -> Request:
    """Return a request for a share or a volume.

    These services send plain dicts in place of objects. Only the size and the
    availability zone are read: their own filters apply all else.

    :param name: of the field with the properties
    """
    parsed = documents.arguments(spec, _Spec)
    properties: _Properties | None = getattr(parsed, name)
    if properties is None:
        raise errors.InvalidRequest(f'spec.{name}: required, but absent')
    size = properties.size or 0
    return documents.request(
        {
            'request_id': text(context, 'request_id'),
            'project_id': properties.project_id or text(context, 'project_id'),
            'user_id': properties.user_id or text(context, 'user_id'),
            'flavor': {'root_gb': size},
            'amounts': {'DISK_GB': size} if size else {},
            'availability_zone': properties.availability_zone
            or parsed.availability_zone,
        }
    )


_TRANSLATORS: dict[str, _Translator] = {
    '/scheduler/nova/external': _instance_request,
    '/scheduler/manila/external': functools.partial(
        _storage_request, 'share_properties'
    ),
    '/scheduler/cinder/external': functools.partial(
        _storage_request, 'volume_properties'
    ),
}
PATHS = tuple(_TRANSLATORS)
