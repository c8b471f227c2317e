"""Every error that a caller can get: a stable name, a sentence, the facts.

An error is made from keyword facts, which travel over the message bus in
``kwargs``: a caller reads ``error.facts`` and need not parse the text.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NoReturn, Self

from scheduler_service.time_slice import TimeSliceOver


class SchedulerError(Exception):
    """An error inside the scheduler."""

    code = 500

    def __init__(self, message: str | None = None, /, **facts: Any) -> None:
        self.facts: dict[str, Any] = facts
        # oslo.messaging sends the attributes args and kwargs of an exception.
        self.kwargs: dict[str, Any] = facts
        super().__init__(message or self.sentence(facts))

    @property
    def name(self) -> str:
        """The stable name of the error, without the suffix of the bus."""
        return type(self).__name__.removesuffix('_Remote')

    def sentence(self, facts: dict[str, Any]) -> str:
        """Return the default message, with the facts."""
        first = (type(self).__doc__ or '').strip().splitlines()[0]
        if not facts:
            return first
        listed = ', '.join(f'{key}={value}' for key, value in facts.items())
        return f'{first} ({listed})'

    def to_dict(self) -> dict[str, Any]:
        """Return name, message, code and facts, as they are sent."""
        return {
            'name': self.name,
            'message': str(self.args[0]) if self.args else '',
            'code': self.code,
            'facts': self.facts,
        }


def from_dict(document: dict[str, Any]) -> SchedulerError:
    """Return the error that :meth:`SchedulerError.to_dict` described.

    An error of a class that does not exist is a plain SchedulerError.
    """
    kind = _kinds().get(document['name'], SchedulerError)
    return kind(document['message'], **document['facts'])


def names() -> list[str]:
    """Return the names of all errors, sorted."""
    return sorted(_kinds())


def _kinds() -> dict[str, type[SchedulerError]]:
    return {
        name: kind
        for name, kind in globals().items()
        if isinstance(kind, type) and issubclass(kind, SchedulerError)
    }


def as_scheduler_error(fault: BaseException) -> SchedulerError:
    """Return an exception as an error that callers may see."""
    if isinstance(fault, SchedulerError):
        return fault
    return SchedulerError(f'Internal error: {text_of(fault)}')


def text_of(fault: BaseException) -> str:
    """Return what any exception says, or its kind where it says nothing."""
    try:
        return str(fault) or type(fault).__name__
    except BaseException:
        return type(fault).__name__


def raise_named(name: str, fault: BaseException) -> NoReturn:
    """Raise a fault of a filter or weigher as an error that names it.

    Errors of this module, and the end of a time slice, stay as they are.
    """
    if isinstance(fault, SchedulerError | TimeSliceOver):
        raise fault
    kind = type(fault).__name__
    text = f'{name} failed: {kind}: {text_of(fault)}'
    raise FilterFault(text, filter=name, fault=kind) from fault


@contextlib.contextmanager
def naming(name: str) -> Iterator[None]:
    """Raise what a filter or weigher raises as an error that names it."""
    try:
        yield
    except BaseException as fault:
        raise_named(name, fault)


def without_traceback(error: SchedulerError) -> SchedulerError:
    """Return an error that is kept, without what it was raised in.

    The frames of a traceback hold the request and all that came with it. A
    request that holds its error would be a reference cycle, and stay in
    memory until the garbage collector's rare full collection.
    """
    link: BaseException | None = error
    visited: set[int] = set()
    # A plug-in may have raised an error from itself.
    while link is not None and id(link) not in visited:
        visited.add(id(link))
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error


class InvalidRequest(SchedulerError):
    """The request is not valid."""

    code = 400

    @classmethod
    def at(cls, place: str, text: str, **facts: Any) -> Self:
        """Return the error on a part of the request, which it names."""
        return cls(f'{place}: {text}', at=place, **facts)


class PayloadTooLarge(InvalidRequest):
    """The request is too large or nested too deeply."""

    code = 413


class UnsupportedEncoding(InvalidRequest):
    """The body of an HTTP request has an encoding that is not supported."""

    code = 415


class InvalidInventory(SchedulerError):
    """The inventory document is not valid."""

    code = 400


class NotFound(SchedulerError):
    """It does not exist."""

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
    """There is no quarantined message with this id."""


class DecisionNotFound(NotFound):
    """There is no stored decision on this id; dry runs are not stored."""


class NotRecorded(NotFound):
    """The history does not have it, or it cannot be read."""


class Conflict(SchedulerError):
    """It exists already, or is still in use."""

    code = 409


class ServerGroupMismatch(Conflict):
    """An instance is in another server group than the request names."""


class ServerGroupNotEnforced(Conflict):
    """No enabled filter or weigher enforces the policy of a server group."""


class Forbidden(SchedulerError):
    """A policy rule does not allow this to the caller."""

    code = 403


class NoValidHost(SchedulerError):
    """No valid host was found."""

    code = 500


class RequestFilterFailed(NoValidHost):
    """A request filter rejected the request."""


class MaxRetriesExceeded(NoValidHost):
    """Every attempt lost its claim."""


class NoValidPoolFound(SchedulerError):
    """There are no pools that matched your request."""

    code = 404


class ForcedPoolFilteredOut(NoValidPoolFound):
    """The pool that was requested by its id was rejected by a filter."""


class MultiplePoolsFound(SchedulerError):
    """More than one pool matches, and no filter chooses among them."""

    code = 500


class FilterFault(SchedulerError):
    """A filter or weigher raised an exception."""


class ComputeHostMetricNotFound(FilterFault):
    """A host does not report a metric that is required."""


class ServiceBusy(SchedulerError):
    """Too many requests are waiting."""

    code = 503


class ExtenderFailed(SchedulerError):
    """A call to an extender failed, and it is not ignorable."""

    code = 502


class StageFailed(SchedulerError):
    """A stage of a plug-in failed for the request."""

    code = 502


class PlacementUnavailable(SchedulerError):
    """The placement service does not answer, or not as it should."""

    code = 503


class TooLate(SchedulerError):
    """The timeout of the caller has passed."""

    code = 504


class RequestQuarantined(SchedulerError):
    """The request is quarantined: it seems to end every daemon."""


class RequestCancelled(SchedulerError):
    """An instance of the request was released after the request was sent."""

    code = 409


class OutcomeExpired(SchedulerError):
    """The request was redelivered after its outcome was deleted."""

    code = 410


class StoreUnavailable(SchedulerError):
    """The database does not answer."""

    code = 503


class StoreTimeout(StoreUnavailable):
    """A lock or a statement in the database takes too long."""


class ConfigurationError(SchedulerError):
    """The configuration cannot be used."""


class SchemaMismatch(ConfigurationError):
    """The tables of the database are not those that this release can use."""


class FilterNotFound(ConfigurationError):
    """A configured filter, weigher or stage cannot be loaded."""


class NoFiltersConfigured(ConfigurationError):
    """No pool filter is configured."""
