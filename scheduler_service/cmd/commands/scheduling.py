"""``scheduler-manage select``, ``zone schedule``, ``release`` and ``ping``.

The commands call a running daemon, or with ``--local`` run its engine in this
process.
"""

from __future__ import annotations

import contextlib
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
    document = _object(read_document(args.request, errors.InvalidRequest))
    if args.host:
        return _explain(args, conf, document)
    if not args.dry_run and document.get('request_id') is None:
        # The decision is stored under this id, with its reasons.
        document['request_id'] = f'req-{uuid.uuid4()}'
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
                    _CONTEXT, document, **options
                ),
            )
    except errors.NoValidHost:
        if not args.dry_run:
            output.remark(f'Request {document["request_id"]}')
        raise
    _print(args, result, output.placements)


def _explain(args: Any, conf: Any, document: Any) -> None:
    result = _run(
        args,
        conf,
        lambda scheduler: scheduler.explain(
            documents.request(document), args.host
        ),
        lambda client: client.explain(_CONTEXT, document, args.host),
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
        document = _object(read_document(args.request, errors.InvalidRequest))
    if args.name:
        document['name'] = args.name
    if args.attribute:
        document['attributes'] = dict(args.attribute)
    caller = _CONTEXT
    if args.role:
        # A member of the project, in place of an operator.
        project = document.get('project_id') or 'scheduler-manage'
        caller = {**caller, 'project_id': project, 'roles': args.role}
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
            lambda client: client.schedule_zone(caller, document, **options),
        )
    _print(args, result, output.pool)


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
        args, conf, lambda client: client.ping(_CONTEXT, args.daemon, True)
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
