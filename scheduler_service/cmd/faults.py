"""What a command prints when it fails: one line that says what to do.

Stateless; called by the main thread. Imports nothing heavy.
"""

from __future__ import annotations

import errno
from typing import Any

from scheduler_service import errors
from scheduler_service.cmd import tables

_MEANING = {
    errno.ENOSPC: 'the disk is full',
    errno.EDQUOT: 'the quota of the disk is used up',
    errno.EROFS: 'the file system is read-only',
    errno.EACCES: 'this user may not do that',
    errno.EPERM: 'this user may not do that',
    errno.ENOENT: 'there is no such file or folder',
    errno.EISDIR: 'that is a folder',
}
# How many errors of a document are printed.
_MOST = 200


def line(fault: BaseException) -> str:
    """Return a fault as one line: its name, a colon, a sentence."""
    if isinstance(fault, errors.SchedulerError):
        text = str(fault.args[0]) if fault.args else ''
        return f'{fault.name}: {_on_one_line(text)}'
    if isinstance(fault, OSError):
        return f'OSError: {_on_one_line(of_file(fault))}'
    text = _on_one_line(str(fault))[:300]
    return (
        f'{type(fault).__name__}: {text} (this was not expected; with '
        '--debug the command prints where it was met)'
    )


def details(fault: BaseException) -> list[str]:
    """Return all that is wrong with a document, where that is several."""
    facts = getattr(fault, 'facts', {})
    found = [_on_one_line(one) for one in facts.get('problems', ())]
    more = len(found) - _MOST
    return [*found[:_MOST], f'and {more} more'] if more > 0 else found


def _on_one_line(text: str) -> str:
    """Return a text that cannot move the cursor of a terminal."""
    return tables.cell(' '.join(text.split()))


def of_file(fault: OSError) -> str:
    """Return what is wrong with a file, with its name if it is known."""
    meaning = _MEANING.get(fault.errno or 0)
    said = fault.strerror or str(fault)
    text = f'{meaning} ({said})' if meaning else said
    if fault.filename is not None:
        return f'{fault.filename}: {text}'
    # Files that are opened have a name, connections have no disk.
    return f'standard output: {text}' if meaning else text


def servers(conf: Any) -> str:
    """Return where the database and the broker are, without passwords."""
    from oslo_messaging.transport import TransportURL

    found = [f'the broker is {broker_address(TransportURL.parse(conf))}']
    if conf.database.connection:
        found.insert(0, f'the database is {database_address(conf)}')
    return ', '.join(found)


def database_address(conf: Any) -> str:
    """Return ``[database] connection`` without passwords."""
    from sqlalchemy.engine import make_url

    url = make_url(conf.database.connection)
    # Some drivers take a password among the words after the question mark.
    words = list(url.query)
    return (
        url._replace(password=None)
        .difference_update_query(words)
        .render_as_string()
    )


def broker_address(url: Any) -> str:
    """Return a transport URL without passwords."""
    hosts = ','.join(
        f'{host.username}@{where}' if host.username else where
        for host in url.hosts
        for where in (f'{host.hostname}:{host.port or "default port"}',)
    )
    return f'{url.transport}://{hosts}/{url.virtual_host or ""}'
