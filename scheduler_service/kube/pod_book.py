"""Keeps what pods take of hosts as claims in the store.

The thread that follows pods writes to a :class:`PodBook`; the thread that
keeps hosts has it written, in the one daemon that does. A pod that is seen on
its node confirms the claim that its binding made, or is claimed as it is seen.
A claim of a pod that was never seen ends after a while: its binding failed,
and the daemon that would have said so is gone.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from scheduler_service.kube.node_reader import NodeHost
from scheduler_service.kube.pod_reader import PlacedPod
from scheduler_service.store.claims import claim_queries, pod_claims
from scheduler_service.store.claims.pod_claims import PodClaim, StoredClaim
from scheduler_service.store.connection import Store, in_chunks
from scheduler_service.store.records.audit import Finding
from scheduler_service.store.records.leases import Lease

_PODS_AT_ONCE = 500
# How often claims of pods that were never seen are looked for, in seconds.
_LOOK_S = 5.0
# How often it is looked whether claims were released, in seconds.
_POLL_S = 0.05
# By uid, each after its namespace, a slash, and its name.
_Pods = dict[str, tuple[str, PlacedPod]]


class PodBook:
    """The pods that were seen and take something, and their claims.

    :param unseen_seconds: how long a pod that is bound may stay unseen
    :param of_hosts: whether what hosts offer is claimed; false: only what
        aggregates do
    :ivar on_change: called after each change, by the follower's thread
    :ivar is_lost: whether pods are not followed at the moment
    """

    def __init__(
        self, store: Store, unseen_seconds: float, of_hosts: bool = True
    ) -> None:
        self._store = store
        self._unseen_seconds = unseen_seconds
        self._of_hosts = of_hosts
        self.on_change: Callable[[], None] = lambda: None
        self.is_lost = False
        self._lock = threading.Lock()
        # By node; None: pods were not listed yet.
        self._seen: dict[str, _Pods] | None = None
        # Nodes of which pods changed, and pods that are gone, since the book
        # was written.
        self._changed: set[str] = set()
        self._gone: set[str] = set()
        # Node -> uid -> claim; None: the store has to be read first.
        self._written: dict[str, dict[str, PodClaim]] | None = None
        self._nodes: Mapping[str, NodeHost] = {}
        # What aggregates offer: of each service host, by resource class.
        self._shared: Mapping[str, Mapping[str, int]] = {}
        self._looked_at = 0.0

    def replace(self, pods: Sequence[tuple[str, PlacedPod]]) -> None:
        """Have exactly these pods.

        :param pods: each after its namespace, a slash, and its name
        """
        seen: dict[str, _Pods] = {}
        for name, pod in pods:
            if not pod.usage.is_claimed:
                continue
            seen.setdefault(pod.node, {})[pod.uid] = name, pod
        with self._lock:
            if self._written is not None:
                self._changed.update(seen, self._seen or ())
            self._seen = seen
        self.on_change()

    def put(self, name: str, pod: PlacedPod) -> None:
        """Have a pod on its node."""
        with self._lock:
            assert self._seen is not None
            pods = self._seen.setdefault(pod.node, {})
            now = (name, pod) if pod.usage.is_claimed else None
            if pods.get(pod.uid) == now:
                return
            pods.pop(pod.uid, None)
            if now is not None:
                pods[pod.uid] = now
            if self._written is not None:
                self._changed.add(pod.node)
        self.on_change()

    def remove(self, uid: str, node: str) -> None:
        """Have a pod no more."""
        with self._lock:
            assert self._seen is not None
            if self._seen.get(node, {}).pop(uid, None) is None:
                return
            if self._written is not None:
                self._changed.add(node)
                self._gone.add(uid)
        self.on_change()

    def forget(self) -> None:
        """Compare everything anew: another daemon may have written."""
        with self._lock:
            self._written = None
            self._changed, self._gone = set(), set()

    def write(self, lease: Lease, nodes: Mapping[str, NodeHost]) -> None:
        """Make the claims of pods equal to the pods that are seen.

        :param nodes: those that are kept as hosts
        :raises LeaseLost: another daemon writes now
        :raises StoreUnavailable: the database does not answer
        """
        with self._store.reading() as conn:
            shared = pod_claims.shared(conn)
        with self._lock:
            if self._seen is None:
                return
            changed, self._changed = self._changed, set()
            gone, self._gone = self._gone, set()
            is_first = self._written is None
            if self._written is None:
                self._written, changed = {}, {*self._seen}
            elif nodes != self._nodes or shared != self._shared:
                changed |= {
                    name
                    for name in nodes.keys() | self._nodes.keys()
                    if nodes.get(name) is not self._nodes.get(name)
                    or shared.get(name) != self._shared.get(name)
                }
            seen = {name: {**self._seen.get(name, {})} for name in changed}
        self._nodes, written = nodes, self._written
        self._shared = shared
        fresh: list[PodClaim] = []
        for name, pods in seen.items():
            wanted = _claims(pods, nodes.get(name), shared, self._of_hosts)
            before = written.pop(name, {})
            fresh += [
                claim
                for uid, claim in wanted.items()
                if before.get(uid) != claim
            ]
            gone |= before.keys() - wanted.keys()
            if wanted:
                written[name] = wanted
        if is_first:
            kept = {uid for claims in written.values() for uid in claims}
            gone |= {
                claim.uid
                for claim in self._stored()
                if claim.state == 'confirmed' and claim.uid not in kept
            }
        for uids in in_chunks(sorted(gone), _PODS_AT_ONCE):
            lease.keep()
            self._store.write(partial(pod_claims.release, uids=uids))
        for claims in in_chunks(fresh, _PODS_AT_ONCE):
            lease.keep()
            self._store.write(partial(pod_claims.confirm, pods=claims))
        if time.monotonic() - self._looked_at > _LOOK_S and not self.is_lost:
            self._look(lease)

    def wait_released(self, uids: Sequence[str], seconds: float) -> bool:
        """Wait until the daemon that writes has released claims of pods.

        :return: whether it did in time
        :raises StoreUnavailable: the database does not answer
        """
        end = time.monotonic() + seconds
        while True:
            with self._store.reading() as conn:
                if not claim_queries.pods(conn, uids):
                    return True
            if time.monotonic() > end:
                return False
            time.sleep(_POLL_S)

    def compare(self, nodes: Mapping[str, NodeHost]) -> list[Finding]:
        """Return where claims are not those of the pods that are seen.

        :param nodes: those that are kept as hosts
        """
        with self._store.reading() as conn:
            held, stored = pod_claims.held(conn), pod_claims.stored(conn)
            shared = pod_claims.shared(conn)
        wanted: dict[str, PodClaim] = {}
        for name, pods in (self._seen or {}).items():
            node = nodes.get(name)
            wanted |= _claims(pods, node, shared, self._of_hosts)
        # Others are about to be bound.
        seen = {one.uid for one in stored if one.state == 'confirmed'}
        return [
            _difference(wanted.get(uid), held.get(uid))
            for uid in sorted(wanted.keys() | seen)
            if wanted.get(uid) != held.get(uid)
        ]

    def _stored(self) -> list[StoredClaim]:
        with self._store.reading() as conn:
            return pod_claims.stored(conn)

    def _look(self, lease: Lease) -> None:
        """Release claims of pods that were never seen.

        Where the store is not as it was written, it is compared anew: it was
        restored, or an operator released claims.
        """
        stored = self._stored()
        with self._lock:
            written = {u for some in (self._written or {}).values()
                       for u in some}  # fmt: skip
            seen = {u for some in (self._seen or {}).values() for u in some}
        late = [
            claim.uid
            for claim in stored
            if claim.state == 'claimed'
            and claim.age > self._unseen_seconds
            and claim.uid not in seen
        ]
        if late:
            lease.keep()
            self._store.write(
                partial(pod_claims.release, uids=late, state='claimed')
            )
        if written != {c.uid for c in stored if c.state == 'confirmed'}:
            self.forget()
            self.on_change()
        self._looked_at = time.monotonic()


def _difference(seen: PodClaim | None, held: PodClaim | None) -> Finding:
    claim = seen or held
    assert claim is not None
    takes, has = (_amounts(one) if one else 'nothing' for one in (seen, held))
    return Finding(
        kind='pod', host=claim.host, consumer=claim.uid,
        text=f'{claim.name} takes {takes}, and has claimed {has}',
    )  # fmt: skip


def _amounts(claim: PodClaim) -> str:
    named = sorted(claim.amounts.items())
    amounts = ', '.join(f'{amount} {name}' for name, amount in named)
    return f'{amounts or "nothing"} of {claim.host}'


def _claims(
    pods: _Pods,
    node: NodeHost | None,
    shared: Mapping[str, Mapping[str, int]],
    of_hosts: bool,
) -> dict[str, PodClaim]:
    """Return the claims of the pods on a node by uid.

    Parts of processors and bytes are rounded up for all of them together.
    """
    if node is None:
        return {}
    host, claims = node.host, {}
    given = {
        name: provider
        for name, provider in shared.get(host.host, {}).items()
        if name not in host.resources
    }
    before = Counter[str]()
    for uid, (full_name, pod) in sorted(pods.items()):
        claimed = pod.usage.claimed(before)
        before.update(pod.usage.parts)
        amounts = {
            name: amount
            for name, amount in claimed.items()
            if name in given
            or (of_hosts and name in host.resources)
            or name not in pod.usage.classes
        }
        if amounts or of_hosts:
            claims[uid] = PodClaim(
                uid,
                full_name,
                host.host,
                host.hypervisor_hostname,
                amounts,
                {name: given[name] for name in amounts if name in given},
            )
    return claims
