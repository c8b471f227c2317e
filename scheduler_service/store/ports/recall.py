"""Outcomes of requests that may have been processed before.

A redelivered message, and a job that waited for long, may have an outcome
already, by this daemon or another. The outcome is looked up before the request
is processed, and given again. A claim or a release is its own record. Any
other outcome is recorded before its caller gets it (:meth:`Outcomes.record`).
Stateless but for counters: any thread may call it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from oslo_db import exception as db_exception
from sqlalchemy.engine import Connection

from scheduler_service import errors
from scheduler_service.engine.health import Health
from scheduler_service.engine.jobs import HostJob, Job, ZoneJob
from scheduler_service.engine.messages import Unrecorded
from scheduler_service.engine.ports import Recalled
from scheduler_service.model import HostsAnswer, Placement, PoolAnswer
from scheduler_service.settings import EngineOptions
from scheduler_service.store import claims, clock
from scheduler_service.store.claims import lifecycle, outcomes
from scheduler_service.store.connection import (
    REVISION,
    Store,
    Writer,
    lock_counter,
)

_decode = msgspec.json.decode
# How often releases are read at most. A slow read leaves open whether a
# release came before or after the request; a later, faster one settles that.
_LOOKS = 20
_encode = functools.partial(msgspec.json.encode, enc_hook=str)


def outcome_of(
    key: str, result: Any, error: errors.SchedulerError | None
) -> outcomes.RecordedOutcome:
    """Return what the store records of a request."""
    if error is not None:
        kind, document = outcomes.REFUSED, _encode(error.to_dict())
    else:
        kind, document = outcomes.RESULT, _encode(result)
    return outcomes.RecordedOutcome(key, kind, document.decode())


def places_of(
    placements: Iterable[Placement],
) -> dict[str, tuple[str, str]]:
    """Return the service host and the node of each instance."""
    return {
        placement.instance_uuid: (
            placement.selected.host,
            placement.selected.node,
        )
        for placement in placements
    }


class Outcome(NamedTuple):
    """An outcome that no transaction recorded."""

    of: Unrecorded
    result: Any
    error: errors.SchedulerError | None


class OutcomeDiffers(Exception):
    """Another copy of the message has, or may get, another outcome."""


class Outcomes:
    """Looks up outcomes by the idempotency keys of jobs."""

    def __init__(
        self, store: Store, options: EngineOptions, health: Health
    ) -> None:
        self._store = store
        self._options = options
        self._health = health

    def record(self, unrecorded: Sequence[Outcome], has_copies: bool) -> None:
        """Record outcomes of a message before its caller gets them.

        :param has_copies: whether another daemon may process the message
        :raises OutcomeDiffers: the message has to be processed again
        :raises StoreUnavailable: the database does not answer
        """

        def work(writer: Writer) -> None:
            new = [
                outcome_of(outcome.of.key, outcome.result, outcome.error)
                for outcome in unrecorded
                if not _is_recorded(writer, outcome)
            ]
            for outcome in unrecorded:
                if outcome.error is None:
                    _check_claims(writer.conn, outcome)
            if has_copies:
                # Copies that claimed are seen; later ones find the refusals.
                lock_counter(writer.conn, REVISION)
                for outcome in unrecorded:
                    if outcome.error is not None and outcomes.held_placements(
                        writer.conn, *outcome.of
                    ):
                        raise OutcomeDiffers
            outcomes.add(writer.conn, new)

        try:
            self._store.write(work)
        except db_exception.DBDuplicateEntry:
            raise OutcomeDiffers from None

    def recall(self, conn: Connection, job: Job) -> Recalled | None:
        """Return the outcome of a job's request; None: it has none yet.

        :raises RequestCancelled: it has none, and one of its instances was
            released since the request was sent
        """
        started = time.monotonic()
        if job.key is None:
            recalled = None
        elif isinstance(job, HostJob):
            recalled = self._recall_hosts(conn, job, job.key)
        else:
            recorded = outcomes.find(conn, job.key)
            recalled = self._recall_whole(recorded, job)
        if recalled is None and self._is_too_old(conn, job):
            recalled = _expired(job)
        if recalled is None:
            if isinstance(job, HostJob):
                _check_released(conn, job)
            job.looked_up_at = started
            return None
        is_gone = _is_expired(recalled)
        self._health.count(
            'outcomes_expired' if is_gone else 'outcomes_repeated'
        )
        return recalled

    def _recall_hosts(
        self, conn: Connection, job: HostJob, key: str
    ) -> Recalled | None:
        uuids = {*job.request.instance_uuids}
        # Claims first: an outcome is recorded when a claim goes meanwhile.
        held = outcomes.held_placements(conn, key, uuids)
        recorded = outcomes.find(conn, key)
        whole = self._recall_whole(recorded, job)
        if whole is not None and not (held and _is_expired(whole)):
            # Held claims may have to be completed once more.
            return whole._replace(
                held=whole.error is None and held.keys() >= uuids
            )
        if not held and not recorded:
            return None
        # Another daemon may have claimed between the two queries above.
        held |= outcomes.held_placements(conn, key, uuids - held.keys())
        texts = {
            outcome.instance: outcome.document
            for outcome in recorded
            if outcome.kind == outcomes.PLACEMENT
        }
        placements = {
            uuid: _decode(text or '', type=Placement)
            for uuid, text in {**texts, **held}.items()
        }
        missing = uuids - placements.keys()
        if missing:
            # The request got them, but other requests claimed.
            others = claims.placements(
                conn, sorted(missing), job.move, job.kind
            )
            placements.update(msgspec.convert(others, dict[str, Placement]))
        if uuids - placements.keys():
            if whole is not None:
                return whole
            return _recall_rest(conn, job, held, bool(texts))
        answer = HostsAnswer(
            request_id=str(job.request.request_id),
            placements=[
                placements[uuid] for uuid in job.request.instance_uuids
            ],
        )
        return Recalled(
            answer, held=held.keys() >= uuids, borrowed=sorted(missing)
        )

    def _recall_whole(
        self, recorded: Collection[outcomes.RecordedOutcome], job: Job
    ) -> Recalled | None:
        for outcome in recorded:
            if outcome.kind == outcomes.REFUSED:
                return Recalled(
                    error=errors.from_dict(_decode(outcome.document or ''))
                )
            if outcome.kind == outcomes.RESULT:
                kind: Any = _RESULTS.get(type(job), Any)
                return Recalled(_decode(outcome.document or '', type=kind))
        if any(outcome.kind == outcomes.EXPIRED for outcome in recorded):
            return _expired(job)
        return None

    def _is_too_old(self, conn: Connection, job: Job) -> bool:
        """Whether an outcome of its message would be deleted by now."""
        message = job.message
        return (
            message.redelivered
            and message.sent_at is not None
            and clock.read(conn) - message.sent_at
            > self._options.outcome_retention
        )


_RESULTS = {HostJob: HostsAnswer, ZoneJob: PoolAnswer}


def _is_recorded(writer: Writer, outcome: Outcome) -> bool:
    """Whether an outcome is recorded: it was looked up and is given again."""
    rows = outcomes.find(writer.conn, outcome.of.key)
    if outcome.error is not None:
        kinds = {row.kind for row in rows}
        return not kinds.isdisjoint((outcomes.REFUSED, outcomes.EXPIRED))
    result = _decode(_encode(outcome.result))
    return any(
        row.kind == outcomes.RESULT and _decode(row.document or '') == result
        for row in rows
    )


def _check_claims(conn: Connection, outcome: Outcome) -> None:
    """Check that the stored claims are as an answer has them.

    They stay until the answer is recorded: giving them up, or undoing them,
    locks the same rows first.

    :raises OutcomeDiffers: claims of this answer are gone
    """
    places = places_of(
        placement
        for placement in outcome.result.placements
        if placement.instance_uuid in outcome.of.instances
    )
    locked = lifecycle.lock(conn, places)
    claimed = {u: row for u, row in locked.items() if row.state != 'reported'}
    rows = [*claimed.items(), *lifecycle.moves_of(conn, locked).items()]
    held = {(uuid, (row.host, row.node)) for uuid, row in rows}
    if not places.items() <= held:
        raise OutcomeDiffers


def _is_expired(recalled: Recalled) -> bool:
    return isinstance(recalled.error, errors.OutcomeExpired)


def _expired(job: Job) -> Recalled:
    return Recalled(
        error=errors.OutcomeExpired(
            'The request was redelivered after its outcome was deleted; it is '
            'not processed again',
            message_id=job.message.id,
        )
    )


def _recall_rest(
    conn: Connection, job: HostJob, held: Mapping[str, str], released: bool
) -> Recalled | None:
    """Return the outcome of a request that claimed and was not answered.

    Some of its instances hold no claim any more.

    :param held: the placements that it still has, as JSON
    :param released: whether another of its claims was released since
    :return: None: instances without a claim are scheduled again
    """
    try:
        _check_released(conn, job)
    except errors.RequestCancelled as error:
        cancelled = error
    else:
        if not released:
            return None
        cancelled = errors.RequestCancelled(
            'An instance of the request was released after it was claimed',
            request_id=job.request.request_id,
        )
    given_up = [_decode(text, type=Placement) for text in held.values()]
    return Recalled(error=cancelled, given_up=given_up)


def _check_released(conn: Connection, job: HostJob) -> None:
    """Check that a request's instances were not released since it was sent.

    :raises RequestCancelled: an instance was, or may have been
    """
    request = job.request
    for _ in range(_LOOKS):
        # Ages are those of a moment in between.
        before = time.monotonic()
        found = outcomes.releases(
            conn, request.instance_uuids, request.project_id
        )
        after = time.monotonic()
        later = [
            release
            for release in found
            if release.revision > job.releases_seen.get(release.instance, 0)
            and (release.kind != outcomes.MOVE or job.move)
            and _may_be_later(release, job, after)
        ]
        if any(_may_be_later(release, job, before) for release in later):
            break
        if not later:
            for release in found:
                job.see_releases({release.instance: release.revision})
            return
    raise errors.RequestCancelled(
        'An instance of the request was released after the request was sent',
        request_id=request.request_id,
        instance_uuid=later[0].instance,
    )


def _may_be_later(release: outcomes.Release, job: HostJob, now: float) -> bool:
    """Whether a release may have been sent after a request.

    :param now: monotonic time at which it had its age
    """
    message = job.message
    # Callers' clocks differ: the order in which messages came is sure.
    if message.redelivered:
        pass
    elif release.age < 0:
        # The database's clock was set back since the release.
        if release.revision <= job.came_at:
            return False
    elif release.age < now - job.queued_at:
        return True
    elif (
        # Until it was read a message may have waited.
        release.age >= now - message.came_after
        or not (message.sent_at and release.sent_at)
    ):
        return False
    if message.sent_at and release.sent_at:
        return release.sent_at >= message.sent_at
    # Without any time it may have been sent before: the safe side.
    return not message.sent_at or release.released_at >= message.sent_at
