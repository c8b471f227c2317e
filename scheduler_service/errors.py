"""Every error a caller can get: a stable name, one sentence, the facts.

::

    SchedulerError
     +-- InvalidRequest            the message cannot be read as what it claims
     |    +-- PayloadTooLarge      too many bytes, or nested too deeply
     +-- InvalidInventory          the document names an impossible thing
     +-- NotFound
     |    +-- HostNotFound, PoolNotFound, AggregateNotFound,
     |        ServerGroupNotFound, ClaimNotFound, DecisionNotFound,
     |        MessageNotFound
     +-- Conflict                  the thing is there already, or in use
     +-- Forbidden                 a policy rule says no
     +-- NoValidHost               no host fits, and why
     |    +-- RequestFilterFailed  refused before any host was looked at
     |    +-- MaxRetriesExceeded   claims were lost to others too often
     +-- NoValidPoolFound          no pool is left, and why
     |    +-- ForcedPoolFilteredOut  the pool asked for was filtered out
     +-- MultiplePoolsFound        the filters did not decide
     +-- FilterFault               a plug-in raised
     |    +-- ComputeHostMetricNotFound
     +-- ServiceBusy               the inbox is full
     +-- ExtenderFailed            one that may not be missed gave no answer
     +-- TooLate                   nobody waits for the answer any more
     +-- RequestPutAside           it seems to kill whoever works on it
     +-- StoreUnavailable          the database does not answer
     +-- ConfigurationError        the service cannot start with this
          +-- FilterNotFound, NoFiltersConfigured

Each is built from keyword facts, which travel over the bus in ``kwargs``; so
a caller may rebuild the error or read ``error.facts`` without parsing text.
"""

from __future__ import annotations

from typing import Any


class SchedulerError(Exception):
    """Something went wrong in the scheduler."""

    code = 500

    def __init__(self, message: str | None = None, /, **facts: Any) -> None:
        self.facts: dict[str, Any] = facts
        # The bus serializes an exception's args and kwargs under these names.
        self.kwargs: dict[str, Any] = facts
        super().__init__(message or self.sentence(facts))

    @property
    def name(self) -> str:
        """The stable name that callers may compare."""
        return type(self).__name__.removesuffix('_Remote')

    def sentence(self, facts: dict[str, Any]) -> str:
        """Return the text for *facts* when none was given."""
        first = (type(self).__doc__ or '').strip().splitlines()[0]
        if not facts:
            return first
        told = ', '.join(f'{key}={value}' for key, value in facts.items())
        return f'{first} ({told})'

    def to_dict(self) -> dict[str, Any]:
        """Return name, message, code and facts, as JSON can hold them."""
        return {
            'name': self.name,
            'message': str(self.args[0]) if self.args else '',
            'code': self.code,
            'facts': self.facts,
        }


def as_scheduler_error(fault: BaseException) -> SchedulerError:
    """Return an exception as an error that callers may see."""
    if isinstance(fault, SchedulerError):
        return fault
    return SchedulerError(f'Internal error: {fault}')


class InvalidRequest(SchedulerError):
    """The request cannot be understood."""

    code = 400


class PayloadTooLarge(InvalidRequest):
    """The request is too large or nested too deeply."""

    code = 413


class InvalidInventory(SchedulerError):
    """The inventory document is not valid."""

    code = 400


class NotFound(SchedulerError):
    """There is no such thing."""

    code = 404


class HostNotFound(NotFound):
    """There is no such host."""


class PoolNotFound(NotFound):
    """There is no such pool."""


class AggregateNotFound(NotFound):
    """There is no such aggregate."""


class ServerGroupNotFound(NotFound):
    """There is no such server group."""


class ClaimNotFound(NotFound):
    """There is no such claim."""


class MessageNotFound(NotFound):
    """No message was put aside under this id."""


class DecisionNotFound(NotFound):
    """No decision is kept under this request id."""


class Conflict(SchedulerError):
    """The thing is there already, or still in use."""

    code = 409


class Forbidden(SchedulerError):
    """The policy does not allow this to the caller."""

    code = 403


class NoValidHost(SchedulerError):
    """No valid host was found."""

    code = 500


class RequestFilterFailed(NoValidHost):
    """A request filter refused the request."""


class MaxRetriesExceeded(NoValidHost):
    """Every attempt lost its claim to another request."""


class NoValidPoolFound(SchedulerError):
    """There are no pools that matched your request."""

    code = 404


class ForcedPoolFilteredOut(NoValidPoolFound):
    """The pool asked for by id was left out by an earlier filter."""


class MultiplePoolsFound(SchedulerError):
    """More than one pool matches, and no filter chooses among them."""

    code = 500


class FilterFault(SchedulerError):
    """A filter or weigher failed while it looked at the request."""


class ComputeHostMetricNotFound(FilterFault):
    """A host does not report a metric that is required for weighing."""


class ServiceBusy(SchedulerError):
    """Too many requests wait already."""

    code = 503


class ExtenderFailed(SchedulerError):
    """An extender that may not be missed gave no answer."""

    code = 502


class TooLate(SchedulerError):
    """Nobody waits for the answer any more."""

    code = 504


class RequestPutAside(SchedulerError):
    """The request is not tried again: it seems to end every daemon."""


class StoreUnavailable(SchedulerError):
    """The database does not answer."""

    code = 503


class ConfigurationError(SchedulerError):
    """The service cannot start with this configuration."""


class FilterNotFound(ConfigurationError):
    """A configured filter or weigher does not load."""


class NoFiltersConfigured(ConfigurationError):
    """No pool filter is configured."""
