"""Errors as callers of the compute service's interface catch them.

A caller raises again what is in its own module of exceptions; anything else
reaches it as a remote error, which says nothing to whoever reads the fault of
the instance. So every refusal is a NoValidHost, whose reason says what it is.
"""

from __future__ import annotations

from typing import Any

from scheduler_service import errors

MODULE = 'nova.exception'
_TOO_FEW = 'There are not enough hosts available.'
# What a tenant may read of errors that say nothing about capacity.
_SHORT = {
    'ServiceBusy': 'The scheduler is busy.',
    'StoreUnavailable': 'The scheduler is not available.',
    'StoreTimeout': 'The scheduler is not available.',
    'TooLate': 'The scheduler answered too late.',
    'RequestCancelled': 'The request was cancelled.',
}


class NoValidHost(Exception):
    """No host for an instance, as the compute service names it.

    :param reason: follows the sentence that every such error begins with
    :ivar kwargs: travels over the bus with the name and the text
    """

    code = 500

    def __init__(self, reason: str = '') -> None:
        self.reason = reason
        self.kwargs: dict[str, Any] = {'reason': reason, 'code': self.code}
        super().__init__(f'No valid host was found. {reason}')


# The class is found by its module and name on the caller's side.
NoValidHost.__module__ = MODULE


def translate(error: errors.SchedulerError, full: bool) -> NoValidHost:
    """Return an error of ours as one that callers catch.

    :param full: give the whole reason, which tells of the capacity of hosts
    """
    text = str(error.args[0]) if error.args else error.name
    if isinstance(error, errors.NoValidHost):
        if not full:
            return NoValidHost(_TOO_FEW)
        return NoValidHost(text.removeprefix('No valid host was found. '))
    if isinstance(error, errors.InvalidRequest):
        # It concerns the request alone.
        return NoValidHost(text)
    if full:
        return NoValidHost(f'{error.name}: {text}')
    return NoValidHost(_SHORT.get(error.name, 'The scheduler failed.'))


def no_such_host(host: str | None, node: str | None) -> NoValidHost:
    """Return that a host or a node that was asked for does not exist."""
    return NoValidHost(f'No such host - host: {host} node: {node} ')
