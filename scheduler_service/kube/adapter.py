"""Builds the parts of the Kubernetes adapter from the options."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from scheduler_service import adapter as base
from scheduler_service import conf as options
from scheduler_service import errors, factory
from scheduler_service.engine.health import Health
from scheduler_service.engine.ports import Stage
from scheduler_service.engine.queue import RequestQueue
from scheduler_service.filters.hosts.compute_filter import ComputeFilter
from scheduler_service.http.routes import Route
from scheduler_service.kube import node_reader, verbs
from scheduler_service.kube.api import (
    Address,
    ApiLost,
    ApiServer,
    VersionExpired,
)
from scheduler_service.kube.evaluator import (
    PodDecisions,
    PodEvaluator,
    PodPipeline,
)
from scheduler_service.kube.node_reader import SentNodes
from scheduler_service.kube.nodes import (
    Follower,
    HostKeeper,
    NodeSink,
    Recounter,
)
from scheduler_service.kube.pod_book import PodBook
from scheduler_service.kube.pod_load import (
    LoadScoring,
    OfferedResources,
    PodComputeFilter,
)
from scheduler_service.kube.pod_reader import IgnoredPods, PodReader
from scheduler_service.kube.pod_use import (
    NOMINATED,
    SELECTOR,
    NominationSink,
    PodSink,
    PodUse,
)
from scheduler_service.kube.verbs import PodBinder
from scheduler_service.model.inventory import class_of
from scheduler_service.pipeline import HostPipeline
from scheduler_service.scheduler import Scheduler
from scheduler_service.store.connection import Store
from scheduler_service.store.records import leases
from scheduler_service.store.records.audit import Finding
from scheduler_service.weighers.base import ColumnWeigher

# How many times as long as a bind may take its pod may stay unseen.
_BINDS_S = 3.0
# How long claims and pods have to differ for an audit, in seconds.
_LASTING_S = 3.0
# Weighers of load that are replaced for pods, and the class that they weigh.
_CLASS_OF_WEIGHER = {
    'CPUWeigher': 'VCPU',
    'RAMWeigher': 'MEMORY_MB',
    'DiskWeigher': 'DISK_GB',
}


class Adapter(base.Adapter):
    """Follows the API server of a cluster, and serves its kube-scheduler.

    :param conf: parsed options
    :raises ConfigurationError: an option cannot be used
    """

    def __init__(self, conf: Any, store: Store, scheduler: Scheduler) -> None:
        group = conf.kubernetes
        self._scheduler = scheduler
        self._use = PodUse(
            group.assume_seconds,
            on_outcome=functools.partial(
                scheduler.health.count, 'pods_assumed'
            ),
        )
        self._reader = node_reader.of_options(conf)
        self._nodes = NodeSink(self._reader)
        self._parts: list[Any] = []
        self._followers: list[Follower] = []
        self._api: ApiServer | None = None
        health = scheduler.health
        self._claims_all = _claims_pods(conf)
        book = self._book = _book(conf, store)
        pods = PodSink(self._use, _pod_reader(conf), book)
        nominated = NominationSink(self._use, _pod_reader(conf))
        if group.enabled:
            api = self._api = ApiServer(_address_of(conf))
            self._followers = [
                Follower(api, 'nodes', '', self._nodes, health),
                Follower(api, 'pods', SELECTOR, pods, health),
                Follower(
                    api, 'pods', NOMINATED, nominated, health, 'nominations'
                ),
            ]
            self._parts = [*self._followers]
            if group.keep_hosts:
                holder = leases.new_holder(conf.scheduler.server)
                keeper = HostKeeper(
                    store, holder, self._nodes, book, health.thread_ended
                )
                self._parts.append(keeper)
        elif _counts_pods(conf):
            self._parts = [
                Recounter(
                    ApiServer(_binding_address(conf)),
                    conf.extender.count_interval,
                    pods,
                    health,
                )
            ]
        self._decisions = PodDecisions(
            scheduler.recorder.put, group.record_decisions
        )
        self._evaluator: PodEvaluator | None = None
        self._binder: PodBinder | None = None
        if conf.http.bind_port is not None:
            self._evaluator = self._new_evaluator(conf)
            scheduler.enter(functools.partial(self._stages, conf))

    def _stages(
        self,
        conf: Any,
        _: HostPipeline,
        __: Health,
        queue: RequestQueue,
        *more: Any,
    ) -> list[Stage]:
        assert self._evaluator is not None
        binder = self._binder = PodBinder(
            self._evaluator,
            self._scheduler.put,
            self._book,
            queue,
            conf.http.threads,
        )
        return [binder]

    def _new_evaluator(self, conf: Any) -> PodEvaluator:
        return PodEvaluator(
            _pod_pipeline(conf),
            self._scheduler.newest_copy,
            self._use,
            _pod_reader(conf),
            SentNodes(self._reader, self._nodes.find),
            assuming=_counts_pods(conf),
            booked=self._claims_all,
            of_aggregates=self._book is not None,
            waiting=conf.kubernetes.enabled,
            are_nodes_loaded=self._are_nodes_loaded,
        )

    def _are_nodes_loaded(self) -> bool:
        """Whether followed nodes were listed, or stored by an earlier run."""
        if self._api is None or self._nodes.complete:
            return True
        snapshot = self._scheduler.snapshot()
        return snapshot is not None and node_reader.has_nodes(snapshot.hosts)

    def readiness(self) -> dict[str, Callable[[], bool]]:
        """Return further checks of ``/readyz``, by name."""
        return {'nodes': self._are_nodes_loaded}

    def routes(self, conf: Any) -> tuple[list[Route], list[str]]:
        """Return the kube-scheduler's routes; all of them need a token."""
        group, bind = conf.extender, None
        if self._evaluator is None:
            return [], []
        if group.api_server and self._binder is not None:
            api = ApiServer(_binding_address(conf))
            self._binder.use(api, group.api_timeout)
            bind = self._binder.bind
        health, limit = self._scheduler.health, conf.http.max_body_bytes
        served = verbs.routes(
            self._evaluator, health, self._decisions, bind, limit
        )
        return served, []

    def check(self, conf: Any) -> Callable[[], None]:
        """Check the API server's address and the pipeline for pods.

        :return: applies them; with other credentials all is listed anew
        :raises ConfigurationError: an option cannot be used
        """
        pods = _pod_pipeline(conf) if self._evaluator else None
        if _claims_pods(conf) and not self._claims_all:
            raise errors.ConfigurationError(
                '[extender] api_server: what pods take is claimed from the '
                'start on: restart the daemon to have it bind them'
            )
        api = None if self._api is None else ApiServer(_address_of(conf))

        def apply() -> None:
            self._decisions.enabled = conf.kubernetes.record_decisions
            if self._evaluator is not None and pods is not None:
                self._evaluator.use(pods)
            if api is None or self._api is None:
                return
            if api.identity != self._api.identity:
                self._api = api
                for follower in self._followers:
                    follower.use(api)

        return apply

    def start(self) -> None:
        for part in self._parts:
            part.start()

    def stop(self, timeout: float) -> None:
        """Stop following.

        :param timeout: seconds to wait for each part
        """
        for part in self._parts:
            part.stop(timeout)


