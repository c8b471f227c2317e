"""Calls all extenders in their order: filter, prioritize, bind, preempt.

Filters run in sequence, each on the nodes that passed the previous one;
prioritize calls run in parallel. The rules are those of a kube-scheduler, with
one exception: a reply with a node that was not sent is an error whether it
holds nodes or names. Any thread may use a chain.
"""

from __future__ import annotations

import contextvars
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

from scheduler_service import errors
from scheduler_service import extender_wire as wire
from scheduler_service.engine.jobs import is_late
from scheduler_service.extenders.client import CallFailed, Client
from scheduler_service.extenders.policy_file import Extender

# Called with (label, verb, outcome) after each call.
Count = Callable[[str, str, str], None]
_MAX_SCORE = 10


@dataclasses.dataclass(frozen=True)
class ExtenderArgs:
    """The arguments of all extender calls for a pod.

    :ivar pod: v1 Pod
    :ivar resources: names of extended resources that it requests
    :ivar nodes: makes v1 Nodes of names; called where an extender takes nodes
    :ivar deadline: monotonic time after which no further extender is called;
        None: there is none
    """

    pod: Mapping[str, Any]
    resources: frozenset[str]
    nodes: Callable[[Sequence[str]], list[dict[str, Any]]]
    deadline: float | None = None

    def check_deadline(self) -> None:
        """Check whether the caller still waits.

        :raises TooLate: it does not
        """
        if is_late(self.deadline):
            raise errors.TooLate()


@dataclasses.dataclass
class ExtenderFilterResult:
    """The nodes that passed all filters, and the nodes that failed.

    :ivar names: nodes that passed, in the order in which they were sent
    :ivar failed: node -> reason, of nodes that failed
    :ivar unresolvable: failed nodes that no eviction of pods can help
    """

    names: list[str]
    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    unresolvable: set[str] = dataclasses.field(default_factory=set)


class Chain:
    """All extenders of a policy file.

    :param pool: runs prioritize calls in parallel
    :param count: called with (label, verb, outcome) after each call
    :raises ConfigurationError: TLS material does not load
    """

    def __init__(
        self,
        extenders: Sequence[Extender],
        pool: Executor,
        count: Count = lambda *_: None,
    ) -> None:
        self._clients = [Client(extender) for extender in extenders]
        self._pool = pool
        self._count = count

    @property
    def urls(self) -> list[str]:
        return [client.extender.label for client in self._clients]

    def applies_to(self, resources: frozenset[str]) -> bool:
        """Whether any extender is called for a request.

        :param resources: names of extended resources that it requests
        """
        return any(
            _is_interested(client.extender, resources)
            and (
                client.extender.filter_verb
                or client.extender.prioritize_verb
                or client.extender.bind_verb
            )
            for client in self._clients
        )

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def filter(
        self, args: ExtenderArgs, names: Sequence[str]
    ) -> ExtenderFilterResult:
        """Call the filters in sequence.

        :param names: of the nodes to filter
        :raises ExtenderFailed: a call failed, and its extender is not
            ignorable
        :raises TooLate: the deadline passed before all were called
        """
        result = ExtenderFilterResult(list(names))
        for client in self._clients_for(args, 'filter_verb'):
            if not result.names:
                break
            args.check_deadline()
            try:
                reply = wire.filter_reply(
                    self._call(
                        client, 'filter', _document(client, args, result.names)
                    )
                )
                passed = _passed(client.extender, reply, result.names)
            except (CallFailed, wire.WireError) as fault:
                self._fail(client, 'filter', fault)
                continue
            self._record(result, reply, passed)
        return result

    def prioritize(
        self, args: ExtenderArgs, names: Sequence[str]
    ) -> dict[str, float]:
        """Return the sum of the extenders' weighted scores for each node.

        A score is 0 to 1, and is multiplied by its extender's weight. The
        calls run in parallel; a call that fails adds nothing.

        :raises TooLate: the deadline has passed
        """
        args.check_deadline()
        clients = self._clients_for(args, 'prioritize_verb')
        running = [
            (
                client,
                self._pool.submit(
                    contextvars.copy_context().run,
                    self._call,
                    client,
                    'prioritize',
                    _document(client, args, names),
                ),
            )
            for client in clients
        ]
        totals = dict.fromkeys(names, 0.0)
        for client, future in running:
            try:
                scores = wire.scores(future.result())
            except (CallFailed, wire.WireError) as fault:
                self._count(
                    client.extender.label, 'prioritize', _reason(fault)
                )
                continue
            for name, score in scores.items():
                if name in totals:
                    totals[name] += score * client.extender.weight / _MAX_SCORE
        return totals

    def bind(self, args: ExtenderArgs, node: str) -> bool:
        """Bind the pod by the extender that has a bind verb.

        :return: whether an extender bound the pod
        :raises ExtenderFailed: the call failed, and its extender is not
            ignorable
        """
        metadata = args.pod['metadata']
        document = {
            'PodName': metadata['name'],
            'PodNamespace': metadata['namespace'],
            'PodUID': metadata['uid'],
            'Node': node,
        }
        for client in self._clients_for(args, 'bind_verb')[:1]:
            try:
                error = wire.error_of(self._call(client, 'bind', document))
            except (CallFailed, wire.WireError) as fault:
                return self._fail(client, 'bind', fault)
            if error:
                return self._fail(client, 'bind', CallFailed('refused', error))
            return True
        return False

    def preempt(
        self,
        args: ExtenderArgs,
        candidates: Mapping[str, wire.Victims],
        pods: Mapping[str, Mapping[str, Any]],
    ) -> dict[str, wire.Victims]:
        """Return the candidates that every preempt verb keeps.

        :param candidates: node -> the pods that would be evicted
        :param pods: uid -> v1 Pod, of all victims
        :raises ExtenderFailed: a call failed, or its reply names a node or a
            pod that was not sent, and its extender is not ignorable
        """
        left = dict(candidates)
        for client in self._clients_for(args, 'preempt_verb'):
            if not left:
                break
            document = {
                'Pod': args.pod, 'NodeNameToVictims': None,
                'NodeNameToMetaVictims': None,
            }  # fmt: skip
            meta = wire.meta_victims(left, left)['NodeNameToMetaVictims']
            if client.extender.node_cache_capable:
                document['NodeNameToMetaVictims'] = meta
            else:
                document['NodeNameToVictims'] = {
                    node: {
                        'Pods': [pods[uid] for uid in victims.pods],
                        'NumPDBViolations': victims.violations,
                    }
                    for node, victims in left.items()
                }
            try:
                reply = wire.victims(self._call(client, 'preempt', document))
                left = _kept(reply, left, client.extender.ignorable)
            except (CallFailed, wire.WireError) as fault:
                self._fail(client, 'preempt', fault)
        return left

    def _clients_for(self, args: ExtenderArgs, verb: str) -> list[Client]:
        return [
            client
            for client in self._clients
            if getattr(client.extender, verb)
            and _is_interested(client.extender, args.resources)
        ]

    def _call(self, client: Client, verb: str, document: Any) -> Any:
        path = getattr(client.extender, f'{verb}_verb')
        reply = client.call(path, document)
        self._count(client.extender.label, verb, 'answered')
        return reply

    def _fail(self, client: Client, verb: str, fault: Exception) -> bool:
        """Count a failure; return False if the extender is ignorable.

        :raises ExtenderFailed: the extender is not ignorable
        """
        extender = client.extender
        self._count(extender.label, verb, _reason(fault))
        if extender.ignorable:
            return False
        raise errors.ExtenderFailed(
            f'Extender {extender.label} failed to {verb}: {fault}',
            extender=extender.label,
            verb=verb,
            reason=_reason(fault),
        )

    def _record(
        self,
        result: ExtenderFilterResult,
        reply: wire.FilterReply,
        passed: set[str],
    ) -> None:
        for name in result.names:
            if name in passed:
                continue
            unresolvable = reply.unresolvable.get(name)
            result.failed[name] = unresolvable or reply.failed.get(
                name, 'rejected without a reason'
            )
            if unresolvable is not None:
                result.unresolvable.add(name)
        result.names = [name for name in result.names if name in passed]


