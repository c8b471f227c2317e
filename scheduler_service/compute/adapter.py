"""Builds the parts of the compute service's adapter from the options."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any

from scheduler_service import adapter as base
from scheduler_service import conf as core_options
from scheduler_service import errors, factory
from scheduler_service.compute import endpoint, host_order, options
from scheduler_service.compute.endpoint import RebuildCheck
from scheduler_service.compute.follower.cells import MirrorOptions
from scheduler_service.compute.follower.mirror import FirstPass, Mirror
from scheduler_service.compute.follower.providers import ProviderFollower
from scheduler_service.compute.host_order import ExternalOptions, HostOrderer
from scheduler_service.http.routes import Listener, Route
from scheduler_service.pipeline import HostPipeline
from scheduler_service.rpc import transport
from scheduler_service.scheduler import Scheduler
from scheduler_service.store.connection import Store
from scheduler_service.store.records import leases
from scheduler_service.store.records.leases import Progress
from scheduler_service.worker import Worker

# How often a shadow reads changes at least, in seconds.
_SHADOW_POLL_S = 0.2
_CAUSE = 'mirror'


class Adapter(base.Adapter):
    """Serves a compute service, follows its databases and its placement.

    :param conf: parsed options
    :ivar mirror: follows the databases; None: they are not followed
    :ivar providers: follows placement; None: placement is not used
    :raises ConfigurationError: an option cannot be used
    """

    def __init__(self, conf: Any, store: Store, scheduler: Scheduler) -> None:
        options.check(conf)
        self._scheduler = scheduler
        self._store = store
        self._started = False
        self._endpoint: endpoint.ComputeEndpoint | None = None
        self.mirror: Mirror | None = None
        self.providers: ProviderFollower | None = None
        self._rebuilds = RebuildCheck(
            store, scheduler.snapshot, self._read_changes
        )
        # Threads of a shadow, in the order in which they start.
        self._shadow: list[Worker] = []
        self._orderer: HostOrderer | None = None
        if conf.compute.external_scheduler:
            pipeline, how = _ordering(conf)
            record = scheduler.recorder.put
            self._orderer = HostOrderer(
                pipeline, scheduler.snapshot, record, how, self._rebuilds
            )
        if conf.compute.api_database:
            self._follow(conf)

    def _follow(self, conf: Any) -> None:
        store, health = self._store, self._scheduler.health
        with_placement = conf.compute.use_placement
        self._first_pass = FirstPass(store, with_placement)
        if with_placement:
            self.providers = self._follow_placement(conf)
        with core_options.place(conf, options.GROUP, 'api_database'):
            mirror = self.mirror = Mirror(
                store,
                self._mirror_options(conf),
                health,
                leases.new_holder(conf.scheduler.server),
                self.providers.touch if self.providers else None,
                lambda: self._first_pass.record(Progress.NOTHING),
                self._on_hosts_read,
                self.providers.add_new if self.providers else None,
            )
        self._scheduler.host_state_writer.is_current = lambda: (
            mirror.is_current
        )
        if conf.compute.shadow:
            self._shadow = self._new_shadow(
                conf, self._client, self.providers, mirror
            )

    def _on_hosts_read(self) -> None:
        self._first_pass.record(Progress.HOSTS)
        if self.providers is not None:
            self.providers.read_all(
                lambda: self._first_pass.record(Progress.CAPACITY)
            )

    def _new_shadow(self, conf: Any, *parts: Any) -> list[Worker]:
        """Return what decides copies of requests, and what reads these.

        :param parts: that follow placement and the databases
        """
        from scheduler_service.bus.listener import Listener
        from scheduler_service.compute.shadow import Shadow

        group, scheduler = conf.compute, self._scheduler
        broker = transport.rabbit(conf, group.transport_url or None)
        if broker is None:
            raise errors.ConfigurationError(
                '[compute] transport_url: a shadow needs rabbit, not inproc'
            )
        scheduler.introspection.is_shadow = True
        endpoint = self._new_endpoint(conf)
        rate = group.shadow_placement_rate
        shadow = Shadow(
            scheduler, self._store, endpoint, self._rebuilds, rate, *parts
        )
        of = group.control_exchange, group.topic, shadow.take, scheduler.health
        return [shadow, Listener(broker, *of)]

    def _follow_placement(self, conf: Any) -> ProviderFollower:
        """Complete claims in placement; return its providers' follower."""
        from scheduler_service.compute.placement import options as placement
        from scheduler_service.compute.placement.candidate_stage import (
            CandidateStage,
            RefusalChecks,
        )
        from scheduler_service.compute.placement.candidates import (
            SharedProviders,
        )
        from scheduler_service.compute.placement.claimer import (
            PlacementClaimer,
        )
        from scheduler_service.compute.placement.client import PlacementClient

        store, health = self._store, self._scheduler.health
        self._client = client = PlacementClient(placement.new_adapter(conf))
        shared = SharedProviders(client, conf.compute.placement_interval)
        follower = ProviderFollower(
            store,
            client,
            health,
            conf.compute.placement_interval,
            lambda: self.mirror is not None and self.mirror.leading,
            shared,
        )
        self._scheduler.enter(
            lambda pipeline, health, queue, undoer: [
                CandidateStage(client, shared, queue),
                RefusalChecks(client, queue, self._catch_up),
                PlacementClaimer(
                    client,
                    store,
                    health,
                    queue,
                    undoer,
                    lambda host: follower.touch([host]),
                    shared,
                ),
            ]
        )
        return follower

    def _read_changes(self) -> bool:
        """Have the mirror read what is new; return whether it has."""
        return self.mirror is not None and self.mirror.catch_up()

    def _catch_up(self, hosts: Sequence[str], since: float) -> bool:
        """Read what changed, new hosts, and the providers of these.

        :return: whether anything was read, or hosts were added since that time
        """
        assert self.providers is not None
        is_read = self._read_changes()
        has_new = self.providers.read_new(since)
        return self.providers.catch_up(hosts) or has_new or is_read

    def _mirror_options(self, conf: Any) -> MirrorOptions:
        stated = {
            field.name: conf.compute[field.name]
            for field in dataclasses.fields(MirrorOptions)
            if field.name in conf.compute
        }
        if conf.compute.shadow:
            # No casts of the computes wake it.
            stated['poll_interval'] = min(
                stated['poll_interval'], _SHADOW_POLL_S
            )
        return MirrorOptions(
            **stated,
            with_capacity=self.providers is None,
            with_images=(
                conf.filter_scheduler.image_props_weight_multiplier != 0
            ),
        )

    def endpoints(self, conf: Any, name: str) -> list[Any]:
        """Return the endpoints to serve on the bus.

        :param name: of the daemon
        :return: (URL of the bus, target, dispatcher) of each; None in place
            of a URL: the daemon's own bus
        """
        group = conf.compute
        if not group.enabled:
            return []
        self._endpoint = self._new_endpoint(conf)
        target = transport.Target(
            group.control_exchange, group.topic, server=name, fanout=True
        )
        url = group.transport_url or None
        return [(url, target, endpoint.dispatcher(self._endpoint))]

    def _new_endpoint(self, conf: Any) -> endpoint.ComputeEndpoint:
        return endpoint.ComputeEndpoint(
            self._scheduler,
            self._rebuilds,
            self.mirror.wake if self.mirror else lambda: None,
            conf.compute.reason == 'full',
        )

    def routes(self, conf: Any) -> tuple[list[Route], list[str]]:
        """Return routes for the HTTP server, and paths that need no token."""
        group = conf.compute
        has_port = group.external_scheduler_bind_port is not None
        if self._orderer is None or has_port:
            return [], []
        made = host_order.routes(self._orderer, conf.http.max_body_bytes)
        needs_token = group.external_scheduler_authentication
        return made, [] if needs_token else [*host_order.PATHS]

    def listeners(self, conf: Any) -> list[Listener]:
        """Return the listener for external calls, if its port is set.

        :raises ConfigurationError: other machines could connect without a
            token
        """
        port = conf.compute.external_scheduler_bind_port
        if self._orderer is None or port is None:
            return []
        made = host_order.listener(
            self._orderer,
            conf,
            self._scheduler.health,
            lambda: self._scheduler.snapshot() is not None,
        )
        return [made]

    def is_filled(self) -> bool:
        """Whether the store has the hosts; else start following.

        :raises StoreUnavailable: our database does not answer
        """
        if self.mirror is None:
            return True
        health = self._scheduler.health
        missing = self._first_pass.missing()
        if not missing:
            health.recover(_CAUSE)
            return True
        health.degrade(
            _CAUSE,
            f'no requests are accepted before {missing} were read once',
            'Hosts of the compute service are read, requests are accepted',
            logging.INFO,
        )
        self._start_following()
        return False

    def check(self, conf: Any) -> Callable[[], None]:
        """Check changed options; return a function that applies them.

        :raises ConfigurationError: an option cannot be used
        """
        ordering = _ordering(conf) if self._orderer else None

        def apply() -> None:
            if self._orderer is not None and ordering is not None:
                self._orderer.use(*ordering)
            if self._endpoint is not None:
                self._endpoint.full_reasons = conf.compute.reason == 'full'
            if self.mirror is not None:
                self.mirror.use(self._mirror_options(conf))
            if self.providers is not None:
                self.providers.interval = conf.compute.placement_interval

        return apply

    def start(self) -> None:
        """Start following, and what a shadow has."""
        self._start_following()
        for part in self._shadow:
            part.start()

    def _start_following(self) -> None:
        """Start following, unless it has started before."""
        if self._started:
            return
        self._started = True
        for part in (self.mirror, self.providers):
            if part is not None:
                part.start()

    def stop(self, timeout: float) -> None:
        """Stop following.

        :param timeout: seconds to wait for writes under way
        """
        for part in (*self._shadow[::-1], self.mirror, self.providers):
            if part is not None:
                part.stop(timeout)


def _ordering(conf: Any) -> tuple[HostPipeline, ExternalOptions]:
    """Return the pipeline and options for the order of sent hosts.

    :raises ConfigurationError: a filter or weigher does not load
    """
    ours, settings = conf.compute, core_options.settings(conf)
    pipeline = HostPipeline(*factory.plugged(conf), settings, check_room=False)
    return pipeline, ExternalOptions(
        ours.external_weight_multiplier, ours.external_unknown_hosts == 'last'
    )