def audit(conf: Any, store: Store) -> list[Finding]:
    """Return where the claims of pods are not those of the cluster's pods.

    What is being written differs for a moment, so that a difference has to
    last.

    :raises ConfigurationError: what pods take cannot be claimed
    :raises StoreUnavailable: the database does not answer
    """
    book = _book(conf, store)
    if book is None:
        return []
    nodes = NodeSink(node_reader.of_options(conf))
    pods = PodSink(PodUse(0.0), _pod_reader(conf), book)
    keeper = HostKeeper(store, 'audit', nodes, book)

    def compare(api: ApiServer) -> list[Finding]:
        nodes.replace(api.list('nodes')[0])
        pods.replace(api.list('pods', SELECTOR)[0])
        return keeper.compare()

    try:
        api = ApiServer(_address_of(conf))
        found = compare(api)
        if found:
            time.sleep(_LASTING_S)
            found = [each for each in compare(api) if each in found]
    except (ApiLost, VersionExpired, errors.ConfigurationError) as fault:
        text = f'the pods of the cluster are not known: {fault}'
        return [Finding(kind='pod', text=text)]
    return found


def _book(conf: Any, store: Store) -> PodBook | None:
    """Return the book of what pods take; None where hosts are not kept.

    :raises ConfigurationError: what they take of hosts cannot be claimed
    """
    of_hosts, group = _claims_pods(conf), conf.kubernetes
    if not (group.enabled and group.keep_hosts):
        return None
    return PodBook(store, _BINDS_S * conf.extender.api_timeout, of_hosts)


