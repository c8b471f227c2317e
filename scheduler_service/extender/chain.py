"""The extenders in their order: filter, prioritize, bind, preempt.

Filters run one after the other, each on what the last one left; prioritize
calls run beside each other. The rules are a kube-scheduler's, but a node that
was not sent is refused in both forms.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

from scheduler_service import errors
from scheduler_service.extender import wire
from scheduler_service.extender.client import CallFailed, Client
from scheduler_service.extender.config import Extender

# What is counted: (extender, verb, outcome).
Count = Callable[[str, str, str], None]
_POINTS = 10


def _uncounted(extender: str, verb: str, outcome: str) -> None:
    """Count nothing."""


@dataclasses.dataclass(frozen=True)
class Asked:
    """What a round of calls is about.

    :ivar pod: v1 Pod
    :ivar resources: extended resources that it asks for
    :ivar nodes: names -> v1 Nodes, made when an extender wants objects
    """

    pod: Mapping[str, Any]
    resources: frozenset[str]
    nodes: Callable[[Sequence[str]], list[dict[str, Any]]]


@dataclasses.dataclass
class Outcome:
    """What the filters of a round left.

    :ivar names: nodes that passed, in the order they were sent
    :ivar failed: node -> why, for those that did not
    :ivar never: those of them that no eviction could help
    """

    names: list[str]
    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    never: set[str] = dataclasses.field(default_factory=set)


class Chain:
    """All extenders of a policy file.

    :param pool: runs calls that go side by side
    :raises ConfigurationError: TLS material does not load
    """

    def __init__(
        self,
        extenders: Sequence[Extender],
        pool: Executor,
        count: Count = _uncounted,
    ) -> None:
        self._clients = [Client(one) for one in extenders]
        self._pool = pool
        self._count = count

    def concerns(self, resources: frozenset[str]) -> bool:
        """Whether any extender would be called for such a request."""
        return any(
            _interested(one.extender, resources)
            and (
                one.extender.filter_verb
                or one.extender.prioritize_verb
                or one.extender.bind_verb
            )
            for one in self._clients
        )

    def ignored(self) -> frozenset[str]:
        """Return the resources that are the extenders' affair alone."""
        return frozenset(
            name
            for one in self._clients
            for name, alone in one.extender.managed.items()
            if alone
        )

    def close(self) -> None:
        """Close the connections that are kept."""
        for one in self._clients:
            one.close()

    def filter(self, asked: Asked, names: Sequence[str]) -> Outcome:
        """Ask every filter in turn.

        :raises ExtenderFailed: one gave no answer and may not be missed
        """
        found = Outcome(list(names))
        for client in self._asked(asked, 'filter_verb'):
            if not found.names:
                break
            try:
                reply = wire.filter_reply(
                    self._call(client, 'filter', _args(client, asked, found))
                )
                passed = _passed(client.extender, reply, found.names)
            except (CallFailed, wire.WireError) as fault:
                self._fail(client, 'filter', fault)
                continue
            self._note(found, reply, passed)
        return found

    def prioritize(
        self, asked: Asked, names: Sequence[str]
    ) -> dict[str, float]:
        """Return what the extenders add to each node, 0 to 10 x weight.

        They are asked side by side; one that fails adds nothing.
        """
        found = Outcome(list(names))
        clients = self._asked(asked, 'prioritize_verb')
        running = [
            (
                one,
                self._pool.submit(
                    self._call, one, 'prioritize', _args(one, asked, found)
                ),
            )
            for one in clients
        ]
        totals = dict.fromkeys(names, 0.0)
        for client, future in running:
            try:
                scores = wire.scores(future.result())
            except (CallFailed, wire.WireError) as fault:
                self._count(
                    client.extender.url_prefix, 'prioritize', _kind(fault)
                )
                continue
            for name, score in scores.items():
                if name in totals:
                    totals[name] += score * client.extender.weight / _POINTS
        return totals

    def bind(self, asked: Asked, node: str) -> bool:
        """Have the first extender that binds do so; whether there is one.

        :raises ExtenderFailed: it did not
        """
        metadata = asked.pod['metadata']
        document = {
            'PodName': metadata['name'],
            'PodNamespace': metadata['namespace'],
            'PodUID': metadata['uid'],
            'Node': node,
        }
        for client in self._asked(asked, 'bind_verb')[:1]:
            try:
                said = wire.error_of(self._call(client, 'bind', document))
            except (CallFailed, wire.WireError) as fault:
                return self._fail(client, 'bind', fault)
            if said:
                return self._fail(client, 'bind', CallFailed('refused', said))
            return True
        return False

    def preempt(
        self,
        asked: Asked,
        candidates: Mapping[str, wire.Victims],
        pods: Mapping[str, Mapping[str, Any]],
    ) -> dict[str, wire.Victims]:
        """Have every preempt verb narrow the candidates down.

        :param pods: uid -> v1 Pod, of all victims
        :raises ExtenderFailed: one gave no answer and may not be missed, or
            names what it was not sent
        """
        left = dict(candidates)
        for client in self._asked(asked, 'preempt_verb'):
            if not left:
                break
            document = {
                'Pod': asked.pod, 'NodeNameToVictims': None,
                'NodeNameToMetaVictims': None,
            }  # fmt: skip
            meta = wire.meta_victims(left, left)['NodeNameToMetaVictims']
            if client.extender.node_cache_capable:
                document['NodeNameToMetaVictims'] = meta
            else:
                document['NodeNameToVictims'] = {
                    node: {
                        'Pods': [pods[uid] for uid in one.pods],
                        'NumPDBViolations': one.violations,
                    }
                    for node, one in left.items()
                }
            try:
                answer = wire.victims(self._call(client, 'preempt', document))
                left = _kept(answer, left, client.extender.ignorable)
            except (CallFailed, wire.WireError) as fault:
                self._fail(client, 'preempt', fault)
        return left

    def _asked(self, asked: Asked, verb: str) -> list[Client]:
        return [
            one
            for one in self._clients
            if getattr(one.extender, verb)
            and _interested(one.extender, asked.resources)
        ]

    def _call(self, client: Client, verb: str, document: Any) -> Any:
        path = getattr(client.extender, f'{verb}_verb')
        answer = client.call(path, document)
        self._count(client.extender.url_prefix, verb, 'answered')
        return answer

    def _fail(self, client: Client, verb: str, fault: Exception) -> bool:
        """Count a failure; raise it where the extender may not be missed."""
        extender = client.extender
        self._count(extender.url_prefix, verb, _kind(fault))
        if extender.ignorable:
            return False
        raise errors.ExtenderFailed(
            f'Extender {extender.url_prefix} failed to {verb}: {fault}',
            extender=extender.url_prefix,
            verb=verb,
            reason=_kind(fault),
        )

    def _note(
        self, found: Outcome, reply: wire.FilterReply, passed: set[str]
    ) -> None:
        for name in found.names:
            if name in passed:
                continue
            never = reply.unresolvable.get(name)
            found.failed[name] = never or reply.failed.get(
                name, 'left out without a reason'
            )
            if never is not None:
                found.never.add(name)
        found.names = [name for name in found.names if name in passed]


