"""``scheduler-manage message``: quarantined messages."""

from __future__ import annotations

from typing import Any

from scheduler_service import errors
from scheduler_service.cmd import output
from scheduler_service.cmd.commands import (
    call,
    open_store,
    read,
    timestamp,
    write,
)
from scheduler_service.store.records import quarantine


def listing(args: Any, conf: Any) -> None:
    """List quarantined messages."""
    rows = read(conf, quarantine.listing)
    for row in rows:
        row['changed_at'] = timestamp(row['changed_at'])
    columns = ['changed_at', 'message_id', 'method', 'deliveries']
    output.listing(rows, columns, args)


def show(args: Any, conf: Any) -> None:
    """Print a quarantined message in full."""
    message = read(conf, lambda conn: quarantine.show(conn, args.message_id))
    message['changed_at'] = timestamp(message['changed_at'])
    form = 'yaml' if args.format == 'table' else args.format
    output.document(message, form)


def retry(args: Any, conf: Any) -> None:
    """Cast a quarantined message again, and remove it from quarantine.

    :raises InvalidRequest: it was too large to be stored in full
    """
    with open_store(conf) as store:
        with store.reading() as conn:
            row = quarantine.show(conn, args.message_id)
        message = row['message']
        if not isinstance(message, dict) or 'args' not in message:
            raise errors.InvalidRequest(
                f'{args.message_id}: not stored in full, so it cannot be sent '
                'again'
            )
        call(
            args,
            conf,
            lambda client: client.cast(
                message['context'], message['method'], **message['args']
            ),
        )
        store.write(lambda writer: quarantine.drop(writer, args.message_id))
    print('Cast again. Its caller does not wait for a reply any more.')


def drop(args: Any, conf: Any) -> int:
    """Remove a message from quarantine.

    :raises MessageNotFound: there is none with this id
    """
    removed = write(
        conf, lambda writer: quarantine.drop(writer, args.message_id)
    )
    if not removed:
        raise errors.MessageNotFound(message_id=args.message_id)
    return 0
