"""Calls of the placement service's API.

A :class:`PlacementClient` may be used by any thread; connections are kept.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec
from keystoneauth1 import exceptions

from scheduler_service import errors

T = TypeVar('T')
LOG = logging.getLogger(__name__)
# Mappings and the generation of consumers are in it.
MICROVERSION = '1.36'
SERVICE_TYPE = 'placement'
# Claimed of a host's own provider, without asking the service.
PLAIN = frozenset(('VCPU', 'PCPU', 'MEMORY_MB', 'DISK_GB'))
# Only answers with this header are the placement service's own: a proxy or a
# login page does not have it.
_VERSION = 'OpenStack-API-Version'
_DONE = {'GET': 200, 'PUT': 204, 'POST': 204, 'DELETE': 204}
# The first pause before a call that writes is made again, in seconds, where
# no option says how long; it doubles.
_PAUSE_S = 0.5
_BAD = 400
_MISFIT = 409
_GONE = 404
_TOO_OLD = 406
_BUSY = 503
CONCURRENT_UPDATE = 'placement.concurrent_update'


class Answer(NamedTuple):
    """What a call that writes got.

    :ivar code: of the error, as the service names it; empty: none
    :ivar detail: of the error
    :ivar sure: whether it is the answer to the first try; if not, an earlier
        one that got no answer may be carried out yet
    """

    status: int
    code: str = ''
    detail: str = ''
    sure: bool = True

    @property
    def done(self) -> bool:
        """Whether it was done."""
        return self.status in _DONE.values()

    @property
    def gone(self) -> bool:
        """Whether there was nothing that it could change."""
        return self.status == _GONE

    @property
    def concurrent(self) -> bool:
        """Whether others changed the same at the same time."""
        return self.status == _MISFIT and self.code == CONCURRENT_UPDATE


class Units(NamedTuple):
    """What a single allocation of a resource class may be.

    :ivar least: and no less
    :ivar most: and no more
    :ivar step: a multiple of it
    """

    least: int
    most: int
    step: int


# What the service has where nobody said anything.
UNBOUNDED = Units(1, 2**31 - 1, 1)


class Provider(NamedTuple):
    """A root provider's capacity and use, with what those below it have.

    Of classes that a host's own provider has to have, only that counts.

    :ivar capacity: resource class -> (total - reserved) x ratio
    :ivar used: resource class -> amount
    :ivar units: resource class -> its bounds, where there are some, of those
        that only the root has; None: not read
    """

    uuid: str
    capacity: dict[str, int]
    used: dict[str, int]
    traits: list[str]
    units: dict[str, Units] | None = None

    def add(self, name: str, capacity: int, used: int) -> None:
        """Add what a provider below it has of a resource class."""
        if name not in PLAIN:
            self.capacity[name] = self.capacity.get(name, 0) + capacity
            self.used[name] = self.used.get(name, 0) + used
            if self.units:
                self.units.pop(name, None)


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
    """Providers, of which only who they are is read."""

    resource_providers: list[_Root]


class PlacementClient:
    """A client of one placement service.

    :param adapter: of keystoneauth1, with authentication and endpoint
    """

    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter

    def check(self) -> None:
        """Check that the service is there, and new enough.

        :raises PlacementUnavailable: it is not
        """
        newest = self._newest()
        if _number(newest) < _number(MICROVERSION):
            raise errors.PlacementUnavailable(
                'The placement service is too old: it has microversion '
                f'{newest}, and {MICROVERSION} is needed'
            )

    def _newest(self) -> str:
        found = self._call('GET', '/', microversion=None).json()
        versions = found.get('versions') or [{}]
        return str(versions[0].get('max_version') or '0.0')

    def provider_uuids(self) -> set[str]:
        """Return the uuids of all root providers.

        :raises PlacementUnavailable: the service does not answer
        """
        found = self.read('/resource_providers', Roots)
        return {
            provider.uuid
            for provider in found.resource_providers
            if provider.root_provider_uuid == provider.uuid
        }

    def providers(self, name: str = 'VCPU') -> dict[str, Provider]:
        """Return all root providers with room for one of a class, by uuid.

        One call gives them all, but leaves out those that are full.

        :raises PlacementUnavailable: the service does not answer
        """
        path = f'/allocation_candidates?resources={name}:1'
        found = self.read(path, _Candidates).provider_summaries
        # Many have the same traits, dozens of them: one list for all those.
        traits: dict[tuple[str, ...], list[str]] = {}
        made = {
            uuid: _own(uuid, summary, traits)
            for uuid, summary in found.items()
            if summary.root_provider_uuid == uuid and summary.resources
        }
        for uuid, summary in found.items():
            root = made.get(summary.root_provider_uuid)
            if root is not None and root.uuid != uuid:
                for name, one in summary.resources.items():
                    root.add(name, one.capacity, one.used)
        return made

    def read(self, path: str, kind: type[T]) -> T:
        """Return the parts of an answer that are needed.

        :raises PlacementUnavailable: the service does not answer, or with
            something else
        """
        answer = self._call('GET', path)
        try:
            return msgspec.json.decode(answer.content, type=kind)
        except msgspec.MsgspecError as fault:
            raise errors.PlacementUnavailable(
                f'The placement service answered GET {path} with something '
                f'that cannot be read: {fault}'
            ) from fault

    def provider(self, uuid: str) -> Provider | None:
        """Return one provider; None: there is none of this uuid.

        :raises PlacementUnavailable: the service does not answer
        """
        path = f'/resource_providers/{uuid}'
        answer = self._call('GET', f'{path}/inventories', (_GONE,))
        if answer.status_code == _GONE:
            return None
        inventories = answer.json()
        capacity, units = _capacity(inventories), _units(inventories)
        usages = self._call('GET', f'{path}/usages').json()['usages']
        traits = self._call('GET', f'{path}/traits').json()['traits']
        made = Provider(uuid, capacity, usages, sorted(traits), units)
        tree = self._call('GET', f'/resource_providers?in_tree={uuid}').json()
        for one in tree['resource_providers']:
            if one['uuid'] != uuid:
                self._add_child(made, f'/resource_providers/{one["uuid"]}')
        return made

    def units(self, uuid: str) -> dict[str, Units]:
        """Return the bounds of classes that only a host's own provider has.

        :raises PlacementUnavailable: the service does not answer
        """
        path = f'/resource_providers/{uuid}/inventories'
        answer = self._call('GET', path, (_GONE,))
        if answer.status_code == _GONE:
            return {}
        found = _units(answer.json())
        return {name: one for name, one in found.items() if name in PLAIN}

    def _add_child(self, root: Provider, path: str) -> None:
        answer = self._call('GET', f'{path}/inventories', (_GONE,))
        if answer.status_code == _GONE:
            return
        used = self._call('GET', f'{path}/usages').json()['usages']
        for name, capacity in _capacity(answer.json()).items():
            root.add(name, capacity, used.get(name, 0))

    def allocation_candidates(self, query: str) -> list[dict[str, Any]]:
        """Return the allocation requests that a query finds.

        A class, trait or aggregate that the service does not know finds none.

        :raises PlacementUnavailable: the service does not answer
        """
        path = f'/allocation_candidates?{query}'
        answer = self._call('GET', path, (_BAD,))
        if answer.status_code == _BAD:
            LOG.warning('No candidates for %s: %s', query, answer.text[:300])
            return []
        found: list[dict[str, Any]] = answer.json()['allocation_requests']
        return found

    def allocations(self, consumer: str) -> dict[str, Any]:
        """Return a consumer's allocations, as the service gives them.

        Those of a consumer that has none are ``{'allocations': {}}``.

        :raises PlacementUnavailable: the service does not answer
        """
        found = self._call('GET', f'/allocations/{consumer}').json()
        return dict(found)

    def put_allocations(
        self, consumer: str, body: Mapping[str, Any]
    ) -> Answer:
        """Replace a consumer's allocations.

        :raises PlacementUnavailable: it is not known whether that was done
        """
        return self._write('PUT', f'/allocations/{consumer}', body)

    def post_allocations(self, bodies: Mapping[str, Any]) -> Answer:
        """Replace the allocations of consumers, of all or of none.

        :raises PlacementUnavailable: it is not known whether that was done
        """
        return self._write('POST', '/allocations', bodies)

    def delete_allocations(self, consumer: str) -> Answer:
        """Delete all allocations of a consumer.

        :raises PlacementUnavailable: it is not known whether that was done
        """
        return self._write('DELETE', f'/allocations/{consumer}', None)

    def _write(self, method: str, path: str, body: Any) -> Answer:
        """Make a call that writes, and make it again without an answer.

        As the options of the adapter say. The library would do so, too, but
        nobody would know of the tries before, which may be carried out yet.
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
        """Return which options say how often to try again; empty: none do."""
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
        :raises PlacementUnavailable: it does not answer, or with another, or
            something else answers
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


def _own(
    uuid: str, summary: _Summary, known: dict[tuple[str, ...], list[str]]
) -> Provider:
    """Return a root provider without what those below it have.

    :param known: lists of traits
    """
    resources, traits = summary.resources.items(), sorted(summary.traits)
    return Provider(
        uuid,
        {name: one.capacity for name, one in resources},
        {name: one.used for name, one in resources},
        known.setdefault(tuple(traits), traits),
    )


def _capacity(found: Mapping[str, Any]) -> dict[str, int]:
    """Return resource class -> capacity of inventories."""
    return {
        name: int((one['total'] - one['reserved']) * one['allocation_ratio'])
        for name, one in found['inventories'].items()
    }


def _units(found: Mapping[str, Any]) -> dict[str, Units]:
    """Return resource class -> bounds of inventories that have some."""
    stated = {
        name: Units(one['min_unit'], one['max_unit'], one['step_size'])
        for name, one in found['inventories'].items()
    }
    return {name: one for name, one in stated.items() if one != UNBOUNDED}


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split('.'))
