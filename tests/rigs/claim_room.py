"""Whether a request was refused though there was room all the while.

Where an instance may have been follows from the answers: what was claimed
before a release was sent, or asked for, is gone when that is answered, since
the release ends what was claimed and cancels what was requested. Everything
else counts as if it was there. A host that reported an instance, also one
where it has no claim, is its place until the host or another one reports
otherwise: it takes no room there, and does not move there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tests.rigs.claim_model import Operation
from tests.rigs.linearizability import UNANSWERED


class Member(NamedTuple):
    """What is known of an instance from the start.

    :ivar size: what it takes of a host
    :ivar group: its server group; empty: none
    :ivar policy: of the group
    :ivar most: members that may be on a host, where they are kept apart
    :ivar licensed: whether it takes classes that are not always offered
    """

    size: int
    group: str = ''
    policy: str = ''
    most: int = 1
    licensed: bool = False


class Refusal(NamedTuple):
    """A request that got an error.

    :ivar kind: of request
    :ivar instances: of the request
    :ivar error: its name
    :ivar lost: how often others took what it was to claim; 0: no host passed
    """

    kind: str
    start: float
    end: float
    instances: Sequence[str]
    error: str = 'NoValidHost'
    lost: int = 0


class _Stay(NamedTuple):
    """An instance may have held room on hosts meanwhile."""

    start: float
    end: float
    hosts: frozenset[str]


class Room:
    """Which hosts instances may have held room on, and when.

    :param capacity: host -> what it has
    :param members: by instance
    :param histories: the operations of each instance
    """

    def __init__(
        self,
        capacity: Mapping[str, int],
        members: Mapping[str, Member],
        histories: Mapping[str, Iterable[Operation]],
    ) -> None:
        self._capacity = capacity
        self._members = members
        every = frozenset(capacity)
        self._changes = [
            (one.start, one.end)
            for history in histories.values()
            for one in history
            if one.kind != 'read'
        ]
        self._stays = {
            uuid: _stays(list(history), every)
            for uuid, history in histories.items()
        }
        self._reports = {
            uuid: _reports(list(history))
            for uuid, history in histories.items()
        }

    def fitting(self, one: Refusal) -> str | None:
        """Return a host that a refused request fitted on all the while.

        Several instances fit if one host had room for all of them. A request
        that lost its claims was refused rightly if as many others may have
        come first; its first attempt may have been on an old snapshot. What
        takes classes that are not always offered may always be refused.
        """
        if self._members[one.instances[0]].licensed:
            return None
        beside = sum(
            start <= one.end and end >= one.start
            for start, end in self._changes
        )
        if one.lost and beside >= one.lost - 1:
            return None
        held = {
            uuid: hosts
            for uuid in self._stays
            if (hosts := self._held(uuid, one))
        }
        need = sum(self._members[uuid].size for uuid in one.instances)
        own = frozenset().union(
            *(held.get(uuid, ()) for uuid in one.instances),
            *(
                _during(self._reports.get(uuid, ()), one)
                for uuid in one.instances
            ),
        )
        fits = []
        for host, capacity in self._capacity.items():
            used = sum(
                self._members[uuid].size
                for uuid, hosts in held.items()
                if host in hosts
            )
            if host not in own and used + need <= capacity:
                fits.append(host)
        allowed = self._allowed(one, held, fits)
        return allowed[0] if allowed else None

    def _held(self, uuid: str, one: Refusal) -> frozenset[str]:
        return _during(self._stays[uuid], one)

    def _allowed(
        self,
        one: Refusal,
        held: Mapping[str, frozenset[str]],
        fits: Sequence[str],
    ) -> Sequence[str]:
        """Return hosts of *fits* that a group's policy allowed all along."""
        mine = self._members[one.instances[0]]
        if not mine.group:
            return fits
        members = {
            uuid: hosts
            for uuid, hosts in held.items()
            if self._members[uuid].group == mine.group
        }
        if mine.policy == 'affinity':
            # The filter passes hosts of members alone that do not move:
            # there is room wherever members may be. Without members the first
            # instance goes to a host that may have no room for those that
            # have to follow.
            theirs = frozenset[str]().union(*members.values())
            if not (theirs or len(one.instances) == 1) or theirs - {*fits}:
                return ()
            if any(len(hosts) > 1 for hosts in members.values()):
                return ()
            return sorted(theirs) or fits
        beside = Counter(
            host
            for uuid, hosts in members.items()
            if uuid not in one.instances
            for host in hosts
        )
        if len(one.instances) > 1:
            return ()
        return [host for host in fits if beside[host] < mine.most]


def _during(stays: Iterable[_Stay], one: Refusal) -> frozenset[str]:
    """Return the hosts of stays that a refusal overlaps."""
    return frozenset().union(
        *(
            stay.hosts
            for stay in stays
            if stay.start <= one.end and stay.end >= one.start
        )
    )


def _reports(history: Sequence[Operation]) -> list[_Stay]:
    """Return when hosts may have been an instance's place by their reports."""
    reports = [one for one in history if one.kind in ('has', 'gone', 'sync')]
    stays = []
    for report in reports:
        if report.kind != 'gone' and report.listed:
            end = min(
                (
                    later.end
                    for later in reports
                    if later.start > report.end and _ends(later, report.host)
                ),
                default=UNANSWERED,
            )
            hosts = frozenset((report.host,))
            stays.append(_Stay(report.start, end, hosts))
    return stays


def _ends(report: Operation, host: str) -> bool:
    """Whether a report says that an instance is not on a host any more."""
    if report.kind == 'has':
        return report.host != host
    return report.host == host and (report.kind == 'gone' or not report.listed)


def _stays(history: Sequence[Operation], every: frozenset[str]) -> list[_Stay]:
    """Return when an instance may have held room, and where."""
    releases = [
        one
        for one in history
        if one.kind == 'release' and one.end != UNANSWERED
    ]
    found = []
    for one in history:
        if not one.is_claim:
            continue
        end = min(
            (
                each.end
                for each in releases
                if each.start > min(one.sent, one.end)
            ),
            default=UNANSWERED,
        )
        answered = one.end != UNANSWERED
        hosts = frozenset((one.answer,)) if answered else every
        found.append(_Stay(one.start, end, hosts))
    return found
