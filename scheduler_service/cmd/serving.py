"""The HTTP servers of a daemon: what they serve, and to whom.

Built by the main thread; :meth:`HttpServing.check` is called by the thread
that reloads.
"""

from __future__ import annotations

import hashlib
import logging
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from scheduler_service import errors
from scheduler_service.cmd import compute
from scheduler_service.engine.factory import order_pipeline, pod_pipeline
from scheduler_service.engine.pods import PodEvaluator
from scheduler_service.engine.scheduler import Scheduler
from scheduler_service.policies import Enforcer

if TYPE_CHECKING:
    import ssl

    from scheduler_service.http.routes import Router
    from scheduler_service.http.server import Server

LOG = logging.getLogger(__name__)


class HttpServing:
    """The server of [http], and the one for the order of hosts alone.

    :param conf: parsed options
    :param evaluator: returns what evaluates nodes for pods
    :param tracer: makes traces of requests; None: there are none
    :ivar server: None: ``[http] bind_port`` is not set
    :ivar external: None: ``[compute] external_scheduler_bind_port`` is not
    :raises ConfigurationError: an option cannot be used
    """

    def __init__(
        self,
        conf: Any,
        scheduler: Scheduler,
        evaluator: Callable[[], PodEvaluator],
        enforcer: Enforcer,
        tracer: Any,
    ) -> None:
        self._scheduler = scheduler
        self._enforcer = enforcer
        self._tracer = tracer
        self._tls: ssl.SSLContext | None = None
        self._files = b''
        self._orderer = compute.orderer(conf, scheduler)
        self._pods: PodEvaluator | None = None
        self.server: Server | None = None
        self.external: Server | None = None
        tls, self._files = self._context(conf.http)
        self._tls = tls
        router = self._external_router(conf)
        if router is not None:
            self.external = _server(conf, router, tls, compute.address(conf))
        if conf.http.bind_port is not None:
            self._pods = evaluator()
            self.server = _server(conf, self._router(conf), tls)

    def run(self) -> None:
        """Serve, on the ports that are set.

        :raises ConfigurationError: the address cannot be used
        """
        for made, options in (
            (self.server, '[http] bind_host, bind_port'),
            (self.external, '[compute] external_scheduler_bind_port'),
        ):
            if made is None:
                continue
            try:
                made.run()
            except OSError as fault:
                raise errors.ConfigurationError(
                    f'{options}: {fault}'
                ) from None
            LOG.info('Listening on %s:%s', *made.bind_addr)

    def end(self) -> None:
        """Serve no more."""
        for served in (self.server, self.external):
            if served is not None:
                served.end()

    def check(self, conf: Any) -> Callable[[], None]:
        """Check options, and the files that they name; return what takes them.

        Files are read again though their names are the same: certificates and
        tokens are replaced in their places.

        :raises ConfigurationError: one cannot be used
        """
        pods = pod_pipeline(conf)
        ordering = order_pipeline(conf) if self._orderer else None
        tls, files = self._context(conf.http)
        external = self._external_router(conf)
        router = self._router(conf) if self.server else None

        def take() -> None:
            self._log_changes(tls, router)
            self._tls, self._files = tls, files
            if self._pods is not None:
                self._pods.use(pods)
            if self._orderer is not None and ordering is not None:
                self._orderer.use(*ordering)
            for served, what in (
                (self.server, router),
                (self.external, external),
            ):
                if served is not None and what is not None:
                    served.use(conf.http, what, tls)

        return take

    def _log_changes(
        self, tls: ssl.SSLContext | None, router: Router | None
    ) -> None:
        """Log which files of credentials have other contents."""
        if tls is not self._tls:
            LOG.info('The certificates of [http] were replaced')
        if self.server is None or router is None:
            return
        if not router.guard.has_token_of(self.server.guard):
            LOG.info('The token of [http] was replaced')

    def _router(self, conf: Any) -> Router:
        """Return what answers requests.

        :raises ConfigurationError: an option cannot be used
        """
        from scheduler_service.http import access, app, binder, metrics

        group, ours = conf.http, conf.extender
        bind = None
        if ours.api_server:
            bind = binder.Binder(
                ours.api_server,
                ours.api_token_file,
                ours.api_ca_file,
                ours.api_timeout,
            )
        more, public = compute.routes(conf, self._orderer)
        assert self._pods is not None
        router = app.make(
            self._scheduler,
            self._pods,
            bind,
            access.guard_of(group, public),
            self._enforcer,
            group,
            lambda: metrics.connections(*self._connections()),
            more,
        )
        router.tracer = self._tracer
        return router

    def _connections(self) -> tuple[int, dict[str, int]]:
        """Return how many connections are open, and were closed by reason."""
        assert self.server is not None
        return self.server.connections, self.server.closed

    def _external_router(self, conf: Any) -> Router | None:
        found: Router | None = compute.router(
            conf, self._scheduler, self._orderer
        )
        return found

    def _context(self, group: Any) -> tuple[ssl.SSLContext | None, bytes]:
        """Return the context of TLS, and a digest of its files.

        The context is the one in use where the files are what they were, and
        None if ``cert_file`` is not set.

        :param group: options of [http]
        :raises ConfigurationError: a file cannot be used
        """
        if not group.cert_file:
            if group.key_file:
                raise errors.ConfigurationError(
                    '[http] key_file needs cert_file, too'
                )
            return None, b''
        from scheduler_service.http import tls

        paths = group.cert_file, group.key_file, group.ca_file
        try:
            digest = _digest(paths)
            if self._tls is not None and digest == self._files:
                return self._tls, digest
            return tls.settings(*paths), digest
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
    """Return a digest of the contents of files; None is no file.

    :raises OSError: one cannot be read
    """
    parts = [
        b'' if path is None else pathlib.Path(path).read_bytes()
        for path in paths
    ]
    return hashlib.sha256(
        b''.join(hashlib.sha256(part).digest() for part in parts)
    ).digest()