def _kind(fault: Exception) -> str:
    return fault.reason if isinstance(fault, CallFailed) else 'undecodable'


def _interested(extender: Extender, resources: frozenset[str]) -> bool:
    return not extender.managed or not resources.isdisjoint(extender.managed)


def _args(client: Client, asked: Asked, found: Outcome) -> dict[str, Any]:
    """Return a request in the form that the extender wants."""
    document: dict[str, Any] = {
        'Pod': asked.pod, 'Nodes': None, 'NodeNames': None,
    }  # fmt: skip
    if client.extender.node_cache_capable:
        document['NodeNames'] = found.names
    else:
        document['Nodes'] = {
            'metadata': {}, 'items': asked.nodes(found.names),
        }  # fmt: skip
    return document


def _passed(
    extender: Extender, reply: wire.FilterReply, sent: Sequence[str]
) -> set[str]:
    """Return the nodes that a reply lets pass.

    :raises CallFailed: it is an error, or names what was not sent
    """
    if reply.error:
        raise CallFailed('refused', reply.error)
    names = reply.nodes
    if extender.node_cache_capable and reply.node_names is not None:
        names = reply.node_names
    passed = set(names or ())
    strange = sorted(passed - {*sent})
    if strange:
        raise CallFailed(
            'undecodable', f'node {strange[0]!r} was not sent to it'
        )
    return passed


def _kept(
    answer: Mapping[str, wire.Victims],
    sent: Mapping[str, wire.Victims],
    ignorable: bool,
) -> dict[str, wire.Victims]:
    kept = {}
    for node, one in answer.items():
        if node not in sent:
            raise wire.WireError(f'node {node!r} was not sent')
        if not {*one.pods} <= {*sent[node].pods}:
            raise wire.WireError(f'{node!r} has no such pod')
        if one.pods:
            kept[node] = one
        elif not ignorable:
            raise wire.WireError(
                f'expected at least one victim on node {node!r}'
            )
    return kept
