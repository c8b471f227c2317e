"""The compute service's databases and placement, as the options say."""

from __future__ import annotations

import platform
import uuid
from typing import Any

from scheduler_service import errors
from scheduler_service.conf import placement
from scheduler_service.engine.factory import policy_of
from scheduler_service.engine.scheduler import Scheduler
from scheduler_service.mirror.mirror import Mirror, MirrorOptions
from scheduler_service.mirror.providers import ProviderFollower
from scheduler_service.store.connection import Store


class Mirroring:
    """All that follows the compute service for one daemon.

    :param conf: parsed options
    :raises ConfigurationError: an option cannot be used
    """

    def __init__(self, conf: Any, store: Store, scheduler: Scheduler) -> None:
        self.mirror: Mirror | None = None
        self.providers: ProviderFollower | None = None
        group = conf.compute
        if not group.api_database:
            if group.use_placement:
                raise errors.ConfigurationError(
                    '[compute] use_placement needs [compute] api_database: '
                    'providers are found by the uuids of compute nodes'
                )
            return
        health = scheduler.health
        if group.use_placement:
            self.providers = self._follow_placement(conf, store, scheduler)
        options = MirrorOptions(
            api_database=group.api_database,
            cell_database=group.cell_database,
            poll_interval=group.poll_interval,
            full_interval=group.full_interval,
            service_down_time=group.service_down_time,
            connect_timeout=group.connect_timeout,
            statement_timeout=group.statement_timeout,
            with_capacity=self.providers is None,
        )
        # Daemons may have the same name, but only one may write.
        name = conf.scheduler.server or platform.node()
        holder = f'{name[:200]}/{uuid.uuid4().hex[:8]}'
        on_hosts = self.providers.touch if self.providers else None
        self.mirror = Mirror(store, options, health, holder, on_hosts)

    def _follow_placement(
        self, conf: Any, store: Store, scheduler: Scheduler
    ) -> ProviderFollower:
        """Have claims made in placement; return what follows providers."""
        from scheduler_service.engine.placement_claimer import PlacementClaimer
        from scheduler_service.placement.client import PlacementClient

        if any(one.bind_verb for one in policy_of(conf).extenders):
            raise errors.ConfigurationError(
                'An extender with a bindVerb cannot be used with '
                '[compute] use_placement'
            )
        client = PlacementClient(placement.new_adapter(conf))
        follower = ProviderFollower(
            store,
            client,
            scheduler.health,
            conf.compute.placement_interval,
            lambda: self.mirror is not None and self.mirror.leading,
        )
        scheduler.claim_with(
            lambda refuse: PlacementClaimer(
                client,
                store,
                scheduler.health,
                refuse,
                lambda host: follower.touch([host]),
            )
        )
        return follower

    def start(self) -> None:
        """Start following."""
        if self.mirror is not None:
            self.mirror.start()
        if self.providers is not None:
            self.providers.start()

    def stop(self, timeout: float) -> None:
        """Follow no more.

        :param timeout: seconds to wait for what is being written
        """
        if self.mirror is not None:
            self.mirror.stop(timeout)
        if self.providers is not None:
            self.providers.stop(timeout)

    def changed(self) -> None:
        """Look for changes at once: somebody said that there are some."""
        if self.mirror is not None:
            self.mirror.changed()
