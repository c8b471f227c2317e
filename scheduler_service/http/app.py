"""The WSGI application: routes, access, and the form of errors.

Built by the main thread; requests run on threads of the HTTP server.
"""

from __future__ import annotations

import hmac
import logging
import pathlib
from typing import Any

import falcon

from scheduler_service import errors
from scheduler_service.extender import wire
from scheduler_service.http import extender, health, metrics, v1

LOG = logging.getLogger(__name__)
_PUBLIC = ('/healthcheck', '/readyz')
_LOOPBACK = ('127.', '::1', 'localhost')


class Guard:
    """Admits clients that have the token or a client certificate.

    :param token: None: no token is required
    :param certificates: whether client certificates are checked
    """

    def __init__(self, token: bytes | None, certificates: bool) -> None:
        self._token = token
        self._certificates = certificates

    def process_request(self, req: Any, resp: Any) -> None:
        """Check the credentials of a request.

        :raises HTTPUnauthorized: neither token nor certificate is valid
        """
        if req.path in _PUBLIC or not (self._token or self._certificates):
            return
        if req.env.get('SSL_CLIENT_VERIFY') == 'SUCCESS':
            return
        header = req.get_header('Authorization') or ''
        scheme, _, token = header.partition(' ')
        if self._token and scheme.lower() == 'bearer':
            sent = token.strip().encode('utf-8', 'replace')
            if hmac.compare_digest(sent, self._token):
                return
        raise falcon.HTTPUnauthorized(
            description='a bearer token or a client certificate is required',
            challenges=['Bearer'],
        )


def body(req: Any, max_bytes: int) -> bytes:
    """Return the body of a request.

    :raises PayloadTooLarge: it is longer than *max_bytes*
    :raises InvalidRequest: it cannot be read from the connection
    """
    size = req.content_length
    if size is not None and size > max_bytes:
        raise errors.PayloadTooLarge(
            f'{size} bytes, at most {max_bytes} are allowed',
            size=size,
            limit=max_bytes,
        )
    try:
        data: bytes = req.bounded_stream.read(max_bytes + 1)
    except (ValueError, OSError) as fault:
        # Malformed chunks, or a client that closed the connection.
        raise errors.InvalidRequest(
            f'the body cannot be read: {str(fault)[:100]}'
        ) from None
    if len(data) > max_bytes:
        raise errors.PayloadTooLarge(
            f'more than {max_bytes} bytes', limit=max_bytes
        )
    return data


def make(
    scheduler: Any,
    evaluator: Any,
    binder: Any,
    guard: Guard,
    max_body_bytes: int,
) -> Any:
    """Return the WSGI application.

    :param evaluator: of nodes for pods, a ``PodEvaluator``
    :param binder: of pods; None: ``/extender/bind`` is not served
    """
    app = falcon.App(middleware=[guard])
    app.req_options.strip_url_path_trailing_slash = True
    app.set_error_serializer(_serialize)
    app.add_error_handler(errors.SchedulerError, _scheduler_error)
    app.add_error_handler(wire.WireError, _wire_error)
    app.add_error_handler(Exception, _internal_error)
    app.add_route('/healthcheck', health.Alive())
    app.add_route('/readyz', health.Ready(scheduler))
    app.add_route('/metrics', metrics.Metrics(scheduler))
    v1.add(
        app,
        scheduler,
        lambda req: body(req, min(max_body_bytes, v1.MAX_BYTES)),
    )
    extender.add(app, evaluator, binder, lambda req: body(req, max_body_bytes))
    return app


def _serialize(req: Any, resp: Any, fault: Any) -> None:
    """Write an error of the framework in the form of ours."""
    resp.content_type = falcon.MEDIA_JSON
    resp.data = wire.encode(
        {
            'error': {
                'name': type(fault).__name__.removeprefix('HTTP'),
                'message': fault.description or fault.title or '',
                'code': fault.status_code,
                'facts': {},
            }
        }
    )


def _scheduler_error(
    req: Any, resp: Any, error: errors.SchedulerError, params: Any
) -> None:
    resp.status = error.code
    resp.content_type = falcon.MEDIA_JSON
    resp.data = wire.encode({'error': error.to_dict()})


def _wire_error(req: Any, resp: Any, fault: Exception, params: Any) -> None:
    _scheduler_error(req, resp, errors.InvalidRequest(str(fault)), params)


def _internal_error(
    req: Any, resp: Any, fault: Exception, params: Any
) -> None:
    if isinstance(fault, falcon.HTTPError | falcon.HTTPStatus):
        raise fault
    LOG.error('%s %s failed', req.method, req.path, exc_info=fault)
    _scheduler_error(
        req, resp, errors.SchedulerError('Internal error'), params
    )


def guard_of(group: Any) -> Guard:
    """Return the guard for the options of [http].

    :raises ConfigurationError: the token cannot be read, or other machines
        could connect without one
    """
    token = None
    if group.token_file:
        try:
            token = pathlib.Path(group.token_file).read_bytes().strip()
        except OSError as fault:
            raise errors.ConfigurationError(
                f'[http] token_file cannot be read: {fault}'
            ) from None
        if not token:
            raise errors.ConfigurationError('[http] token_file is empty')
    loopback = str(group.bind_host).startswith(_LOOPBACK)
    if token is None and not group.ca_file and not loopback:
        raise errors.ConfigurationError(
            '[http] bind_host is not on loopback: set token_file or ca_file'
        )
    if group.ca_file and not group.cert_file:
        raise errors.ConfigurationError(
            '[http] ca_file needs cert_file and key_file, too'
        )
    return Guard(token, bool(group.ca_file))
