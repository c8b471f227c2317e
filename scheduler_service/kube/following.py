"""Threads that follow the objects of one kind at an API server.

A :class:`Follower` lists, then watches. Each watch resumes at the version
where the last one ended; where the API server no longer has that version, the
objects are listed anew. A :class:`Recounter` only lists: it serves a daemon
that binds pods itself, and has to find those that ended or that another
scheduler placed.
"""

from __future__ import annotations

import logging

from scheduler_service.engine.health import Health
from scheduler_service.extender_wire import WireError
from scheduler_service.kube.api import (
    ApiLost,
    ApiServer,
    VersionExpired,
    Watch,
)
from scheduler_service.kube.nodes import NodeSink
from scheduler_service.kube.pod_use import SELECTOR, PodSink
from scheduler_service.worker import Worker

LOG = logging.getLogger(__name__)
_RESUME_S = 0.05
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0


class Follower(Worker):
    """A thread that follows the objects of one kind by a list and watches.

    :param selector: of their fields
    :param name: of the objects in texts and metrics, where not all of the kind
        are followed
    """

    def __init__(
        self,
        api: ApiServer,
        kind: str,
        selector: str,
        sink: NodeSink | PodSink,
        health: Health,
        name: str = '',
    ) -> None:
        super().__init__(f'kube-{name or kind}', health.thread_ended)
        self._api = api
        self._resource = kind
        self._kind = name or kind
        self._selector = selector
        self._sink = sink
        self._health = health
        self._cause = f'kubernetes {self._kind}'
        # Used from the next watch on.
        self._next: ApiServer | None = None
        # At which the next watch begins; empty: after a list.
        self._version = ''
        self._watch: Watch | None = None

    def wake(self) -> None:
        """End the watch."""
        if self._watch is not None:
            self._watch.close()

    def _run(self) -> None:
        pause = _FIRST_PAUSE_S
        while not self._stopping.is_set():
            try:
                self._follow()
                pause = _FIRST_PAUSE_S
                # A server may end each watch at once.
                self._stopping.wait(_RESUME_S)
                continue
            except VersionExpired:
                self._health.count('kubernetes_relists', self._kind)
                self._version = ''
                self._stopping.wait(_FIRST_PAUSE_S)
                continue
            except ApiLost as fault:
                self._lose(str(fault))
            except Exception as fault:
                LOG.exception('%s cannot be followed', self._kind)
                self._version = ''
                self._lose(str(fault))
            self._stopping.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _lose(self, why: str) -> None:
        if self._stopping.is_set():
            return
        self._health.count('kubernetes_watch_errors', self._kind)
        self._sink.set_lost(True)
        self._health.degrade(
            self._cause,
            f'{self._kind} of the cluster are not followed, the API server '
            f'does not answer: {why[:300]}',
            f'{self._kind.capitalize()} of the cluster are followed again',
        )

    def _followed(self) -> None:
        self._sink.set_lost(False)
        self._health.recover(self._cause)

    def use(self, api: ApiServer) -> None:
        """Follow by another client: from the next watch on, with a new list.

        A watch lasts 30 seconds.
        """
        self._next = api

    def _follow(self) -> None:
        api, self._next = self._next, None
        if api is not None:
            self._api, self._version = api, ''
        if not self._version:
            listed, version = self._api.list(self._resource, self._selector)
            self._sink.replace(listed)
            self._version = version
        watch = self._watch = self._api.watch(
            self._resource, self._version, self._selector
        )
        self._followed()
        if self._stopping.is_set():
            watch.close()
        for event in watch.events():
            if event.type != 'BOOKMARK':
                self._health.count('kubernetes_events', self._kind)
                change = (
                    self._sink.remove
                    if event.type == 'DELETED'
                    else self._sink.put
                )
                try:
                    change(event.object)
                except WireError as fault:
                    LOG.warning(
                        'An object is left out of %s: %s', self._kind, fault
                    )
            self._version = event.version or self._version


class Recounter(Follower):
    """A thread that lists placed pods.

    :param interval: seconds between two lists
    """

    def __init__(
        self, api: ApiServer, interval: float, sink: PodSink, health: Health
    ) -> None:
        super().__init__(api, 'pods', SELECTOR, sink, health)
        self._interval = interval
        self._pods = sink

    def _follow(self) -> None:
        self._pods.begin_listing()
        self._pods.replace(self._api.list('pods', SELECTOR)[0])
        self._followed()
        self._stopping.wait(self._interval)
