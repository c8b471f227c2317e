"""Calls of the placement service's API.

A :class:`PlacementClient` may be used by any thread; connections are kept.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import msgspec
from keystoneauth1 import exceptions

from scheduler_service import errors
from scheduler_service.model import STANDARD_FIELDS, UnitLimits
from scheduler_service.model.request import HOST_CLASSES

T = TypeVar('T')
LOG = logging.getLogger(__name__)
# Mappings and the generation of consumers are in it.
MICROVERSION = '1.36'
SERVICE_TYPE = 'placement'
# Classes that are claimed from a host's own provider, without a query.
PLAIN = HOST_CLASSES
# Only answers with this header are the placement service's own: a proxy or a
# login page does not have it.
_VERSION = 'OpenStack-API-Version'
_DONE = {'GET': 200, 'PUT': 204, 'POST': 204}
# The service's default for the greatest amount of an allocation.
_UNBOUNDED = 2**31 - 1
# The first pause before a writing call is repeated, in seconds, where no
# option sets it; it doubles.
_PAUSE_S = 0.5
# Calls for one provider that are made at a time.
_READERS = 8
_BAD = 400
_MISFIT = 409
_GONE = 404
_TOO_OLD = 406
_BUSY = 503
CONCURRENT_UPDATE = 'placement.concurrent_update'


class Answer(NamedTuple):
    """The answer to a writing call.

    :ivar code: of the error, as the service names it; empty: none
    :ivar detail: of the error
    :ivar sure: whether this is the answer to the first try; if not, the
        service may still carry out an earlier try that got no answer
    """

    status: int
    code: str = ''
    detail: str = ''
    sure: bool = True

    @property
    def done(self) -> bool:
        """Whether the service did what the call says."""
        return self.status in _DONE.values()

    @property
    def concurrent(self) -> bool:
        """Whether another client changed the resource at the same time."""
        return self.status == _MISFIT and self.code == CONCURRENT_UPDATE


class Provider(NamedTuple):
    """Capacity and use of a root provider and the providers below it.

    Of the classes in :data:`PLAIN`, only the root provider counts.

    :ivar capacity: resource class -> (total - reserved) x ratio
    :ivar used: resource class -> amount
    :ivar units: standard class -> bounds of single allocations that differ
        from the defaults; None: not read
    :ivar child_traits: of the providers below
    """

    uuid: str
    capacity: dict[str, int]
    used: dict[str, int]
    traits: list[str]
    units: dict[str, UnitLimits] | None = None
    child_traits: tuple[str, ...] = ()

    def add(self, name: str, capacity: int, used: int) -> None:
        """Add a resource class of a provider below."""
        if name not in PLAIN:
            self.capacity[name] = self.capacity.get(name, 0) + capacity
            self.used[name] = self.used.get(name, 0) + used


class _Amounts(msgspec.Struct):
    capacity: int
    used: int


class _Summary(msgspec.Struct):
    root_provider_uuid: str
    resources: dict[str, _Amounts]
    traits: list[str]


class _Candidates(msgspec.Struct):
    provider_summaries: dict[str, _Summary]


class _Root(msgspec.Struct):
    uuid: str
    root_provider_uuid: str


class Roots(msgspec.Struct):
    """The uuids of providers and of their roots."""

    resource_providers: list[_Root]


class PlacementClient:
    """A client of one placement service.

    Its methods raise PlacementUnavailable where the service does not answer,
    or with something that cannot be read; what was to be written may then be
    written or not.

    :param adapter: of keystoneauth1, with authentication and endpoint
    :ivar under_way: returns the consumers that this daemon claims for just now
    """

    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter
        self._readers = ThreadPoolExecutor(_READERS, 'placement-reads')
        self.under_way: Callable[[], Collection[str]] = lambda: ()

    def check(self) -> None:
        """Check that the service answers, and is new enough.

        :raises PlacementUnavailable: it does not, or is not
        """
        root = self._call('GET', '/', microversion=None).json()
        versions = root.get('versions') or [{}]
        newest = str(versions[0].get('max_version') or '0.0')
        if _number(newest) < _number(MICROVERSION):
            raise errors.PlacementUnavailable(
                'The placement service is too old: it has microversion '
                f'{newest}, and {MICROVERSION} is needed'
            )

    def provider_uuids(self) -> set[str]:
        """Return the uuids of all root providers."""
        roots = self.read('/resource_providers', Roots)
        return {
            provider.uuid
            for provider in roots.resource_providers
            if provider.root_provider_uuid == provider.uuid
        }

    def providers(self, name: str = 'VCPU') -> dict[str, Provider]:
        """Return by uuid all root providers with free capacity of a class.

        One call returns them all, and leaves out full providers.
        """
        path = f'/allocation_candidates?resources={name}:1'
        summaries = self.read(path, _Candidates).provider_summaries
        made = {
            uuid: Provider(
                uuid,
                {
                    name: each.capacity
                    for name, each in summary.resources.items()
                },
                {name: each.used for name, each in summary.resources.items()},
                sorted(summary.traits),
            )
            for uuid, summary in summaries.items()
            if summary.root_provider_uuid == uuid and summary.resources
        }
        below: dict[str, set[str]] = {}
        for uuid, summary in summaries.items():
            root = made.get(summary.root_provider_uuid)
            if root is not None and root.uuid != uuid:
                for name, amounts in summary.resources.items():
                    root.add(name, amounts.capacity, amounts.used)
                below.setdefault(root.uuid, set()).update(summary.traits)
        for uuid, names in below.items():
            made[uuid] = made[uuid]._replace(child_traits=tuple(sorted(names)))
        return made

    def read(self, path: str, kind: type[T]) -> T:
        """Return the answer to GET, decoded to a type."""
        answer = self._call('GET', path)
        try:
            return msgspec.json.decode(answer.content, type=kind)
        except msgspec.MsgspecError as fault:
            raise errors.PlacementUnavailable(
                f'The placement service answered GET {path} with something '
                f'that cannot be read: {fault}'
            ) from fault

    def provider(self, uuid: str) -> Provider | None:
        """Return a provider; None: no provider has this uuid.

        Once its tree is known, all of it is read at the same time.
        """
        tree = self._call('GET', f'/resource_providers?in_tree={uuid}').json()
        below = {each['uuid'] for each in tree['resource_providers']} - {uuid}
        paths = [
            f'/resource_providers/{each}/{name}'
            for each in (uuid, *sorted(below))
            for name in ('inventories', 'usages', 'traits')
        ]
        parts = self._readers.map(self._part, paths)
        inventories, usages, traits = islice(parts, 3)
        if inventories is None:
            return None
        made = Provider(
            uuid,
            _capacity(inventories),
            usages or {},
            sorted(traits or ()),
            _units(inventories),
        )
        child_traits: set[str] = set()
        for inventories, usages, traits in zip(*[parts] * 3, strict=True):
            for name, capacity in _capacity(inventories or {}).items():
                made.add(name, capacity, (usages or {}).get(name, 0))
            child_traits.update(traits or ())
        return made._replace(child_traits=tuple(sorted(child_traits)))

    def units(self, uuid: str) -> dict[str, UnitLimits]:
        """Return the bounds of a provider, as in :class:`Provider`."""
        path = f'/resource_providers/{uuid}/inventories'
        return _units(self._part(path) or {})

    def traits(self, uuid: str) -> set[str]:
        """Return the traits of a provider; none where there is no such."""
        return {*(self._part(f'/resource_providers/{uuid}/traits') or ())}

    def _part(self, path: str) -> Any:
        """Return a part of a provider; None: there is no provider."""
        answer = self._call('GET', path, (_GONE,))
        return answer.json().get(path.rpartition('/')[2])

    def allocation_candidates(self, query: str) -> dict[str, Any]:
        """Return the candidates that match a query, as the service does.

        None matches a class, trait or aggregate that does not exist.
        """
        path = f'/allocation_candidates?{query}'
        answer = self._call('GET', path, (_BAD,))
        if answer.status_code == _BAD:
            LOG.warning('No candidates for %s: %s', query, answer.text[:300])
            return {'allocation_requests': [], 'provider_summaries': {}}
        return dict(answer.json())

    def allocations(self, consumer: str) -> dict[str, Any]:
        """Return a consumer's allocations, as the service gives them.

        ``{'allocations': {}}`` for a consumer without any.
        """
        return dict(self._call('GET', f'/allocations/{consumer}').json())

    def put_allocations(
        self, consumer: str, body: Mapping[str, Any]
    ) -> Answer:
        """Replace a consumer's allocations."""
        return self._write('PUT', f'/allocations/{consumer}', body)

    def post_allocations(self, bodies: Mapping[str, Any]) -> Answer:
        """Replace the allocations of consumers, of all or of none."""
        return self._write('POST', '/allocations', bodies)

    def _write(self, method: str, path: str, body: Any) -> Answer:
        """Make a writing call; repeat it where it gets no answer.

        The adapter's options say how often. The library could repeat it too,
        but would not report earlier tries, which the service may still carry
        out.
        """
        tries: Counter[str] = Counter()
        while True:
            try:
                answer = self._call(
                    method, path, (_BAD, _GONE, _MISFIT), body, retry=False
                )
                break
            except errors.PlacementUnavailable as fault:
                kind = self._retried(fault)
                limit = kind and getattr(self._adapter, f'{kind}_retries')
                if tries[kind] >= (limit or 0):
                    raise
                pause = getattr(self._adapter, f'{kind}_retry_delay')
                time.sleep(pause or _PAUSE_S * 2 ** tries[kind])
                tries[kind] += 1
        if answer.status_code == _DONE[method]:
            return Answer(answer.status_code, sure=not tries)
        try:
            why = answer.json()['errors'][0]
        except (ValueError, LookupError, TypeError):
            why = {}
        return Answer(
            answer.status_code,
            str(why.get('code', '')),
            str(why.get('detail', '')).strip(),
            not tries,
        )

    def _retried(self, fault: errors.PlacementUnavailable) -> str:
        """Return the kind of options that limit retries; empty: no retry."""
        if isinstance(fault.__cause__, exceptions.RetriableConnectionFailure):
            return 'connect'
        statuses = self._adapter.retriable_status_codes or (_BUSY,)
        return 'status_code' if fault.facts.get('status') in statuses else ''

    def _call(
        self,
        method: str,
        path: str,
        expected: tuple[int, ...] = (),
        body: Any = None,
        microversion: str | None = MICROVERSION,
        retry: bool = True,
    ) -> Any:
        """Return the response of a call.

        :param expected: statuses besides that of success
        :param retry: whether the library tries again, as the options say
        :raises PlacementUnavailable: the service does not answer, or with
            another status, or another server answers
        """
        more = {} if body is None else {'json': body}
        if not retry:
            more |= {'connect_retries': 0, 'status_code_retries': 0}
        try:
            answer = self._adapter.request(
                path,
                method,
                raise_exc=False,
                microversion=microversion,
                microversion_service_type=SERVICE_TYPE,
                headers={'Accept': 'application/json'},
                **more,
            )
        except exceptions.ClientException as fault:
            raise errors.PlacementUnavailable(
                f'The placement service does not answer: {fault}'
            ) from fault
        status = answer.status_code
        own = microversion is None or _VERSION in answer.headers
        if own and (status == _DONE[method] or status in expected):
            return answer
        if status == _TOO_OLD:
            self.check()
        who = 'The placement service'
        if not own and status < 500:
            who = f'Something without {_VERSION}, not the placement service,'
        raise errors.PlacementUnavailable(
            f'{who} answered {method} {path} with {status}', status=status
        )


# Of a provider without vCPUs: it gives no amount of them. Hosts of others with
# a total of 0 are not known yet.
NOT_OFFERED = UnitLimits(min_unit=2**53)


def _capacity(inventories: Mapping[str, Any]) -> dict[str, int]:
    return {
        name: int(
            (inventory['total'] - inventory['reserved'])
            * inventory['allocation_ratio']
        )
        for name, inventory in inventories.items()
    }


def _units(inventories: Mapping[str, Any]) -> dict[str, UnitLimits]:
    """Return standard class -> bounds of inventories that have some."""
    units = {} if 'VCPU' in inventories else {'VCPU': NOT_OFFERED}
    for name in STANDARD_FIELDS.keys() & inventories.keys():
        stated = inventories[name]
        most = stated['max_unit']
        bounds = UnitLimits(
            min_unit=stated['min_unit'],
            max_unit=None if most == _UNBOUNDED else most,
            step_size=stated['step_size'],
        )
        if bounds != UnitLimits():
            units[name] = bounds
    return units


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split('.'))
