"""The HTTP servers of a daemon: their routes, guards and certificates.

The main thread builds :class:`HttpServing`; the thread that reloads calls
:meth:`HttpServing.check`.
"""

from __future__ import annotations

import hashlib
import logging
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from scheduler_service import errors
from scheduler_service.policies import Enforcer
from scheduler_service.scheduler import Scheduler

if TYPE_CHECKING:
    import ssl

    from scheduler_service.adapter import Adapter
    from scheduler_service.http.routes import Listener, Route, Router
    from scheduler_service.http.server import Server

LOG = logging.getLogger(__name__)


class HttpServing:
    """The server of [http], and servers on ports of adapters.

    :param conf: parsed options
    :param tracer: makes traces of requests; None: there are none
    :ivar server: None: ``[http] bind_port`` is not set
    :ivar adapter_servers: the servers on ports of adapters
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
        self._tls: ssl.SSLContext | None = None
        self._files = b''
        self._adapters = adapters
        self.server: Server | None = None
        tls, self._files = self._context(conf.http)
        self._tls = tls
        listeners = self._listeners(conf)
        self._labels = [listener.options for listener in listeners]
        self.adapter_servers = [
            _server(conf, listener.router, tls, listener.address)
            for listener in listeners
        ]
        if conf.http.bind_port is not None:
            self.server = _server(conf, self._router(conf), tls)

    def run(self) -> None:
        """Serve, on the ports that are set.

        :raises ConfigurationError: the address cannot be used
        """
        labels = ['[http] bind_host, bind_port', *self._labels]
        servers = [self.server, *self.adapter_servers]
        for served, options in zip(servers, labels, strict=True):
            if served is None:
                continue
            try:
                served.run()
            except OSError as fault:
                raise errors.ConfigurationError(
                    f'{options}: {fault}'
                ) from None
            LOG.info('Listening on %s:%s', *served.bind_addr)

    def end(self) -> None:
        for served in (self.server, *self.adapter_servers):
            if served is not None:
                served.end()

    def check(self, conf: Any) -> Callable[[], None]:
        """Check options and their files; return a function to apply them.

        Files are read again even if their names are the same: certificates
        and tokens are replaced in place.

        :raises ConfigurationError: an option or a file cannot be used
        """
        tls, files = self._context(conf.http)
        routers = [listener.router for listener in self._listeners(conf)]
        router = self._router(conf) if self.server else None

        def apply() -> None:
            self._log_changes(tls, router)
            self._tls, self._files = tls, files
            if self.server is not None and router is not None:
                self.server.use(conf.http, router, tls)
            for served, adapter_router in zip(
                self.adapter_servers, routers, strict=True
            ):
                served.use(conf.http, adapter_router, tls)

        return apply

    def _log_changes(
        self, tls: ssl.SSLContext | None, router: Router | None
    ) -> None:
        if tls is not self._tls:
            LOG.info('The certificates of [http] were replaced')
        if self.server is None or router is None:
            return
        if not router.guard.has_token_of(self.server.guard):
            LOG.info('The token of [http] was replaced')

    def _router(self, conf: Any) -> Router:
        from scheduler_service.http import access, app, metrics

        routes: list[Route] = []
        public: list[str] = []
        checks: dict[str, Callable[[], bool]] = {}
        for adapter in self._adapters:
            more, without_token = adapter.routes(conf)
            routes += more
            public += without_token
            checks |= adapter.readiness()
        router = app.make(
            self._scheduler,
            routes,
            checks,
            access.guard_of(conf.http, public),
            self._enforcer,
            conf.http,
            lambda: metrics.connections(*self._connections()),
        )
        router.tracer = self._tracer
        return router

    def _connections(self) -> tuple[int, dict[str, int]]:
        assert self.server is not None
        return self.server.connections, self.server.closed

    def _listeners(self, conf: Any) -> list[Listener]:
        return [
            listener
            for adapter in self._adapters
            for listener in adapter.listeners(conf)
        ]

    def _context(self, group: Any) -> tuple[ssl.SSLContext | None, bytes]:
        """Return the context of TLS, and a digest of its files.

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
            return None, b''
        from scheduler_service.http import server

        paths = group.cert_file, group.key_file, group.ca_file
        try:
            digest = _digest(paths)
            if self._tls is not None and digest == self._files:
                return self._tls, digest
            return server.tls_settings(*paths), digest
        except (OSError, TypeError, ValueError) as fault:
            raise errors.ConfigurationError(
                f'[http] the certificate does not load: {fault}'
            ) from None


def _server(
    conf: Any,
    router: Router,
    tls: ssl.SSLContext | None,
    address: tuple[str, int] | None = None,
) -> Server:
    from scheduler_service.http import server

    return server.Server(conf.http, router, tls, address)


def _digest(paths: tuple[str | None, ...]) -> bytes:
    parts = [
        b'' if path is None else pathlib.Path(path).read_bytes()
        for path in paths
    ]
    return hashlib.sha256(
        b''.join(hashlib.sha256(part).digest() for part in parts)
    ).digest()
