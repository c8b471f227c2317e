"""``scheduler-manage message``: messages that were put aside."""

from __future__ import annotations

from typing import Any

from scheduler_service import errors
from scheduler_service.cmd import output
from scheduler_service.cmd.commands import (
    open_client,
    opened,
    read,
    when,
    write,
)
from scheduler_service.store import suspects


def listing(args: Any, conf: Any) -> None:
    """List messages that were put aside."""
    rows = read(conf, suspects.listing)
    for row in rows:
        row['changed_at'] = when(row['changed_at'])
    columns = ['changed_at', 'message_id', 'method', 'deliveries']
    output.listing(rows, columns, args.format)


def show(args: Any, conf: Any) -> None:
    """Print one, whole."""
    found = read(conf, lambda conn: suspects.show(conn, args.message_id))
    found['changed_at'] = when(found['changed_at'])
    form = 'yaml' if args.format == 'table' else args.format
    output.document(found, form)


def retry(args: Any, conf: Any) -> None:
    """Cast one again, and forget that it was put aside."""
    with opened(conf) as store:
        with store.reading() as conn:
            found = suspects.show(conn, args.message_id)
        message = found['message']
        if not isinstance(message, dict) or 'args' not in message:
            raise errors.InvalidRequest('the message was not kept whole')
        with open_client(conf) as client:
            client.tell(
                message['context'], message['method'], **message['args']
            )
        store.write(lambda writer: suspects.drop(writer, args.message_id))
    print('It was cast again; its caller does not wait for it any more.')


def drop(args: Any, conf: Any) -> int:
    """Forget one; 1 where there was none."""
    gone = write(conf, lambda writer: suspects.drop(writer, args.message_id))
    if not gone:
        raise errors.MessageNotFound(message_id=args.message_id)
    return 0
