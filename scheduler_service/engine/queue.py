"""The queue of jobs that wait for the engine: bounded, and fair to callers.

Any thread puts jobs; the engine's thread takes them.

Each caller has a lane, in which its jobs stay in the order in which they
came. Lanes are served by start-time fair queueing: the one that was given
least goes first, counted in instances, and a caller that comes anew begins
where the others are. What holds across lanes:

* A job that names an instance, or a zone, is not handed out before every
  earlier job that names it has its result. So a release never overtakes the
  selection of its instance, whoever asked for either. Its lane waits with it.
* Explanations wait for each other in this way: one is worked on at a time.

A job that a stage took away and gives back comes before all that wait.
"""

from __future__ import annotations

import collections
import heapq
import itertools
import threading
import time
from collections.abc import Hashable, Sequence

from scheduler_service import errors
from scheduler_service.engine.jobs import HostJob, Job

# Long enough for another thread to run, in seconds.
_YIELD_S = 0.00001
# Largest number of instances in a batch, per job that it may have. A job with
# more has a batch of its own, however few of its instances are left to place:
# all of them are claimed together.
_INSTANCES_PER_JOB = 4
# How often lanes are looked at whose next job waits for another, in seconds.
_BLOCKED_S = 0.002
# Idle lanes, and jobs that were taken, are looked at when their number has
# grown by this since the last time: a job may hold 30 MiB.
_SPARE = 64
_FEW = 4


class Lane:
    """The jobs of one caller.

    :ivar served: what it was given, in instances; its place among others
    :ivar entry: number of its entry in the heap; others are out of date
    """

    __slots__ = ('entry', 'jobs', 'served')

    def __init__(self, served: float) -> None:
        self.jobs: collections.deque[Job] = collections.deque()
        self.served = served
        self.entry = -1


