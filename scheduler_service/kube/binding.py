"""Binds pods whose use of a host is claimed first.

A thread of the HTTP server calls :meth:`PodBinder.bind`, which waits for the
engine: it claims, and hands the job to the stage *bind*, whose threads call
the API server. A binding that fails is undone by the cycle. One of which
nobody knows whether it was made keeps its claim until the pod is seen, or was
not for a while.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from scheduler_service import errors
from scheduler_service.columns import HostTable
from scheduler_service.engine.jobs import HostJob, PodJob
from scheduler_service.engine.messages import DeliveredMessage
from scheduler_service.engine.queue import RequestQueue
from scheduler_service.kube.api import ApiServer
from scheduler_service.kube.evaluator import PodEvaluator, PodPlace
from scheduler_service.kube.pod_book import PodBook
from scheduler_service.kube.pod_reader import Pod, PodMetadata
from scheduler_service.model import Request
from scheduler_service.model.limits import NAME_LENGTH
from scheduler_service.stages import WaitingStage

_MESSAGE = DeliveredMessage(lane='pods')
# The engine answers a job whose deadline has passed, unless the database
# keeps it waiting.
_LONGER_S = 0.5
# How long a pod waits for claims to be released whose pods are gone.
_RELEASE_S = 2.0


class PodBinder(WaitingStage):
    """Binds pods at the API server: those that take something claimed.

    :param put: queues a job for the engine
    :param book: of what pods take; None: it is not claimed
    :ivar api: where pods are bound
    :ivar timeout: seconds within which a pod has to be bound
    """

    name = 'bind'
    kinds = ('pod',)

    def __init__(
        self,
        evaluator: PodEvaluator,
        put: Callable[[PodJob], Future[Any]],
        book: PodBook | None,
        queue: RequestQueue,
        threads: int,
    ) -> None:
        super().__init__('kube-bind', threads, queue)
        self._evaluator, self._put = evaluator, put
        self._book = book
        self.api: ApiServer
        self.timeout = 0.0

    def use(self, api: ApiServer, timeout: float) -> None:
        """Bind at another API server from now on."""
        self.api, self.timeout = api, timeout

    def bind(self, pod: PodMetadata, node: str) -> None:
        """Bind a pod to a node; a repeated call succeeds, too.

        :raises Conflict: what the pod takes is not free any more
        :raises ExtenderFailed: the API server refuses, or is unreachable
        :raises StoreUnavailable: the claim was not made in time
        """
        deadline = time.monotonic() + self.timeout
        read = None
        if self._evaluator.booked and not self._evaluator.knows(pod.uid):
            # Another daemon filtered nodes for it.
            read = self._read(pod)
        place = self._evaluator.reserve(pod.uid, node, read)
        bound = False
        try:
            if place is not None and place.amounts and self._evaluator.booked:
                try:
                    self._bind_claimed(pod, place, deadline)
                except errors.NoValidHost:
                    # Claims of pods that are gone may be in the way.
                    seconds = min(_RELEASE_S, deadline - time.monotonic())
                    if not (
                        place.left
                        and self._book
                        and self._book.wait_released(place.left, seconds)
                    ):
                        raise
                    self._bind_claimed(pod, place, deadline)
            else:
                self._call(pod, node, deadline)
            bound = True
        finally:
            if place is not None:
                self._evaluator.end_reservation(pod.uid, bound)

    def _read(self, pod: PodMetadata) -> Pod | None:
        found = self.api.pod(pod.namespace, pod.name, self.timeout)
        if found is None or (pod.uid and found.metadata.uid != pod.uid):
            raise errors.NotFound(
                f'There is no pod {pod.namespace}/{pod.name} of this uid'
            )
        pod.uid = found.metadata.uid
        is_other = bool(found.spec.nodeName) or self._evaluator.ignores(found)
        return None if is_other else found

    def _bind_claimed(
        self, pod: PodMetadata, place: PodPlace, deadline: float
    ) -> None:
        job = PodJob(
            request=Request(
                request_id=f'{pod.namespace}/{pod.name}'[:NAME_LENGTH],
                project_id=pod.namespace,
                instance_uuids=[pod.uid],
                amounts=place.amounts,
            ),
            host=place.host,
            node=place.node,
            name=pod.name,
            deadline=deadline,
            message=_MESSAGE,
        )
        future = self._put(job)
        try:
            future.result(max(0.0, deadline - time.monotonic()) + _LONGER_S)
        except (TimeoutError, errors.TooLate):
            raise errors.StoreUnavailable(
                'What the pod takes could not be claimed in time'
            ) from None
        if job.doubt is not None:
            raise job.doubt

    def run(self, jobs: Sequence[HostJob], table: HostTable) -> None:
        """Take away the jobs of pods; they come back bound."""
        for job in jobs:
            assert isinstance(job, PodJob)
            self._lend(job, partial(self._bind_job, job))

    def _bind_job(self, job: PodJob) -> None:
        space, [uid] = job.request.project_id, job.request.instance_uuids
        pod = PodMetadata(str(space), job.name, uid)
        try:
            self._call(pod, job.node, job.deadline or 0.0)
        except errors.ExtenderFailed as error:
            if not error.facts.get('in_doubt'):
                raise
            job.doubt = error

    def _call(self, pod: PodMetadata, node: str, deadline: float) -> None:
        timeout = deadline - time.monotonic()
        self.api.bind(pod.namespace, pod.name, pod.uid, node, timeout)