def _claims_pods(conf: Any) -> bool:
    """Whether what pods take of hosts is claimed.

    What they take of aggregates is, wherever hosts are kept.

    :raises ConfigurationError: it has to be, and hosts are not kept
    """
    group = conf.kubernetes
    needed = group.shared_hosts or bool(
        group.enabled and conf.extender.api_server
    )
    kept = group.enabled and group.keep_hosts
    if needed and not kept:
        raise errors.ConfigurationError(
            'Pods are bound, and hosts are shared with instances, only where '
            'what pods take is claimed: that needs [kubernetes] enabled and '
            'keep_hosts'
        )
    return bool(kept and (needed or group.managed_resources is not None))


def _address_of(conf: Any) -> Address:
    return _binding_address(conf)._replace(
        kubeconfig=conf.kubernetes.kubeconfig, context=conf.kubernetes.context
    )


def _binding_address(conf: Any) -> Address:
    group = conf.extender
    return Address(
        url=group.api_server,
        token_file=group.api_token_file,
        ca_file=group.api_ca_file,
    )


def _pod_reader(conf: Any) -> PodReader:
    domain, names = conf.extender.domain, conf.kubernetes.managed_resources
    shared = conf.kubernetes.shared_hosts
    if names is None:
        return PodReader(domain, shared=shared)
    classes = {class_of(name, domain) for name in names}
    if None in classes:
        raise errors.ConfigurationError(
            f'[kubernetes] managed_resources: {names}: not all are extended '
            'resources, such as example.com/fpga'
        )
    listed = frozenset(filter(None, classes))
    return PodReader(domain, listed, shared)


def _counts_pods(conf: Any) -> bool:
    group = conf.extender
    recounted = bool(group.api_server) and group.count_interval > 0.0
    return bool(conf.kubernetes.enabled or recounted)


def _pod_pipeline(conf: Any) -> PodPipeline:
    enabled, weighers = factory.plugged(conf, 'extender')
    filters = [
        PodComputeFilter() if type(plugin) is ComputeFilter else plugin
        for plugin in enabled
    ]
    settings = options.settings(conf)
    pipeline = HostPipeline(
        [*filters, OfferedResources()],
        [
            weigher
            for weigher in weighers
            if not isinstance(weigher, ColumnWeigher)
        ],
        settings,
        check_room=False,
    )
    multipliers = {
        _CLASS_OF_WEIGHER[weigher.name]: weigher.sign
        * weigher.multiplier(settings)
        for weigher in weighers
        if _counts_pods(conf) and weigher.name in _CLASS_OF_WEIGHER
    }
    return PodPipeline(pipeline, LoadScoring(multipliers), _ignored(conf))


def _ignored(conf: Any) -> IgnoredPods:
    group = conf.kubernetes
    labels = [text.partition('=') for text in group.ignored_labels]
    return IgnoredPods(
        frozenset(group.ignored_namespaces),
        tuple((key, value if eq else None) for key, eq, value in labels),
    )
