"""Whether a request that says so is a rebuild on the host of its instances.

The compute service says it by a scheduler hint, and a rebuild is neither
filtered by most filters nor claimed. Some releases of the compute service let
any user give that hint, so it counts only where the instances are known to be
on the host that is asked for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scheduler_service.columns.instances import PlacedInstance
from scheduler_service.columns.snapshot import Snapshot
from scheduler_service.listings import READ_S
from scheduler_service.model import Request
from scheduler_service.store.connection import Store
from scheduler_service.store.reading import change_feed

LOG = logging.getLogger(__name__)
# After how many seconds a caller is named in the log once more.
_LOGGED_EVERY_S = 3600.0


class RebuildCheck:
    """Checks requests that say that they are rebuilds.

    Any thread may call it.

    :param store: has the instances that the mirror has read
    :param snapshot: gives the newest snapshot, None before the first
    :param catch_up: has the mirror read what is new, and waits for it
    """

    def __init__(
        self,
        store: Store,
        snapshot: Callable[[], Snapshot | None],
        catch_up: Callable[[], object],
    ) -> None:
        self._store = store
        self._snapshot = snapshot
        self._catch_up = catch_up
        # (user, project) -> monotonic time of the line in the log
        self._logged_at: dict[tuple[str, str], float] = {}

    def is_verified(self, request: Request) -> bool:
        """Whether nothing has to be looked up; does not wait.

        It is no rebuild, or the snapshot has its instances on their host.
        """
        if not request.is_rebuild:
            return True
        snapshot = self._snapshot()
        if snapshot is None:
            return False
        placed = snapshot.hosts.instances.among(request.instance_uuids)
        return _are_there([*placed.values()], request)

    def verify(self, request: Request, context: Mapping[str, Any]) -> None:
        """Have a request judged as any other, unless it is a rebuild.

        :param context: of the caller
        :raises StoreUnavailable: the database does not answer
        """
        if self.is_verified(request):
            return
        placed: Sequence[PlacedInstance] = ()
        # Users cannot name a host, so that their hints delay nobody.
        if any(request.named_places):
            self._catch_up()
            uuids = request.instance_uuids
            with self._store.reading(READ_S) as conn:
                placed = change_feed.placed_instances(conn, uuids)
        if not _are_there(placed, request):
            request.deny_rebuild()
            self._log(request, context)

    def _log(self, request: Request, context: Mapping[str, Any]) -> None:
        now = time.monotonic()
        caller = str(context.get('user_id')), str(context.get('project_id'))
        self._logged_at = {
            each: at
            for each, at in self._logged_at.items()
            if now - at < _LOGGED_EVERY_S
        }
        if caller in self._logged_at:
            return
        self._logged_at[caller] = now
        LOG.warning(
            'Request %s of user %s, project %s is no rebuild: its instances '
            'are not known to be on the host that it asks for',
            request.request_id,
            *caller,
        )


def _are_there(placed: Sequence[PlacedInstance], request: Request) -> bool:
    """Whether each instance of a request is on the one host that it names."""
    hosts, nodes = ({name.lower() for name in n} for n in request.named_places)
    return (
        bool(hosts or nodes)
        and len(placed) == request.num_instances
        and all(
            hosts <= {one.host.lower()} and nodes <= {one.node.lower()}
            for one in placed
        )
    )
