"""Routes of HTTP requests: which code answers a path, and on which thread.

The thread of the server calls :class:`Router`. It answers health checks and
short calls of a kube-scheduler itself, these for some milliseconds between two
polls of the connections. Longer calls of a kube-scheduler share one thread,
since they share a lock. Routes that wait for the engine, the database or
another server have threads of their own, apart from those of readiness and
metrics.
"""

from __future__ import annotations

import asyncio
import dataclasses
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
# How long the server's thread handles calls, in seconds, before it polls the
# connections again.
_INLINE_S = 0.005
READ = ('GET', 'HEAD')
# Called with a request and the reply to it, an error.
ShowError = Callable[[HttpRequest, Reply], Reply]


@dataclasses.dataclass(slots=True, frozen=True)
class Route:
    """A path, or all paths without a route of their own.

    :ivar name: the path, as it is counted; a last segment in braces stands
        for any
    :ivar serve: called with the request and its body without content coding
    :ivar threads: name of the threads; ``inline``: the server's own, or
        ``evaluate`` for long calls; empty: the server's own, at any time
    :ivar max_bytes: the most bytes of a body
    :ivar methods: accepted methods; empty: all
    :ivar needs_hosts: whether requests are refused before the hosts are
        loaded
    :ivar is_linked: whether pages of others may link it, without a query
    """

    name: str
    serve: Callable[[HttpRequest, bytes], Reply]
    threads: str
    max_bytes: int
    methods: tuple[str, ...] = ()
    needs_hosts: bool = False
    is_linked: bool = False


HEALTH = Route('/healthcheck', lambda *_: Reply(200, b'OK', TEXT), '', 0, READ)


class Router:
    """Admits requests, and hands them to their routes.

    :param fallback: the route of paths that none of *routes* has
    :param are_hosts_loaded: whether there is a snapshot
    :param threads: name -> how many threads at most
    :ivar guard: admits clients
    :ivar tracer: makes traces of requests; None: there are none
    :ivar show_error: makes a page of an error, where a browser asks
    """

    def __init__(
        self,
        routes: Iterable[Route],
        fallback: Route,
        guard: Guard,
        health: Health,
        are_hosts_loaded: Callable[[], bool],
        threads: dict[str, int],
    ) -> None:
        self._routes = {route.name: route for route in (HEALTH, *routes)}
        self._parents = {
            name.rpartition('/')[0]: route
            for name, route in self._routes.items()
            if name.endswith('}')
        }
        self._fallback = fallback
        self.guard = guard
        self._health = health
        self._are_hosts_loaded = are_hosts_loaded
        self._pools = {
            name: futures.ThreadPoolExecutor(count, f'http-{name}')
            for name, count in threads.items()
        }
        self.tracer: tracing.Tracer | None = None
        self.show_error: ShowError = lambda _, reply: reply
        # Duration of the inline calls since a poll, in seconds; further calls
        # wait for a poll each.
        self._spent_s = 0.0
        self._turn = asyncio.Lock()
        # Requests on the evaluating thread, running or queued.
        self._evaluating = 0

    def close(self, cancel: bool = False) -> None:
        """Finish all requests, on threads that end then.

        :param cancel: start no more of those that wait for a thread
        """
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=cancel)

    def admit(self, request: HttpRequest) -> Route | Reply:
        """Return the route of a request, or a refusal."""
        path = request.path.rstrip('/') or '/'
        route = (
            self._routes.get(path)
            or self._parents.get(path.rpartition('/')[0])
            or self._fallback
        )
        is_linked = route.is_linked and not request.query
        refused = self.guard.refuse(request, is_linked)
        if refused is not None:
            return refused
        if not route.methods or request.method in route.methods:
            return route
        allowed = ', '.join(route.methods)
        return refusal(405, f'only {allowed} is supported', ('Allow', allowed))

    def count_refused(self, status: int) -> None:
        """Count a request that was refused before it came to a route."""
        self._health.count('http_requests', 'refused', str(status))

    async def handle(self, route: Route, request: HttpRequest) -> Reply:
        """Return the reply to a request.

        :param route: as :meth:`admit` returned it, maybe of the router before
        """
        if not route.threads:
            return self._answer(route, request)
        if route.threads != 'inline':
            return await self._run_elsewhere(route.threads, route, request)
        if (
            self._evaluating
            or 'Content-Encoding' in request.headers
            or len(request.body) > _INLINE_BYTES
        ):
            self._evaluating += 1
            try:
                return await self._run_elsewhere('evaluate', route, request)
            finally:
                self._evaluating -= 1
        if self._spent_s < _INLINE_S:
            return self._answer_inline(route, request)
        async with self._turn:
            # The loop polls the connections meanwhile.
            await asyncio.sleep(0)
            self._spent_s = 0.0
            return self._answer_inline(route, request)

    def _answer_inline(self, route: Route, request: HttpRequest) -> Reply:
        start = time.perf_counter()
        reply = self._answer(route, request)
        self._spent_s += time.perf_counter() - start
        return reply

    async def _run_elsewhere(
        self, threads: str, route: Route, request: HttpRequest
    ) -> Reply:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._pools[threads], self._answer, route, request
        )

    def _answer(self, route: Route, request: HttpRequest) -> Reply:
        start = time.perf_counter()
        trace = None
        if self.tracer is not None:
            trace = self.tracer.begin(route.name, request.headers)
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


class Pages(NamedTuple):
    """Routes that a browser shows.

    :ivar show_error: makes a page of an error, where a browser asks
    """

    routes: list[Route]
    show_error: ShowError


class Listener(NamedTuple):
    """A separate port for some routes.

    :ivar address: host and port
    :ivar options: the options that set it, for errors
    """

    router: Router
    address: tuple[str, int]
    options: str
