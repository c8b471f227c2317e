"""``scheduler-manage select``, ``zone schedule``, ``release`` and ``ping``.

Through a running daemon, or with ``--local`` by the same engine here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import oslo_messaging

from scheduler_service import errors
from scheduler_service.cmd import output, reasons
from scheduler_service.cmd.commands import open_client, opened
from scheduler_service.cmd.commands.inventory import read
from scheduler_service.cmd.commands.resources import pairs
from scheduler_service.engine.factory import build
from scheduler_service.engine.request_context import RequestContext
from scheduler_service.engine.scheduler import Scheduler
from scheduler_service.model import documents, plain
from scheduler_service.rpc.client import SchedulerClient

_CONTEXT = {'user_id': 'scheduler-manage', 'roles': ['admin']}
_LIMIT_S = 60.0


def select(args: Any, conf: Any) -> int:
    """Have hosts chosen, claimed unless it is a dry run."""
    document = read(args.request, errors.InvalidRequest)
    if args.host:
        return _explain(args, conf, document)
    with _refusals(args):
        answer = _select(args, conf, document)
    return _show(args, answer, reasons.hosts)


def _select(args: Any, conf: Any, document: Any) -> Any:
    if args.local:
        return _local_select(args, conf, document)
    with _client(conf) as client:
        return client.select_destinations(
            _CONTEXT,
            _object(document),
            claim=not args.dry_run,
            explain=args.explain,
        )


def _local_select(args: Any, conf: Any, document: Any) -> Any:
    request = documents.request(document)
    with local(conf) as scheduler:
        future = scheduler.select_destinations(
            request, claim=not args.dry_run, explain=args.explain
        )
        return plain(future.result(_LIMIT_S))


def _explain(args: Any, conf: Any, document: Any) -> int:
    """Show what every filter makes of one host."""
    if args.local:
        request = documents.request(document)
        with local(conf) as scheduler:
            future = scheduler.explain(request, args.host)
            answer = plain(future.result(_LIMIT_S))
    else:
        with _client(conf) as client:
            answer = client.explain(_CONTEXT, _object(document), args.host)
    if args.format != 'table':
        output.document(answer, args.format)
        return 0
    reasons.host_verdicts(answer['nodes'])
    reasons.keepers(answer['filters'])
    return 0


def zone(args: Any, conf: Any) -> int:
    """Have a pool chosen for a zone, and kept unless it is a dry run."""
    document = {}
    if args.request:
        document = read(args.request, errors.InvalidRequest)
    if isinstance(document, dict):
        if args.name:
            document['name'] = args.name
        if args.attribute:
            document['attributes'] = pairs(args.attribute)
    roles = args.role or _CONTEXT['roles']
    with _refusals(args):
        answer = _zone(args, conf, document, {**_CONTEXT, 'roles': roles})
    return _show(args, answer, reasons.pool)


def _zone(args: Any, conf: Any, document: Any, context: dict[str, Any]) -> Any:
    if args.local:
        return _local_zone(args, conf, document, context)
    with _client(conf) as client:
        return client.schedule_zone(
            context,
            _object(document),
            keep=not args.dry_run,
            explain=args.explain,
        )


def _local_zone(
    args: Any, conf: Any, document: Any, context: dict[str, Any]
) -> Any:
    asked = documents.zone(document)
    with local(conf) as scheduler:
        future = scheduler.schedule_zone(
            asked,
            RequestContext.of(conf, context),
            keep=not args.dry_run,
            explain=args.explain,
        )
        return plain(future.result(_LIMIT_S))


def release(args: Any, conf: Any) -> None:
    """Give back claims."""
    if args.local:
        with local(conf) as scheduler:
            released = scheduler.release(args.instance).result(_LIMIT_S)
    else:
        with _client(conf) as client:
            released = client.release(_CONTEXT, args.instance)
    print(f'{len(released)} of {len(args.instance)} held a claim.')


def ping(args: Any, conf: Any) -> None:
    """Ask a daemon how it is."""
    with _client(conf) as client:
        answer = client.ping(_CONTEXT)
    output.listing([answer], list(answer), args.format)


@contextlib.contextmanager
def local(conf: Any) -> Iterator[Scheduler]:
    """Give the daemon's engine, run here on the store.

    :raises StoreUnavailable: the database does not answer
    """
    with opened(conf) as store:
        with store.reading():
            # Waiting for a database is for daemons: a person is told.
            pass
        scheduler = build(conf, store)
        scheduler.start()
        try:
            yield scheduler
        finally:
            scheduler.stop()


@contextlib.contextmanager
def _client(conf: Any) -> Iterator[SchedulerClient]:
    """Give a client of the daemons that the options name.

    :raises ServiceBusy: no daemon or no broker answers, and what to do
    """
    try:
        with open_client(conf) as client:
            yield client
    except oslo_messaging.MessagingTimeout:
        raise errors.ServiceBusy(
            'No daemon answered; is one running? '
            '(--local decides here, on the store)'
        ) from None
    except oslo_messaging.MessageDeliveryFailure as fault:
        raise errors.ServiceBusy(f'The bus does not answer: {fault}') from None


@contextlib.contextmanager
def _refusals(args: Any) -> Iterator[None]:
    """Show what an error carries too, where reasons are asked for."""
    try:
        yield
    except errors.SchedulerError as error:
        if args.explain and args.format == 'table':
            reasons.why(error.facts)
        elif args.explain:
            output.document({'error': error.to_dict()}, args.format)
        raise


def _object(document: Any) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise errors.InvalidRequest('expected an object')
    return document


def _show(args: Any, answer: Any, show: Any) -> int:
    if args.format != 'table':
        output.document(answer, args.format)
        return 0
    show(answer)
    if args.explain:
        reasons.why(answer.get('explanation'))
    return 0
