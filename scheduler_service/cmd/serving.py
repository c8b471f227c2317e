"""The HTTP servers of a daemon: their routes, guards and certificates.

The main thread builds :class:`HttpServing`; the thread that reloads calls
:meth:`HttpServing.check`.
"""

from __future__ import annotations

import logging
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scheduler_service import errors
from scheduler_service import extender_wire as wire
from scheduler_service.engine.health import SNAPSHOT
from scheduler_service.http.message import Reply, refusal
from scheduler_service.http.routes import READ, Listener, Route, Router
from scheduler_service.policies import Enforcer
from scheduler_service.scheduler import Scheduler

if TYPE_CHECKING:
    import ssl

    from scheduler_service.adapter import Adapter
    from scheduler_service.http.server import Server

LOG = logging.getLogger(__name__)
_MAX_SNAPSHOT_AGE_S = 30.0
_PAGE_THREADS = 2


class HttpServing:
    """The server of [http], and servers on ports of adapters.

    :param conf: parsed options
    :param tracer: makes traces of requests; None: there are none
    :ivar server: None: ``[http] bind_port`` is not set
    :raises ConfigurationError: an option cannot be used
    """

    def __init__(
        self,
        conf: Any,
        scheduler: Scheduler,
        adapters: Sequence[Adapter],
        enforcer: Enforcer,
        tracer: Any,
    ) -> None:
        self._scheduler = scheduler
        self._enforcer = enforcer
        self._tracer = tracer
        self._adapters = adapters
        self._tls: ssl.SSLContext | None = None
        self._files = 0
        self._tls, self._files = self._context(conf.http)
        self.server: Server | None = None
        # With the options that set the address.
        self._servers: list[tuple[str, Server]] = []
        for router, address, options in self._listeners(conf):
            from scheduler_service.http.server import Server

            served = Server(
                conf.http, router, self._tls, address,
                scheduler.health.thread_ended,
            )  # fmt: skip
            self._servers.append((options, served))
        if conf.http.bind_port is not None:
            self.server = self._servers[0][1]

    def run(self) -> None:
        """Serve, on the ports that are set.

        :raises ConfigurationError: the address cannot be used
        """
        for options, served in self._servers:
            try:
                served.run()
            except OSError as fault:
                raise errors.ConfigurationError(
                    f'{options}: {fault}'
                ) from None
            LOG.info('Listening on %s:%s', *served.bind_addr)

    def end(self) -> None:
        for _, served in self._servers:
            served.end()

    def check(self, conf: Any) -> Callable[[], None]:
        """Check options and their files; return a function to apply them.

        Files are read again even if their names are the same: certificates
        and tokens are replaced in place.

        :raises ConfigurationError: an option or a file cannot be used
        """
        tls, files = self._context(conf.http)
        routers = [listener.router for listener in self._listeners(conf)]

        def apply() -> None:
            if tls is not self._tls:
                LOG.info('The certificates of [http] were replaced')
            self._tls, self._files = tls, files
            if self.server is not None:
                before = self.server.clients.router.guard
                if routers[0].guard.token != before.token:
                    LOG.info('The token of [http] was replaced')
            for (_, served), router in zip(
                self._servers, routers, strict=True
            ):
                served.use(conf.http, router, tls)

        return apply

    def _listeners(self, conf: Any) -> list[Listener]:
        """Return the ports, that of [http] first if it has one."""
        listeners = []
        if self.server is not None or conf.http.bind_port is not None:
            address = conf.http.bind_host, conf.http.bind_port
            options = '[http] bind_host, bind_port'
            listeners.append(Listener(self._router(conf), address, options))
        for adapter in self._adapters:
            listeners += adapter.listeners(conf)
        return listeners

    def _router(self, conf: Any) -> Router:
        from scheduler_service.http import access, metrics, v1

        routes: list[Route] = []
        public: list[str] = []
        checks: dict[str, Callable[[], bool]] = {}
        for adapter in self._adapters:
            more, without_token = adapter.routes(conf)
            routes += more
            public += without_token
            checks |= adapter.readiness()
        group = conf.http
        guard = access.guard_of(group, public)
        measured = metrics.Metrics(self._scheduler, self._connections)
        # These two never wait for the engine or the database.
        routes += [
            Route('/readyz', lambda *_: self._ready(checks), 'status', 0,
                  READ),
            Route('/metrics', measured.serve, 'status', 0, READ),
        ]  # fmt: skip
        api = v1.V1(self._scheduler, guard, self._enforcer)
        routes += api.routes(group.max_body_bytes)
        pages = [made for a in self._adapters if (made := a.pages(api))]
        for made in pages:
            routes += made.routes
        unknown = refusal(404, 'the path is not served', name='RouteNotFound')
        router = Router(
            routes,
            Route('other', lambda *_: unknown, '', v1.MAX_BYTES),
            guard,
            self._scheduler.health,
            lambda: self._scheduler.snapshot() is not None,
            # Evaluations share a lock: more threads would not be faster.
            {'evaluate': 1, 'status': 1, 'bind': group.threads,
             'api': group.threads, 'pages': _PAGE_THREADS,
             # One waits, the other one says so.
             'why': 2},
        )  # fmt: skip
        router.tracer = self._tracer
        for made in pages:
            router.show_error = made.show_error
        return router

    def _connections(self) -> tuple[int, Mapping[str, int]]:
        assert self.server is not None
        return len(self.server.clients), dict(self.server.clients.closed)

    def _ready(self, more: Mapping[str, Callable[[], bool]]) -> Reply:
        """Return the result of each check; status 503 if any is bad."""
        status = self._scheduler.status()
        age = status['snapshot_age']
        checks = {
            'snapshot': age is not None
            and age < _MAX_SNAPSHOT_AGE_S
            and not self._scheduler.health.is_degraded(SNAPSHOT),
            'database': status['database'] == 'up',
            'bus': 'broker' not in ' '.join(status['degraded']),
            **{name: check() for name, check in more.items()},
        }
        is_ready = all(checks.values())
        document = {
            'ready': is_ready,
            **{name: 'ok' if good else 'bad' for name, good in checks.items()},
            'snapshot_age': age,
            'degraded': status['degraded'],
        }
        return Reply(200 if is_ready else 503, wire.encode(document))

    def _context(self, group: Any) -> tuple[ssl.SSLContext | None, int]:
        """Return the context of TLS, and a hash of its files.

        If the files did not change, the context stays the same. It is None if
        ``cert_file`` is not set.

        :param group: options of [http]
        :raises ConfigurationError: a file cannot be used
        """
        if not group.cert_file:
            if group.key_file:
                raise errors.ConfigurationError(
                    '[http] key_file also needs cert_file'
                )
            return None, 0
        from scheduler_service.http.server import tls_settings

        paths = group.cert_file, group.key_file, group.ca_file
        try:
            files = hash(
                tuple(
                    path and pathlib.Path(path).read_bytes() for path in paths
                )
            )
            if self._tls is not None and files == self._files:
                return self._tls, files
            return tls_settings(*paths), files
        except (OSError, TypeError, ValueError) as fault:
            raise errors.ConfigurationError(
                f'[http] cert_file, key_file or ca_file does not load: {fault}'
            ) from None
