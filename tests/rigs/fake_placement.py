"""A stand-in for the placement service that fails in the ways it is told to.

The real service answers what it did, and cannot be had to commit late, or to
commit and then fail. This one keeps what it keeps, as far as claims can tell:
inventories, allocations, and generations of consumers, which begin anew where
a consumer has nothing left. Everything else is tested with the real one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import socket
import threading
import time
import urllib.parse
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tests.support.json_server import JsonHandler, JsonServer
from tests.support.waiting import LIMIT_S

_VERSION = ('OpenStack-API-Version', 'placement 1.36')
_LOGIN = b'<html><form>Please log in</form></html>'

# What happens to a call that writes: it gets the handler and what commits.
Fault = Callable[[Any, Callable[[], tuple[int, Any]]], None]
# Whether a call is concerned: consumers -> what they are to have.
Concerns = Callable[[Mapping[str, Any]], bool]


def answer(status: int, code: str = '') -> Fault:
    """Return a fault: an answer of the service, and nothing is committed."""

    def fault(handler: Any, commit: Any) -> None:
        handler.say_own(status, _error(status, code, 'as it was told'))

    return fault


def late(seconds: float) -> Fault:
    """Return a fault: it is committed after a time, and never answered."""

    def fault(handler: Any, commit: Any) -> None:
        time.sleep(seconds)
        commit()
        handler.close_connection = True

    return fault


def commits_and_fails(handler: Any, commit: Any) -> None:
    """Commit, and answer that something went wrong."""
    commit()
    handler.say_own(500, _error(500, '', 'after the commit'))


def half_a_line(handler: Any, commit: Any) -> None:
    """Commit, and break off within the first line of the answer."""
    commit()
    handler.wfile.write(b'HTTP/1.1 20')
    handler.wfile.flush()
    handler.connection.shutdown(socket.SHUT_RDWR)
    handler.close_connection = True


def login_page(handler: Any, commit: Any) -> None:
    """Answer as something before the service does that wants a login."""
    handler.send_response(200)
    handler.send_header('Content-Type', 'text/html')
    handler.send_header('Content-Length', str(len(_LOGIN)))
    handler.end_headers()
    handler.wfile.write(_LOGIN)


class Held:
    """A fault: calls wait until they are let go, and are then done.

    :param then: what happens to them then instead
    """

    def __init__(self, then: Fault | None = None) -> None:
        self.waiting = 0
        self._then = then
        self._go = threading.Event()

    def __call__(self, handler: Any, commit: Any) -> None:
        self.waiting += 1
        self._go.wait(LIMIT_S)
        if self._then is not None:
            self._then(handler, commit)
        else:
            handler.say_own(*commit())

    def let_go(self) -> None:
        """Let all calls be done."""
        self._go.set()


class Outlived(Held):
    """A fault: a call fails long after it made its consumer.

    As the service does it, the consumer that the call made goes with it,
    though others may have given it allocations: nobody sees those any more.
    """

    def __init__(self) -> None:
        super().__init__()
        self.failed = threading.Event()

    def __call__(self, handler: Any, commit: Any) -> None:
        service, uuid = handler.service, handler.path.rpartition('/')[2]
        made = service.new_consumer(uuid)
        self.waiting += 1
        self._go.wait(LIMIT_S)
        service.forget_consumer(uuid, made)
        handler.say_own(500, _error(500, '', 'its database was away'))
        self.failed.set()


@dataclasses.dataclass(eq=False)
class _Consumer:
    generation: int = 0


@dataclasses.dataclass
class _Rule:
    concerns: Concerns
    fault: Fault
    times: int
    done: Counter[str] = dataclasses.field(default_factory=Counter)


class FakePlacement:
    """The service on a port of loopback.

    :ivar allocations: consumer -> provider -> resource class -> amount
    :ivar calls: method and path of each call
    :ivar odd: consumers of which nothing is known but something odd
    :ivar traits: of providers
    """

    def __init__(self) -> None:
        self.allocations: dict[str, dict[str, dict[str, int]]] = {}
        self.calls: list[tuple[str, str]] = []
        self.odd: set[str] = set()
        self.traits: dict[str, set[str]] = {}
        self._consumers: dict[str, _Consumer] = {}
        self._totals: dict[str, dict[str, int]] = {}
        self._roots: dict[str, str] = {}
        self._rules: list[_Rule] = []
        self._lock = threading.RLock()
        fake = self

        class Handler(_Handler):
            service = fake

        self._server = JsonServer(Handler)
        self.url = self._server.url

    def add_provider(self, root: str = '', **amounts: int) -> str:
        """Add a provider; return its uuid.

        :param root: uuid of the one that it is below
        """
        made = str(uuid.uuid4())
        self._totals[made] = amounts
        self._roots[made] = root or made
        return made

    def remove_provider(self, uuid: str) -> None:
        """Remove a provider without allocations."""
        del self._totals[uuid], self._roots[uuid]

    def set_totals(self, uuid: str, **amounts: int) -> None:
        """Give a provider other amounts, or make it with its uuid."""
        self._totals[uuid] = amounts
        self._roots.setdefault(uuid, uuid)

    def fail(
        self, fault: Fault, concerns: Concerns, times: int = 10**9
    ) -> None:
        """Have a fault happen to calls that write.

        :param times: how often for each consumer
        """
        self._rules.append(_Rule(concerns, fault, times))

    def work(self) -> None:
        """Have no fault happen any more."""
        self._rules.clear()

    def claims(self, bodies: Mapping[str, Any]) -> bool:
        """Whether a call would make allocations that are not there."""
        return all(
            body['consumer_generation'] == self._generation(consumer)
            and body['allocations'].keys()
            - self.allocations.get(consumer, {}).keys()
            for consumer, body in bodies.items()
        )

    def undoes(self, bodies: Mapping[str, Any]) -> bool:
        """Whether a call would take allocations away."""
        return all(
            self.allocations.get(consumer, {}).keys()
            - body['allocations'].keys()
            for consumer, body in bodies.items()
        )

    def find(self, bodies: Mapping[str, Any]) -> Fault | None:
        """Return the fault of a call; None: there is none."""
        with self._lock:
            for rule in self._rules:
                due = [c for c in bodies if rule.done[c] < rule.times]
                if due and rule.concerns(bodies):
                    rule.done.update(due)
                    return rule.fault
        return None

    def commit(self, bodies: Mapping[str, Any]) -> tuple[int, Any]:
        """Replace allocations of consumers, of all or of none."""
        with self._lock:
            wanted = {
                consumer: {
                    provider: one['resources']
                    for provider, one in body['allocations'].items()
                }
                for consumer, body in bodies.items()
            }
            for consumer, body in bodies.items():
                if body['consumer_generation'] != self._generation(consumer):
                    return 409, _error(
                        409,
                        'placement.concurrent_update',
                        'consumer generation conflict',
                    )
            if not self._has_room(wanted):
                return 409, _error(409, 'placement.undefined_code', 'no room')
            for consumer, given in wanted.items():
                if given:
                    self.allocations[consumer] = given
                    self.new_consumer(consumer).generation += 1
                elif consumer in self.allocations:
                    self.forget_consumer(consumer, self._consumers[consumer])
        return 204, None

    def new_consumer(self, consumer: str) -> _Consumer:
        """Make a consumer without allocations, if there is none."""
        with self._lock:
            return self._consumers.setdefault(consumer, _Consumer())

    def forget_consumer(self, consumer: str, made: object) -> None:
        """Forget a consumer, unless it was made anew since then."""
        with self._lock:
            if self._consumers.get(consumer) is made:
                del self._consumers[consumer]
                self.allocations.pop(consumer, None)

    def _generation(self, consumer: str) -> int | None:
        made = self._consumers.get(consumer)
        return None if made is None else made.generation

    def _has_room(self, wanted: Mapping[str, Any]) -> bool:
        after = {**self.allocations, **wanted}
        return all(
            used <= self._totals.get(provider, {}).get(name, 0)
            for provider in {p for given in wanted.values() for p in given}
            for name, used in self._used(provider, after).items()
        )

    def _used(self, provider: str, held: Any = None) -> Counter[str]:
        found: Counter[str] = Counter()
        for given in (held or self.allocations).values():
            found.update(given.get(provider, {}))
        return found

    def read(self, path: str, query: Mapping[str, str]) -> tuple[int, Any]:
        """Return the answer to a call that reads."""
        with self._lock:
            parts = path.strip('/').split('/')
            if path == '/':
                return 200, {'versions': [{'max_version': '1.39'}]}
            if parts[0] == 'allocations':
                return 200, self._allocations_of(parts[1])
            if parts[0] == 'allocation_candidates':
                return 200, self._candidates(query)
            if len(parts) == 1:
                return 200, {'resource_providers': self._providers(query)}
            if parts[1] not in self._totals:
                return 404, _error(404, '', 'no such provider')
            return 200, self._part(parts[1], parts[2])

    def _allocations_of(self, consumer: str) -> Any:
        if consumer in self.odd:
            return ['odd']
        given = self.allocations.get(consumer)
        if given is None:
            return {'allocations': {}}
        return {
            'allocations': {
                provider: {'resources': amounts}
                for provider, amounts in given.items()
            },
            'consumer_generation': self._generation(consumer),
            'project_id': 'p',
            'user_id': 'u',
        }

    def _providers(self, query: Mapping[str, str]) -> Any:
        if 'required' in query or 'member_of' in query:
            return []
        within = query.get('in_tree')
        return [
            {'uuid': one, 'root_provider_uuid': root}
            for one, root in self._roots.items()
            if within in (None, root)
        ]

    def _part(self, provider: str, name: str) -> Any:
        totals = self._totals[provider]
        bounds = {'min_unit': 1, 'max_unit': 2**31 - 1, 'step_size': 1}
        found = {
            'inventories': {
                kind: {
                    'total': total,
                    'reserved': 0,
                    'allocation_ratio': 1.0,
                    **bounds,
                }
                for kind, total in totals.items()
            },
            'usages': {n: self._used(provider)[n] for n in totals},
            'traits': sorted(self.traits.get(provider, ())),
            'aggregates': [],
        }
        return {name: found[name]}

    def _room(self, provider: str, amounts: Mapping[str, int]) -> bool:
        totals, used = self._totals[provider], self._used(provider)
        return all(
            used[name] + amount <= totals.get(name, 0)
            for name, amount in amounts.items()
        )

    def _candidates(self, query: Mapping[str, str]) -> Any:
        """Return what fits: of each group, every provider with room."""
        groups = {
            key.removeprefix('resources'): _amounts(value)
            for key, value in query.items()
            if key.startswith('resources')
        }
        found = []
        for root in dict.fromkeys(self._roots.values()):
            wanted = query.get('root_required')
            if wanted and not self._has(wanted, [root]):
                continue
            options = [
                self._fitting(root, amounts)
                if query.get(f'in_tree{suffix}', root) == root
                else []
                for suffix, amounts in groups.items()
            ]
            for chosen in itertools.product(*options):
                given: dict[str, dict[str, int]] = {}
                for fits in chosen:
                    for provider, part in fits.items():
                        given.setdefault(provider, {}).update(part)
                if not self._has(query.get('required', ''), given):
                    continue
                found.append(
                    {
                        'allocations': {
                            provider: {'resources': amounts}
                            for provider, amounts in given.items()
                        },
                        'mappings': {
                            suffix: [*fits]
                            for suffix, fits in zip(
                                groups, chosen, strict=True
                            )
                        },
                    }
                )
        roots = {root for one in found for root in one['allocations']}
        return {
            'allocation_requests': found,
            'provider_summaries': {
                one: self._summary(one)
                for one, root in self._roots.items()
                if self._roots[one] in roots
            },
        }

    def _has(self, wanted: str, providers: Iterable[str]) -> bool:
        """Whether providers together have traits, and none that is !NAME."""
        have = {name for one in providers for name in self.traits.get(one, ())}
        return all(
            name[1:] not in have if name[0] == '!' else name in have
            for name in wanted.split(',')
            if name
        )

    def _fitting(
        self, root: str, amounts: Mapping[str, int]
    ) -> list[dict[str, dict[str, int]]]:
        """Return the ways to have amounts: provider -> class -> amount."""
        tree = [one for one, of in self._roots.items() if of == root]
        givers = [
            [one for one in tree if self._room(one, {name: amount})]
            for name, amount in amounts.items()
        ]
        ways = []
        for chosen in itertools.product(*givers):
            given: dict[str, dict[str, int]] = {}
            for one, (name, amount) in zip(
                chosen, amounts.items(), strict=True
            ):
                given.setdefault(one, {})[name] = amount
            ways.append(given)
        return ways

    def _summary(self, provider: str) -> Any:
        used = self._used(provider)
        return {
            'root_provider_uuid': self._roots[provider],
            'traits': sorted(self.traits.get(provider, ())),
            'resources': {
                name: {'capacity': total, 'used': used[name]}
                for name, total in self._totals[provider].items()
            },
        }

    @contextlib.contextmanager
    def running(self) -> Iterator[FakePlacement]:
        """Serve for as long as the block runs."""
        with self._server.running():
            yield self


class _Handler(JsonHandler):
    service: FakePlacement
    # An answer is one packet: the second of two would wait for the client.
    wbufsize = -1

    def do_GET(self) -> None:
        parts = urllib.parse.urlsplit(self.path)
        self.service.calls.append(('GET', self.path))
        query = dict(urllib.parse.parse_qsl(parts.query))
        self.say_own(*self.service.read(parts.path, query))

    def do_PUT(self) -> None:
        consumer = self.path.rpartition('/')[2]
        self._write({consumer: self.asked()})

    def do_POST(self) -> None:
        self._write(self.asked())

    def _write(self, bodies: Mapping[str, Any]) -> None:
        self.service.calls.append((self.command, self.path))
        fault = self.service.find(bodies)

        def commit() -> tuple[int, Any]:
            return self.service.commit(bodies)

        if fault is not None:
            fault(self, commit)
        else:
            self.say_own(*commit())

    def say_own(self, status: int, document: Any) -> None:
        """Answer as the service does."""
        text = b'' if document is None else json.dumps(document).encode()
        self.send_response(status)
        self.send_header(*_VERSION)
        if status != 204:
            self.send_header('Content-Type', 'application/json')
            self.send_header('Content-Length', str(len(text)))
        self.end_headers()
        self.wfile.write(text)


def _error(status: int, code: str, detail: str) -> Any:
    return {'errors': [{'status': status, 'code': code, 'detail': detail}]}


def _amounts(text: str) -> dict[str, int]:
    return {
        name: int(amount)
        for name, _, amount in (one.partition(':') for one in text.split(','))
    }
