"""``scheduler-manage select``, ``zone schedule``, ``release`` and ``ping``.

They call a running daemon, or with ``--local`` run its engine in this process.
"""

from __future__ import annotations

import contextlib
import sys
import uuid
from collections.abc import Iterator
from typing import Any

from scheduler_service import errors
from scheduler_service.cmd import output, reasons
from scheduler_service.cmd.commands import call, open_store
from scheduler_service.cmd.commands.inventory import read
from scheduler_service.cmd.commands.resources import pairs
from scheduler_service.engine.factory import build
from scheduler_service.engine.request_context import RequestContext
from scheduler_service.engine.scheduler import Scheduler
from scheduler_service.model import documents, plain

_CONTEXT = {'user_id': 'scheduler-manage', 'roles': ['admin']}
_TIMEOUT_S = 60.0


def select(args: Any, conf: Any) -> int:
    """Select hosts, and claim them unless it is a dry run."""
    document = read(args.request, errors.InvalidRequest)
    if args.host:
        return _explain(args, conf, document)
    if not args.dry_run:
        document = _named(document)
    try:
        with _reasons_of_errors(args):
            result = _select(args, conf, document)
    except errors.NoValidHost:
        if not args.dry_run:
            # The decision is stored under it, with its reasons.
            named = output.cell(document['request_id'])
            print(f'Request {named}', file=sys.stderr)
        raise
    return _print(args, result, reasons.hosts)


def _named(document: Any) -> dict[str, Any]:
    """Return a request with an id, so that its decision can be found."""
    asked = _object(document)
    if asked.get('request_id') is not None:
        return asked
    return {**asked, 'request_id': f'req-{uuid.uuid4()}'}


def _select(args: Any, conf: Any, document: Any) -> Any:
    if args.local:
        return _local_select(args, conf, document)
    return call(
        args,
        conf,
        lambda client: client.select_destinations(
            _CONTEXT,
            _object(document),
            claim=not args.dry_run,
            explain=args.explain,
        ),
    )


def _local_select(args: Any, conf: Any, document: Any) -> Any:
    request = documents.request(document)
    with local(conf) as scheduler:
        future = scheduler.select_destinations(
            request, claim=not args.dry_run, explain=args.explain
        )
        return plain(future.result(_TIMEOUT_S))


def _explain(args: Any, conf: Any, document: Any) -> int:
    """Print the verdict of every filter on one host."""
    if args.local:
        request = documents.request(document)
        with local(conf) as scheduler:
            future = scheduler.explain(request, args.host)
            result = plain(future.result(_TIMEOUT_S))
    else:
        result = call(
            args,
            conf,
            lambda client: client.explain(
                _CONTEXT, _object(document), args.host
            ),
        )
    if args.format != 'table':
        output.document(result, args.format)
        return 0
    reasons.host_verdicts(result['nodes'])
    reasons.rejections(result['filters'])
    return 0


def zone(args: Any, conf: Any) -> int:
    """Select a pool for a zone, and store it unless it is a dry run."""
    document = {}
    if args.request:
        document = read(args.request, errors.InvalidRequest)
    if isinstance(document, dict):
        if args.name:
            document['name'] = args.name
        if args.attribute:
            document['attributes'] = pairs(args.attribute)
    with _reasons_of_errors(args):
        result = _zone(args, conf, document, _caller(args, document))
    return _print(args, result, reasons.pool)


def _caller(args: Any, document: Any) -> dict[str, Any]:
    """Return an operator, or with ``--role`` one of the zone's callers."""
    if not args.role:
        return _CONTEXT
    project = document.get('project_id') if isinstance(document, dict) else ''
    return {
        **_CONTEXT,
        'project_id': project or 'scheduler-manage',
        'roles': args.role,
    }


def _zone(args: Any, conf: Any, document: Any, context: dict[str, Any]) -> Any:
    if args.local:
        return _local_zone(args, conf, document, context)
    return call(
        args,
        conf,
        lambda client: client.schedule_zone(
            context,
            _object(document),
            keep=not args.dry_run,
            explain=args.explain,
        ),
    )


def _local_zone(
    args: Any, conf: Any, document: Any, context: dict[str, Any]
) -> Any:
    request = documents.zone(document)
    with local(conf) as scheduler:
        future = scheduler.schedule_zone(
            request,
            RequestContext.of(conf, context),
            keep=not args.dry_run,
            explain=args.explain,
        )
        return plain(future.result(_TIMEOUT_S))


def release(args: Any, conf: Any) -> None:
    """Release claims."""
    if args.local:
        with local(conf) as scheduler:
            released = scheduler.release(args.instance).result(_TIMEOUT_S)
    else:
        released = call(
            args, conf, lambda client: client.release(_CONTEXT, args.instance)
        )
    print(f'{len(released)} of {len(args.instance)} held a claim.')


def ping(args: Any, conf: Any) -> None:
    """Print the state of a daemon."""
    result = call(args, conf, lambda client: client.ping(_CONTEXT))
    if args.format == 'table':
        output.fields(result)
    else:
        output.document([result], args.format)


@contextlib.contextmanager
def local(conf: Any) -> Iterator[Scheduler]:
    """Give the daemon's engine, run in this process.

    :raises StoreUnavailable: the database does not result
    """
    with open_store(conf) as store:
        with store.reading():
            # Fail now; the engine would wait for the database.
            pass
        scheduler = build(conf, store)
        scheduler.start()
        try:
            yield scheduler
        finally:
            scheduler.stop()


@contextlib.contextmanager
def _reasons_of_errors(args: Any) -> Iterator[None]:
    """Print the reasons that an error carries, with ``--explain``."""
    try:
        yield
    except errors.SchedulerError as error:
        if args.explain and args.format == 'table':
            reasons.explanation(error.facts)
        elif args.explain:
            output.document({'error': error.to_dict()}, args.format)
        raise


def _object(document: Any) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise errors.InvalidRequest('expected an object as the request')
    return document


def _print(args: Any, result: Any, print_table: Any) -> int:
    if args.format != 'table':
        output.document(result, args.format)
        return 0
    print_table(result)
    if args.explain:
        reasons.explanation(result.get('explanation'))
    return 0
