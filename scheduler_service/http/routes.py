"""Routes of HTTP requests: which code answers a path, and on which thread.

The thread of the server calls :class:`Router`. It answers health checks and
short calls of a kube-scheduler itself, one between two polls of the
connections. Longer calls of a kube-scheduler share one thread, since they
share a lock. Routes that wait for the engine, the database or another server
have threads of their own, apart from those of readiness and metrics.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import itertools
import logging
import time
from collections.abc import Callable, Iterable
from concurrent import futures
from typing import NamedTuple

from scheduler_service import errors, tracing
from scheduler_service import extender_wire as wire
from scheduler_service.engine.health import Health
from scheduler_service.http.access import Guard
from scheduler_service.http.message import (
    TEXT,
    HttpRequest,
    Reply,
    error_reply,
    refusal,
)

LOG = logging.getLogger(__name__)
# Longer bodies are handled outside the server's thread: evaluating 10,000
# nodes by their names takes a few milliseconds.
_INLINE_BYTES = 256 * 1024
Done = Callable[[Reply], None]


@dataclasses.dataclass(slots=True, frozen=True)
class Route:
    """A path, or all paths without a route of their own.

    :ivar name: the path, as it is counted
    :ivar serve: called with the request and its body without content coding
    :ivar threads: name of the threads; ``inline``: the server's own
    :ivar max_bytes: the most bytes of a body
    :ivar methods: accepted methods; empty: *serve* decides
    :ivar needs_hosts: whether requests are refused before the hosts are
        loaded
    """

    name: str
    serve: Callable[[HttpRequest, bytes], Reply]
    threads: str
    max_bytes: int
    methods: tuple[str, ...] = ()
    needs_hosts: bool = False


def healthcheck(request: HttpRequest, content: bytes) -> Reply:
    """Say that the process is alive."""
    return Reply(200, b'OK', TEXT)


HEALTH = Route('/healthcheck', healthcheck, 'inline', 0, ('GET', 'HEAD'))


def _carried(request: HttpRequest) -> dict[str, str]:
    """Return the headers that may carry a trace."""
    return {
        name: request.headers[name.encode()].decode('latin-1')
        for name in tracing.CARRIED
        if name.encode() in request.headers
    }


class Router:
    """Admits requests, and hands them to their routes.

    :param fallback: returns the route of a path that none of *routes* has
    :param are_hosts_loaded: whether there is a snapshot
    :param threads: name -> how many threads at most
    :ivar guard: admits clients
    :ivar tracer: makes traces of requests; None: there are none
    :ivar looks: returns the number of polls of the connections
    """

    def __init__(
        self,
        routes: Iterable[Route],
        fallback: Callable[[str], Route],
        guard: Guard,
        health: Health,
        are_hosts_loaded: Callable[[], bool],
        threads: dict[str, int],
    ) -> None:
        self._routes = {route.name: route for route in (HEALTH, *routes)}
        self._fallback = fallback
        self.guard = guard
        self._health = health
        self._are_hosts_loaded = are_hosts_loaded
        self._pools = {
            name: futures.ThreadPoolExecutor(count, f'http-{name}')
            for name, count in threads.items()
        }
        self.tracer: tracing.Tracer | None = None
        self.looks: Callable[[], int] = itertools.count().__next__
        # Requests to be answered on the server's thread, one at a time.
        self._inline: collections.deque[tuple[Route, HttpRequest, Done]] = (
            collections.deque()
        )
        # The poll of the connections after which a request was answered last.
        self._answered = -1
        # Requests on the evaluating thread, running or queued.
        self._evaluating = 0

    def retire(self) -> None:
        """Finish all requests; another router gets new ones from now on."""
        for pool in self._pools.values():
            pool.shutdown(wait=False)

    def close(self) -> None:
        """Start no more requests, and do not wait for running ones."""
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)

    def _find(self, request: HttpRequest) -> Route:
        path = request.path.rstrip('/')
        return self._routes.get(path) or self._fallback(path)

    def admit(self, request: HttpRequest) -> int | Reply:
        """Return the most bytes that a body may have, or a refusal."""
        if not self.guard.admits(request):
            return refusal(
                401,
                'a bearer token or a client certificate is required',
                ('WWW-Authenticate', 'Bearer'),
            )
        if self.guard.is_of_a_page(request):
            return refusal(
                403,
                'a web page may send requests only where [http] token_file or '
                'ca_file is set',
            )
        route = self._find(request)
        if not route.methods or request.method in route.methods:
            return route.max_bytes
        allowed = ', '.join(route.methods)
        return refusal(405, f'only {allowed} is supported', ('Allow', allowed))

    def count_refused(self, status: int) -> None:
        """Count a request that was refused before it came to a route."""
        self._health.count('http_requests', f'refused {status}')

    def handle(self, request: HttpRequest, done: Done) -> None:
        """Answer a request by *done*, called on the server's thread."""
        route = self._find(request)
        if route is HEALTH:
            done(self._answer(route, request))
        elif route.threads != 'inline':
            self._run_elsewhere(route.threads, route, request, done)
        elif (
            self._evaluating
            or request.is_compressed
            or len(request.body) > _INLINE_BYTES
        ):
            self._evaluating += 1

            def evaluated(reply: Reply) -> None:
                self._evaluating -= 1
                done(reply)

            self._run_elsewhere('evaluate', route, request, evaluated)
        elif not self._inline and self._answered != self.looks():
            self._answered = self.looks()
            done(self._answer(route, request))
        else:
            if not self._inline:
                asyncio.get_running_loop().call_soon(self._run_inline)
            self._inline.append((route, request, done))

    def _run_inline(self) -> None:
        """Answer one request before the next poll of the connections."""
        self._answered = self.looks()
        route, request, done = self._inline.popleft()
        if self._inline:
            asyncio.get_running_loop().call_soon(self._run_inline)
        done(self._answer(route, request))

    def _run_elsewhere(
        self, threads: str, route: Route, request: HttpRequest, done: Done
    ) -> None:
        loop = asyncio.get_running_loop()

        def run() -> None:
            reply = self._answer(route, request)
            # The server may have ended meanwhile.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(done, reply)

        self._pools[threads].submit(run)

    def _answer(self, route: Route, request: HttpRequest) -> Reply:
        """Return the reply of a route, whatever happens."""
        start = time.perf_counter()
        trace = None
        if self.tracer is not None:
            trace = self.tracer.begin(route.name, _carried(request))
        try:
            if route.needs_hosts and not self._are_hosts_loaded():
                raise errors.ServiceBusy('The hosts are not loaded yet')
            content = request.content(route.max_bytes)
            reply = route.serve(request, content)
        except errors.SchedulerError as error:
            reply = error_reply(error)
        except wire.WireError as fault:
            reply = error_reply(errors.InvalidRequest(str(fault)))
        except Exception:
            LOG.exception('%s %s failed', request.method, route.name)
            reply = error_reply(errors.SchedulerError('Internal error'))
        seconds = time.perf_counter() - start
        self._health.served(route.name, reply.status, seconds)
        if trace is not None:
            trace.end(str(reply.status))
        return reply


class Listener(NamedTuple):
    """A separate port for some routes.

    :ivar address: host and port
    :ivar options: the options that set it, for errors
    """

    router: Router
    address: tuple[str, int]
    options: str
