"""What follows other services for a daemon, as the options say."""

from __future__ import annotations

import logging
import platform
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from scheduler_service import errors
from scheduler_service.cmd.following import Following
from scheduler_service.conf import placement
from scheduler_service.engine.factory import policy_of
from scheduler_service.engine.scheduler import Scheduler
from scheduler_service.extender.config import Extender
from scheduler_service.mirror.first_pass import FirstPass
from scheduler_service.mirror.mirror import Mirror, MirrorOptions
from scheduler_service.mirror.providers import ProviderFollower
from scheduler_service.store.connection import Store
from scheduler_service.store.records.mirror_progress import Progress

_CAUSE = 'mirror'


class Mirroring:
    """All that follows other services for one daemon.

    :param conf: parsed options
    :raises ConfigurationError: an option cannot be used
    """

    def __init__(self, conf: Any, store: Store, scheduler: Scheduler) -> None:
        self.mirror: Mirror | None = None
        self.providers: ProviderFollower | None = None
        self.cluster = Following(conf, store, scheduler)
        self._started = False
        group = conf.compute
        if not group.api_database:
            if group.use_placement:
                raise errors.ConfigurationError(
                    '[compute] use_placement needs [compute] api_database: '
                    'providers are found by the uuids of compute nodes'
                )
            return
        health = self._health = scheduler.health
        self._first_pass = FirstPass(store, group.use_placement)
        if group.use_placement:
            self.providers = self._follow_placement(conf, store, scheduler)
        # Daemons may have the same name, but only one may write.
        name = conf.scheduler.server or platform.node()
        holder = f'{name[:200]}/{uuid.uuid4().hex[:8]}'
        on_hosts = self.providers.touch if self.providers else None
        self.mirror = Mirror(
            store,
            self._options(conf),
            health,
            holder,
            on_hosts,
            lambda: self._first_pass.record(Progress.NOTHING),
            self._on_hosts_read,
            self.providers.complete_new if self.providers else list,
        )
        mirror = self.mirror
        scheduler.host_state_writer.is_current = lambda: mirror.is_current

    def _on_hosts_read(self) -> None:
        """Record that the hosts are there; then their capacity is read."""
        self._first_pass.record(Progress.HOSTS)
        if self.providers is not None:
            self.providers.read_all(
                lambda: self._first_pass.record(Progress.CAPACITY)
            )

    def _follow_placement(
        self, conf: Any, store: Store, scheduler: Scheduler
    ) -> ProviderFollower:
        """Have claims made in placement; return what follows providers."""
        from scheduler_service.engine.placement_claimer import PlacementClaimer
        from scheduler_service.placement.client import PlacementClient
        from scheduler_service.placement.sharing import SharedProviders

        _check_extenders(policy_of(conf).extenders)
        client = PlacementClient(placement.new_adapter(conf))
        shared = SharedProviders(client, conf.compute.placement_interval)
        follower = ProviderFollower(
            store,
            client,
            scheduler.health,
            conf.compute.placement_interval,
            lambda: self.mirror is not None and self.mirror.leading,
            shared,
        )
        scheduler.claim_with(
            lambda refuse: PlacementClaimer(
                client,
                store,
                scheduler.health,
                refuse,
                lambda host: follower.touch([host]),
                shared,
            )
        )
        return follower

    def check(
        self, conf: Any, extenders: Sequence[Extender]
    ) -> Callable[[], None]:
        """Check options; return what takes them.

        :param extenders: that are called for requests
        :raises ConfigurationError: an extender is to bind what placement
            claims, or the API server of a cluster cannot be used
        """
        if self.providers is not None:
            _check_extenders(extenders)
        follow = self.cluster.check(conf)

        def take() -> None:
            follow()
            if self.mirror is not None:
                self.mirror.use(self._options(conf))
            if self.providers is not None:
                self.providers.interval = conf.compute.placement_interval

        return take

    def _options(self, conf: Any) -> MirrorOptions:
        group = conf.compute
        return MirrorOptions(
            api_database=group.api_database,
            cell_database=group.cell_database,
            poll_interval=group.poll_interval,
            full_interval=group.full_interval,
            service_down_time=group.service_down_time,
            connect_timeout=group.connect_timeout,
            statement_timeout=group.statement_timeout,
            with_capacity=self.providers is None,
        )

    def is_filled(self) -> bool:
        """Whether the store has hosts to decide on; else start following.

        :raises StoreUnavailable: our database does not answer
        """
        if self.mirror is None:
            return True
        missing = self._first_pass.missing()
        if not missing:
            self._health.recover(_CAUSE)
            return True
        self._health.degrade(
            _CAUSE,
            f'no requests are accepted before {missing} were read once',
            'Hosts of the compute service are known, requests are accepted',
            logging.INFO,
        )
        self.start()
        return False

    def start(self) -> None:
        """Start following, unless that was done before."""
        if self._started:
            return
        self._started = True
        self.cluster.start()
        if self.mirror is not None:
            self.mirror.start()
        if self.providers is not None:
            self.providers.start()

    def stop(self, timeout: float) -> None:
        """Follow no more.

        :param timeout: seconds to wait for what is being written
        """
        self.cluster.stop(timeout)
        if self.mirror is not None:
            self.mirror.stop(timeout)
        if self.providers is not None:
            self.providers.stop(timeout)

    def changed(self) -> None:
        """Look for changes at once: somebody said that there are some."""
        if self.mirror is not None:
            self.mirror.changed()


def _check_extenders(extenders: Sequence[Extender]) -> None:
    if any(one.bind_verb for one in extenders):
        raise errors.ConfigurationError(
            'An extender with a bindVerb cannot be used with '
            '[compute] use_placement'
        )
