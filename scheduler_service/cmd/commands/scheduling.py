"""``scheduler-manage select``, ``zone schedule``, ``release`` and ``ping``.

The commands call a running daemon, or with ``--local`` run its engine in this
process.
"""

from __future__ import annotations

import contextlib
import sys
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from scheduler_service import errors
from scheduler_service.cmd import output
from scheduler_service.cmd.commands.inventory import read_document
from scheduler_service.cmd.connections import call, open_store
from scheduler_service.factory import build
from scheduler_service.model import documents, plain
from scheduler_service.request_context import RequestContext
from scheduler_service.scheduler import Scheduler

if TYPE_CHECKING:
    from scheduler_service.rpc.client import SchedulerClient

_CONTEXT = {'user_id': 'scheduler-manage', 'roles': ['admin']}
_TIMEOUT_S = 60.0
# How long a daemon may take to say how it is, in seconds.
_PING_S = 5.0


def select(args: Any, conf: Any) -> None:
    """Select hosts, and claim them unless it is a dry run."""
    document = read_document(args.request, errors.InvalidRequest)
    if args.host:
        _explain(args, conf, document)
        return
    if not args.dry_run:
        document = _with_id(document)
    options = {'claim': not args.dry_run, 'explain': args.explain}
    try:
        with _reasons_of_errors(args):
            result = _run(
                args,
                conf,
                lambda scheduler: scheduler.select_destinations(
                    documents.request(document), **options
                ),
                lambda client: client.select_destinations(
                    _CONTEXT, _object(document), **options
                ),
            )
    except errors.NoValidHost:
        if not args.dry_run:
            # The decision is stored under this id, with its reasons.
            request_id = output.cell(document['request_id'])
            print(f'Request {request_id}', file=sys.stderr)
        raise
    _print(args, result, output.placements)


def _with_id(document: Any) -> dict[str, Any]:
    """Return a request with an id, under which its decision is stored."""
    request = _object(document)
    if request.get('request_id') is not None:
        return request
    return {**request, 'request_id': f'req-{uuid.uuid4()}'}


def _explain(args: Any, conf: Any, document: Any) -> None:
    result = _run(
        args,
        conf,
        lambda scheduler: scheduler.explain(
            documents.request(document), args.host
        ),
        lambda client: client.explain(_CONTEXT, _object(document), args.host),
    )
    if args.format != 'table':
        output.document(result, args.format)
        return
    output.filter_results(result['nodes'])
    output.rejections(result['filters'])


def zone(args: Any, conf: Any) -> None:
    """Select a pool for a zone, and store it unless it is a dry run."""
    document = {}
    if args.request:
        document = read_document(args.request, errors.InvalidRequest)
    if isinstance(document, dict):
        if args.name:
            document['name'] = args.name
        if args.attribute:
            document['attributes'] = dict(args.attribute)
    caller = _caller(args, document)
    options = {'keep': not args.dry_run, 'explain': args.explain}
    with _reasons_of_errors(args):
        result = _run(
            args,
            conf,
            lambda scheduler: scheduler.schedule_zone(
                documents.zone(document),
                RequestContext.of(conf, caller),
                **options,
            ),
            lambda client: client.schedule_zone(
                caller, _object(document), **options
            ),
        )
    _print(args, result, output.pool)


def _caller(args: Any, document: Any) -> dict[str, Any]:
    """Return an operator, or with ``--role`` a member of the project."""
    if not args.role:
        return _CONTEXT
    project = document.get('project_id') if isinstance(document, dict) else ''
    return {
        **_CONTEXT,
        'project_id': project or 'scheduler-manage',
        'roles': args.role,
    }


def release(args: Any, conf: Any) -> None:
    released = _run(
        args,
        conf,
        lambda scheduler: scheduler.release(args.instance),
        lambda client: client.release(_CONTEXT, args.instance),
    )
    print(f'{len(released)} of {len(args.instance)} held a claim.')


def ping(args: Any, conf: Any) -> None:
    args.timeout = args.timeout or _PING_S
    result = call(
        args,
        conf,
        lambda client: client.ping(_CONTEXT, args.daemon, recent=True),
    )
    shown = result if args.format == 'table' else [result]
    output.document(shown, args.format)


def _run(
    args: Any,
    conf: Any,
    submit: Callable[[Scheduler], Any],
    ask: Callable[[SchedulerClient], Any],
) -> Any:
    """Return the reply of a daemon, or of an engine in this process.

    :param submit: returns the future of the engine's reply
    :param ask: calls a daemon
    :raises StoreUnavailable: the database does not answer
    """
    if not args.local:
        return call(args, conf, ask)
    with open_store(conf) as store:
        scheduler = build(conf, store)
        scheduler.start()
        try:
            return plain(submit(scheduler).result(_TIMEOUT_S))
        finally:
            scheduler.stop()


@contextlib.contextmanager
def _reasons_of_errors(args: Any) -> Iterator[None]:
    """With ``--explain``, print the reasons of an error."""
    try:
        yield
    except errors.SchedulerError as error:
        if args.explain and args.format == 'table':
            output.explanation(error.facts)
        elif args.explain:
            output.document({'error': error.to_dict()}, args.format)
        raise


def _object(document: Any) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise errors.InvalidRequest('expected an object as the request')
    return document


def _print(
    args: Any, result: Any, print_table: Callable[[dict[str, Any]], None]
) -> None:
    if args.format != 'table':
        output.document(result, args.format)
        return
    print_table(result)
    if args.explain:
        output.explanation(result.get('explanation'))