def _reason(fault: Exception) -> str:
    return fault.reason if isinstance(fault, CallFailed) else 'undecodable'


def _is_interested(extender: Extender, resources: frozenset[str]) -> bool:
    return not extender.managed or not resources.isdisjoint(extender.managed)


def _document(
    client: Client, args: ExtenderArgs, names: Sequence[str]
) -> dict[str, Any]:
    document: dict[str, Any] = {
        'Pod': args.pod, 'Nodes': None, 'NodeNames': None,
    }  # fmt: skip
    if client.extender.node_cache_capable:
        document['NodeNames'] = list(names)
    else:
        document['Nodes'] = {
            'metadata': {}, 'items': args.nodes(names),
        }  # fmt: skip
    return document


def _passed(
    extender: Extender, reply: wire.FilterReply, sent: Sequence[str]
) -> set[str]:
    if reply.error:
        raise CallFailed('refused', reply.error)
    names = reply.nodes
    if extender.node_cache_capable and reply.node_names is not None:
        names = reply.node_names
    passed = set(names or ())
    unknown = sorted(passed - {*sent})
    if unknown:
        raise CallFailed(
            'undecodable', f'node {unknown[0]!r} was not sent to it'
        )
    return passed


def _kept(
    reply: Mapping[str, wire.Victims],
    sent: Mapping[str, wire.Victims],
    ignorable: bool,
) -> dict[str, wire.Victims]:
    """Return the candidates that a reply keeps.

    :raises WireError: the reply names a node or a pod that was not sent, or
        no victim where the extender is not ignorable
    """
    kept = {}
    for node, victims in reply.items():
        if node not in sent:
            raise wire.WireError(f'node {node!r} was not sent to it')
        if not {*victims.pods} <= {*sent[node].pods}:
            raise wire.WireError(f'node {node!r}: a pod was not sent to it')
        if victims.pods:
            kept[node] = victims
        elif not ignorable:
            raise wire.WireError(
                f'expected at least one victim on node {node!r}'
            )
    return kept
