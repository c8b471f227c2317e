"""The routes, who may use them, and what errors look like."""

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
_OPEN = ('/healthcheck', '/readyz')
_LOOPBACK = ('127.', '::1', 'localhost')


class Guard:
    """Lets in who has the token or a client certificate.

    :param token: None: none is asked for
    :param certificates: whether client certificates are checked
    """

    def __init__(self, token: bytes | None, certificates: bool) -> None:
        self._token = token
        self._certificates = certificates

    def process_request(self, req: Any, resp: Any) -> None:
        """Refuse strangers.

        :raises HTTPUnauthorized: neither token nor certificate
        """
        if req.path in _OPEN or not (self._token or self._certificates):
            return
        if req.env.get('SSL_CLIENT_VERIFY') == 'SUCCESS':
            return
        given = (req.get_header('Authorization') or '').partition(' ')
        if self._token and given[0].lower() == 'bearer':
            sent = given[2].strip().encode('utf-8', 'replace')
            if hmac.compare_digest(sent, self._token):
                return
        raise falcon.HTTPUnauthorized(
            description='a bearer token or a client certificate is needed',
            challenges=['Bearer'],
        )


def body(req: Any, most: int) -> bytes:
    """Return the body of a request.

    :raises PayloadTooLarge: it is longer than *most*
    """
    size = req.content_length
    if size is not None and size > most:
        raise errors.PayloadTooLarge(
            f'{size} bytes, at most {most} are taken', size=size, limit=most
        )
    try:
        found: bytes = req.bounded_stream.read(most + 1)
    except (ValueError, OSError) as fault:
        # Chunks that are none, or a client that went away.
        raise errors.InvalidRequest(
            f'the body cannot be read: {str(fault)[:100]}'
        ) from None
    if len(found) > most:
        raise errors.PayloadTooLarge(f'more than {most} bytes', limit=most)
    return found


def make(scheduler: Any, judge: Any, binder: Any, guard: Guard,
         most: int) -> Any:  # fmt: skip
    """Return the WSGI application.

    :param judge: of pods, an ``engine.pods.PodEvaluator``
    :param binder: binds pods; None: the verb is not offered
    :param most: bytes of a body
    """
    app = falcon.App(middleware=[guard])
    app.req_options.strip_url_path_trailing_slash = True
    app.set_error_serializer(_serialize)
    app.add_error_handler(errors.SchedulerError, _declared)
    app.add_error_handler(wire.WireError, _unreadable)
    app.add_error_handler(Exception, _broken)
    app.add_route('/healthcheck', health.Alive())
    app.add_route('/readyz', health.Ready(scheduler))
    app.add_route('/metrics', metrics.Metrics(scheduler))
    v1.add(app, scheduler, lambda req: body(req, min(most, v1.MOST_BYTES)))
    extender.add(app, judge, binder, lambda req: body(req, most))
    return app


def _serialize(req: Any, resp: Any, fault: Any) -> None:
    """Write a fault of the framework in the form of our errors."""
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


def _declared(
    req: Any, resp: Any, error: errors.SchedulerError, params: Any
) -> None:
    resp.status = error.code
    resp.content_type = falcon.MEDIA_JSON
    resp.data = wire.encode({'error': error.to_dict()})


def _unreadable(req: Any, resp: Any, fault: Exception, params: Any) -> None:
    _declared(req, resp, errors.InvalidRequest(str(fault)), params)


def _broken(req: Any, resp: Any, fault: Exception, params: Any) -> None:
    if isinstance(fault, falcon.HTTPError | falcon.HTTPStatus):
        raise fault
    LOG.error('%s %s failed', req.method, req.path, exc_info=fault)
    _declared(req, resp, errors.SchedulerError('Internal error'), params)


def guard_of(group: Any) -> Guard:
    """Return the guard that the options ask for.

    :raises ConfigurationError: the token cannot be read, or everybody could
        reach us without one
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
    near = str(group.bind_host).startswith(_LOOPBACK)
    if token is None and not group.ca_file and not near:
        raise errors.ConfigurationError(
            '[http] bind_host is not loopback: token_file or ca_file is needed'
        )
    if group.ca_file and not group.cert_file:
        raise errors.ConfigurationError(
            '[http] ca_file needs cert_file and key_file'
        )
    return Guard(token, bool(group.ca_file))