class RequestQueue:
    """Jobs of callers, each of whom gets a fair share of the engine.

    :ivar size: how many may wait. One more is refused, unless its caller
        has fewer than its share of them.
    :ivar away: how many are with stages that will give them back
    :ivar closed: whether no more jobs are accepted
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._lanes: dict[Hashable, Lane] = {}
        # (served, number, lane) of lanes whose next job may be taken.
        self._ready: list[tuple[float, int, Lane]] = []
        # Lanes whose next job waits for another job's result.
        self._blocked: list[Lane] = []
        self._numbers = itertools.count()
        self._waiting = self._busy_lanes = self._kept_lanes = 0
        # What the lane that was last taken from had been given before, and the
        # most that any has been given.
        self._clock = self._furthest = 0.0
        # The last job that names an instance, unless it has its result.
        self._last: dict[Hashable, Job] = {}
        # Jobs that were taken since, and before, without their results.
        self._taken: list[Job] = []
        self._pending: list[Job] = []
        self._kept_pending = 0
        self.closed = self._interrupted = False
        # Jobs that a stage which waits gave back.
        self._returned: list[Job] = []
        self.away = 0
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return self._waiting + len(self._returned)

    def is_drained(self) -> bool:
        """Whether no job is inside, nor with a stage that gives it back."""
        with self._changed:
            return not (len(self) or self.away)

    def others_wait(self, lane: Hashable) -> bool:
        """Whether a job of another lane could be taken now.

        Called by the engine's thread, which alone takes jobs.
        """
        own = self._lanes.get(lane)
        ready = self._busy_lanes - len(self._blocked)
        if own is not None and own.jobs and own not in self._blocked:
            ready -= 1
        return ready > 0 or any(
            lane is not own and _may_run(lane.jobs[0])
            for lane in self._blocked
        )

    def lanes(self) -> list[tuple[Hashable, int]]:
        """Return lanes with how many jobs wait in each, most first."""
        lanes = list(self._lanes.items())
        waiting = [(key, len(lane.jobs)) for key, lane in lanes if lane.jobs]
        return sorted(waiting, key=lambda entry: -entry[1])

    def taken(self) -> list[Job]:
        """Return jobs that were taken and may have no result yet."""
        return [*self._taken, *self._pending]

    def put(self, job: Job) -> None:
        """Add a job.

        :raises ServiceBusy: too many wait, or the service stops
        """
        if not self._add([job]):
            raise self._busy()
        # The job is more urgent than whatever this thread does next.
        time.sleep(_YIELD_S)

    def put_all(self, jobs: Sequence[Job]) -> None:
        """Add jobs of one caller that came together, to be decided together.

        Those that do not fit, or come while the service stops, fail.
        """
        room = self._add(jobs) if jobs else 0
        for job in jobs[room:]:
            job.fail(self._busy())
        time.sleep(_YIELD_S)

    def _add(self, jobs: Sequence[Job]) -> int:
        """Add jobs of one caller to its lane; return how many were added.

        Each comes behind what names the same instances.
        """
        last = self._last
        with self._changed:
            room = self._room(jobs[0])
            if not room:
                return 0
            lane = self._lane(jobs[0].message.lane)
            if not lane.jobs:
                self._busy_lanes += 1
                lane.served = max(lane.served, self._clock)
                self._push(lane)
            for job in jobs[:room]:
                for name in job.names:
                    before = last.get(name)
                    if before is not None and not before.future.done():
                        job.after.append(before)
                    last[name] = job
                lane.jobs.append(job)
            self._waiting += len(jobs[:room])
            self._changed.notify()
        return room

    def _room(self, job: Job) -> int:
        """Return how many jobs of a caller are accepted now."""
        if self.closed:
            return 0
        lane = self._lanes.get(job.message.lane)
        own = len(lane.jobs) if lane is not None else 0
        share = self.size // (self._busy_lanes + (own == 0)) or 1
        room = max(self.size - self._waiting, share - own, 0)
        if job.most_waiting is not None:
            room = min(room, max(0, job.most_waiting - own))
        return room

    def _busy(self) -> errors.ServiceBusy:
        if self.closed:
            return errors.ServiceBusy('The service is stopping')
        return errors.ServiceBusy(
            f'{self._waiting} requests are queued already',
            waiting=self._waiting,
        )

    def _lane(self, key: Hashable) -> Lane:
        lane = self._lanes.get(key)
        if lane is None:
            if len(self._lanes) > 2 * self._kept_lanes + _SPARE:
                self._lanes = {
                    key: lane
                    for key, lane in self._lanes.items()
                    if lane.jobs or lane.served > self._clock
                }
                self._kept_lanes = len(self._lanes)
            lane = self._lanes[key] = Lane(self._clock)
        return lane

    def _push(self, lane: Lane) -> None:
        lane.entry = next(self._numbers)
        heapq.heappush(self._ready, (lane.served, lane.entry, lane))

    def requeue(self, jobs: Sequence[Job]) -> None:
        """Put jobs that were taken before all others of their callers.

        They keep their order. Their callers get back what is not done.
        """
        with self._changed:
            self._put_back(jobs)
            self._changed.notify()

    def _put_back(self, jobs: Sequence[Job]) -> None:
        for job in reversed(jobs):
            lane = self._lane(job.message.lane)
            lane.jobs.appendleft(job)
            lane.served -= min(job.cost, job.charged)
            job.charged = 0
            self._waiting += 1
            if len(lane.jobs) == 1:
                self._busy_lanes += 1
        for key in dict.fromkeys([job.message.lane for job in jobs]):
            lane = self._lanes[key]
            if lane not in self._blocked:
                self._push(lane)

    def lend(self, jobs: Sequence[Job]) -> None:
        """Note that a stage takes jobs away, each of which comes back."""
        with self._changed:
            self.away += len(jobs)
            for job in jobs:
                job.away = True

    def give_back(self, job: Job) -> None:
        """Have the engine go on with a job that a stage had.

        One that is only to be selected waits for its turn once more.
        """
        with self._changed:
            if job.waits:
                self._put_back([job])
            elif not job.done():
                self._returned.append(job)
            self.away -= 1
            self._changed.notify()

    def take(self, most: int, timeout: float) -> list[Job]:
        """Return up to *most* jobs, none if none comes within the timeout.

        An isolated job comes in a batch of its own, and so does one with
        more instances than a batch is to have. What stages gave back comes
        beside it.

        :param timeout: in seconds
        """
        with self._changed:
            self._forget_finished()
            if not self._wait(timeout):
                return []
            taken, self._returned = self._returned, []
            for returned in taken:
                returned.away = False
            left = _INSTANCES_PER_JOB * most
            is_first = True
            while len(taken) < most and left > 0:
                job = self._next()
                if job is None or (
                    not is_first and (job.isolated or job.size > left)
                ):
                    break
                taken.append(self._pop())
                is_first = False
                left -= job.size
                if job.isolated:
                    break
            return taken

    def take_batchable(self, most: int) -> list[HostJob]:
        """Return the batchable host jobs first in line, without waiting."""
        with self._changed:
            taken: list[HostJob] = []
            left = _INSTANCES_PER_JOB * most
            while len(taken) < most:
                job = self._next()
                if not isinstance(job, HostJob) or not job.batchable:
                    break
                if job.size > left:
                    break
                taken.append(job)
                left -= self._pop().size
            return taken

    def take_all(self) -> list[Job]:
        """Return all jobs that wait, those too that wait for other jobs.

        Their callers are not charged for them.
        """
        with self._changed:
            taken: list[Job] = []
            for lane in self._lanes.values():
                taken += lane.jobs
                lane.jobs.clear()
                lane.entry = -1
            self._ready.clear()
            self._blocked.clear()
            self._waiting = self._busy_lanes = 0
            for job in taken:
                job.away = False
            # Some get a result now, and are not to be waited for.
            self._taken += [job for job in taken if job.names]
            return taken

    def _wait(self, timeout: float) -> bool:
        """Wait until a job may be taken; return whether one may.

        Where the queue is closed it waits for those alone that are inside.
        """
        if self._returned or self._next() is not None:
            return True
        if not self._waiting:
            # Nobody waits: what each was given before counts no more.
            self._clock = self._furthest
        deadline = time.monotonic() + timeout
        while not self.closed or self._waiting:
            left = deadline - time.monotonic()
            if left <= 0 or self._interrupted:
                self._interrupted = False
                return False
            self._changed.wait(
                min(left, _BLOCKED_S) if self._blocked else left
            )
            if self._returned or self._next() is not None:
                return True
        return False

    def _next(self) -> Job | None:
        """Return the job that is next in line; None: there is none."""
        if self._blocked:
            self._unblock()
        ready = self._ready
        while ready:
            _, entry, lane = ready[0]
            if entry != lane.entry:
                heapq.heappop(ready)
            elif lane.jobs[0].after and not _may_run(lane.jobs[0]):
                heapq.heappop(ready)
                lane.entry = -1
                self._blocked.append(lane)
            else:
                return lane.jobs[0]
        return None

    def _unblock(self) -> None:
        """Have lanes served again whose next job may be taken by now."""
        blocked, self._blocked = self._blocked, []
        for lane in blocked:
            if _may_run(lane.jobs[0]):
                self._push(lane)
            else:
                self._blocked.append(lane)

    def _pop(self) -> Job:
        served, _, lane = self._ready[0]
        job = lane.jobs.popleft()
        job.away = False
        self._clock = max(self._clock, served)
        job.charged = job.cost
        lane.served += job.charged
        self._furthest = max(self._furthest, lane.served)
        self._waiting -= 1
        if lane.jobs:
            lane.entry = next(self._numbers)
            heapq.heapreplace(self._ready, (lane.served, lane.entry, lane))
        else:
            self._busy_lanes -= 1
            lane.entry = -1
            heapq.heappop(self._ready)
        if job.names:
            self._taken.append(job)
        return job

    def _forget_finished(self) -> None:
        """Forget the jobs taken last that have their results by now.

        Those that take longer are looked at when there are twice as many.
        """
        taken, self._taken = self._taken, []
        look_at_all = len(self._pending) > 2 * self._kept_pending + _FEW
        if look_at_all:
            taken += self._pending
            self._pending = []
        last = self._last
        for job in taken:
            if not job.future.done():
                self._pending.append(job)
                continue
            for name in job.names:
                if last.get(name) is job:
                    del last[name]
        if look_at_all:
            self._kept_pending = len(self._pending)

    def interrupt(self) -> None:
        """End the wait of :meth:`take`: there is something else to do."""
        with self._changed:
            self._interrupted = True
            self._changed.notify_all()

    def close(self) -> None:
        """Accept no more jobs; those inside are still handed out."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()


def _may_run(job: Job) -> bool:
    """Say whether all that a job has to come after have their results."""
    while job.after:
        if not job.after[-1].future.done():
            return False
        job.after.pop()
    return True
