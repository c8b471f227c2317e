"""Calls all extenders in their order: filter, prioritize, bind.

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
from scheduler_service.engine.messages import is_late
from scheduler_service.extenders.client import CallFailed, Client
from scheduler_service.extenders.policy_file import Extender

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
        if is_late(self.deadline):
            raise errors.TooLate()


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
        count: Callable[[str, str, str], None] = lambda *_: None,
    ) -> None:
        self._clients = [Client(extender) for extender in extenders]
        self._pool = pool
        self._count = count

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
    ) -> tuple[list[str], dict[str, str]]:
        """Call the filters in sequence.

        :param names: of the nodes to filter
        :return: nodes that passed all, in the order of *names*; and node ->
            reason, of nodes that failed
        :raises ExtenderFailed: a call failed, and its extender is not
            ignorable
        :raises TooLate: the deadline passed before all were called
        """
        left, failed = list(names), dict[str, str]()
        for client in self._clients_for(args, 'filter_verb'):
            if not left:
                break
            args.check_deadline()
            document = _document(client, args, left)
            try:
                reply = wire.filter_reply(
                    self._call(client, 'filter', document)
                )
                passed = _passed(client.extender, reply, left)
            except (CallFailed, wire.WireError) as fault:
                self._fail(client, 'filter', fault)
                continue
            for name in left:
                if name not in passed:
                    failed[name] = reply.failed.get(
                        name, 'rejected without a reason'
                    )
            left = [name for name in left if name in passed]
        return left, failed

    def prioritize(
        self, args: ExtenderArgs, names: Sequence[str]
    ) -> dict[str, float]:
        """Return the sum of the extenders' weighted scores for each node.

        A score is 0 to 1, and is multiplied by its extender's weight. The
        calls run in parallel; a call that fails adds nothing.

        :raises TooLate: the deadline has passed
        """
        args.check_deadline()
        running = {}
        for client in self._clients_for(args, 'prioritize_verb'):
            document = _document(client, args, names)
            running[client] = self._pool.submit(
                contextvars.copy_context().run,
                self._call, client, 'prioritize', document,
            )  # fmt: skip
        totals = dict.fromkeys(names, 0.0)
        for client, future in running.items():
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

    def bind(self, args: ExtenderArgs, node: str) -> None:
        """Bind the pod by the extender that has a bind verb, if there is one.

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
                if error:
                    raise CallFailed('refused', error)
            except (CallFailed, wire.WireError) as fault:
                self._fail(client, 'bind', fault)

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

    def _fail(self, client: Client, verb: str, fault: Exception) -> None:
        """Count a failure.

        :raises ExtenderFailed: the extender is not ignorable
        """
        extender = client.extender
        self._count(extender.label, verb, _reason(fault))
        if not extender.ignorable:
            raise errors.ExtenderFailed(
                f'Extender {extender.label} failed to {verb}: {fault}',
                extender=extender.label,
                verb=verb,
                reason=_reason(fault),
            )


def _reason(fault: Exception) -> str:
    return fault.reason if isinstance(fault, CallFailed) else 'undecodable'


def _is_interested(extender: Extender, resources: frozenset[str]) -> bool:
    return not extender.managed or not resources.isdisjoint(extender.managed)


def _document(
    client: Client, args: ExtenderArgs, names: Sequence[str]
) -> dict[str, Any]:
    nodes = sent = None
    if client.extender.node_cache_capable:
        sent = list(names)
    else:
        nodes = {'metadata': {}, 'items': args.nodes(names)}
    return {'Pod': args.pod, 'Nodes': nodes, 'NodeNames': sent}


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
