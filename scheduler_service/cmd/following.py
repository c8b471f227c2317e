"""The nodes and pods of a cluster, as the options say."""

from __future__ import annotations

import functools
import platform
import uuid
from collections.abc import Callable
from typing import Any

from scheduler_service.cmd.node_options import node_reader
from scheduler_service.engine.factory import counts_pods, pod_evaluator
from scheduler_service.engine.pod_use import PodUse
from scheduler_service.engine.pods import PodEvaluator
from scheduler_service.engine.scheduler import Scheduler
from scheduler_service.engine.sent_nodes import UnknownNodes
from scheduler_service.extender.nodes import has_nodes
from scheduler_service.kube.api import Address, ApiServer
from scheduler_service.kube.following import Follower
from scheduler_service.kube.hosts import HostWriter
from scheduler_service.kube.nodes import HostKeeper, NodeSink
from scheduler_service.kube.pods import SELECTOR, PodSink
from scheduler_service.kube.recounting import PodLister, Recounter
from scheduler_service.store.connection import Store


def address_of(conf: Any) -> Address:
    """Return where the API server is."""
    group, binding = conf.kubernetes, conf.extender
    return Address(
        group.kubeconfig,
        group.context,
        binding.api_server,
        binding.api_token_file,
        binding.api_ca_file,
    )


class Following:
    """All that follows the API server of a cluster for one daemon.

    :param conf: parsed options
    :raises ConfigurationError: an option cannot be used
    """

    def __init__(self, conf: Any, store: Store, scheduler: Scheduler) -> None:
        group = conf.kubernetes
        self._conf = conf
        self._scheduler = scheduler
        self.use = PodUse(
            group.assume_seconds,
            tell=functools.partial(scheduler.health.count, 'pods_assumed'),
        )
        self._reader = node_reader(conf)
        self.nodes = NodeSink(self._reader)
        self._parts: list[Any] = []
        self._followers: list[Follower] = []
        self._api: ApiServer | None = None
        health = scheduler.health
        pods = PodSink(self.use, conf.extender.domain)
        if not group.enabled:
            self._recount(conf, pods)
            return
        api = self._api = ApiServer(address_of(conf))
        self._followers = [
            Follower(api, 'nodes', '', self.nodes, health),
            Follower(api, 'pods', SELECTOR, pods, health),
        ]
        self._parts = [*self._followers]
        if group.keep_hosts:
            # Daemons may have the same name, but only one may write.
            name = conf.scheduler.server or platform.node()
            holder = f'{name[:200]}/{uuid.uuid4().hex[:8]}'
            writer = HostWriter(store, holder)
            self._parts.append(HostKeeper(self.nodes, writer))

    def _recount(self, conf: Any, pods: PodSink) -> None:
        """Count pods by lists, where they are bound and not followed."""
        group = conf.extender
        if conf.http.bind_port is None or not counts_pods(conf):
            return
        lister = PodLister(
            group.api_server, group.api_token_file, group.api_ca_file
        )
        health = self._scheduler.health
        self._parts = [Recounter(lister, group.count_interval, pods, health)]

    def evaluator(self) -> PodEvaluator:
        """Return what judges nodes for pods.

        :raises ConfigurationError: a filter or weigher does not load
        """
        passing = self._conf.extender.unknown_nodes == 'pass'
        return pod_evaluator(
            self._conf,
            self._scheduler,
            self.use,
            UnknownNodes(
                self._reader, self.nodes.find, passing, self._knows_nodes
            ),
        )

    def _knows_nodes(self) -> bool:
        """Whether nodes that are followed were listed, or kept before."""
        if self._api is None or self.nodes.complete:
            return True
        snapshot = self._scheduler.snapshot()
        return snapshot is not None and has_nodes(snapshot.hosts)

    def check(self, conf: Any) -> Callable[[], None]:
        """Check where the API server is, and with which credentials.

        :return: has them used; all is listed anew if they changed
        :raises ConfigurationError: they cannot be used
        """
        if self._api is None:
            return lambda: None
        api = ApiServer(address_of(conf))

        def take() -> None:
            if self._api is not None and api.identity != self._api.identity:
                self._api = api
                for one in self._followers:
                    one.use(api)

        return take

    def start(self) -> None:
        """Start following."""
        for one in self._parts:
            one.start()

    def stop(self, timeout: float) -> None:
        """Follow no more.

        :param timeout: seconds to wait for each part
        """
        for one in self._parts:
            one.stop(timeout)
