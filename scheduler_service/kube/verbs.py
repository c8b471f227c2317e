"""The endpoints that a kube-scheduler calls: filter, prioritize and so on.

Errors have status 200 and a text in ``Error``, since the kube-scheduler reads
nothing else. Only a body that is not JSON, or too long, gets a 4xx. Before
the hosts and the nodes of a followed cluster are loaded, the status is 503: a
kube-scheduler then goes on without an extender that is ``ignorable``, also
for verbs whose reply has no ``Error``. Any thread may run the verbs;
``http.routes`` says which do.
"""

from __future__ import annotations

import abc
import contextlib
import functools
from typing import Any

import msgspec

from scheduler_service import errors
from scheduler_service import extender_wire as wire
from scheduler_service.engine.health import Health
from scheduler_service.http import metrics
from scheduler_service.http.message import HttpRequest, Reply
from scheduler_service.http.routes import Route
from scheduler_service.kube.evaluator import Nodes, PodEvaluator


class _Metadata(msgspec.Struct):
    name: str = ''


class _Named(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


class _List(msgspec.Struct):
    items: list[msgspec.Raw] | None = None


class _Args(msgspec.Struct):
    Pod: Any = None
    Nodes: _List | None = None
    NodeNames: list[str] | None = None


class _LargeArgs(_Args):
    Pod: msgspec.Raw = msgspec.field(
        default_factory=lambda: msgspec.Raw(b'null')
    )


# Parts that would change the path of a call.
_NO_NAMES = {'.', '..'}
# Bodies up to this size are kept for the next verb.
_REMEMBERED_BYTES = 8 * 1024 * 1024
# Kubernetes stores objects of 1.5 MiB at most. A parsed pod may take many
# times its bytes, and is kept until the next pod is sent.
MOST_POD_BYTES = 4 * 1024 * 1024
_typed = msgspec.json.Decoder(_Args)
_typed_large = msgspec.json.Decoder(_LargeArgs)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_name_of = msgspec.json.Decoder(_Named)


class NodeArgs:
    """The arguments of filter and prioritize, with nodes or with names.

    :ivar items: node name -> its object as sent; None where only names were
        sent
    :ivar nodes: the nodes to evaluate
    """

    def __init__(
        self, pod: Any, names: list[str], items: dict[str, Any] | None
    ) -> None:
        self.pod = pod
        self.names = names
        self.items = items
        self.nodes = Nodes(names, None if items is None else items.__getitem__)

    @classmethod
    def read(cls, body: bytes) -> NodeArgs:
        """Parse a body.

        With the usual spelling of keys nodes stay unparsed.

        :raises WireError: the body is not valid
        :raises PayloadTooLarge: the pod is too large
        """
        try:
            if len(body) <= MOST_POD_BYTES:
                args = _typed.decode(body)
            else:
                args = _typed_large.decode(body)
                _check_size(args.Pod)
                args.Pod = msgspec.json.decode(args.Pod)
            pod = args.Pod
            if pod is not None and args.NodeNames is not None:
                return cls(pod, args.NodeNames, None)
            if pod is not None and args.Nodes is not None:
                items = {
                    _name_of.decode(node).metadata.name: node
                    for node in args.Nodes.items or ()
                }
                if '' not in items:
                    return cls(pod, list(items), items)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        return cls._read_slowly(_decode(body))

    @classmethod
    def _read_slowly(cls, document: Any) -> NodeArgs:
        pod = wire.field(document, 'Pod', dict)
        names = wire.strings(document, 'NodeNames')
        if names is not None:
            return cls(pod, names, None)
        nodes = wire.items(document, 'Nodes') or []
        items = {wire.name_of(node): node for node in nodes}
        return cls(pod, list(items), items)


def _check_size(pod: msgspec.Raw) -> None:
    """Refuse a pod that is too large for any API server.

    :raises PayloadTooLarge: it has more than :data:`MOST_POD_BYTES`
    """
    size = len(memoryview(pod))
    if size > MOST_POD_BYTES:
        raise errors.PayloadTooLarge(
            f'Pod: {size} bytes, at most {MOST_POD_BYTES} are allowed',
            size=size,
            limit=MOST_POD_BYTES,
        )


def _decode(body: bytes) -> Any:
    """Parse a body with keys in any spelling.

    :raises WireError: the body is not JSON
    :raises PayloadTooLarge: the pod is too large
    """
    if len(body) > MOST_POD_BYTES:
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            for name, value in _fields.decode(body).items():
                if name.lower() == 'pod':
                    _check_size(value)
    return wire.decode(body)


class _Reader:
    """Reads arguments, and keeps those of the last call.

    Where all nodes pass, the calls for filter and prioritize have the same
    body: its arguments, with the evaluator's results, are used again.
    """

    def __init__(self) -> None:
        self._last: tuple[bytes, NodeArgs] = b'', NodeArgs(None, [], None)

    def read(self, body: bytes) -> NodeArgs:
        """Parse a body.

        :raises WireError: the body is not valid
        """
        last, args = self._last
        if body and last == body:
            return args
        args = NodeArgs.read(body)
        if len(body) <= _REMEMBERED_BYTES:
            self._last = body, args
        return args


class _Verb(abc.ABC):
    """Base of the verbs: parses the body, runs the verb, writes the reply.

    :param reader: of the arguments, which the verbs share
    """

    name = ''
    needs_nodes = True

    def __init__(
        self, evaluator: PodEvaluator, health: Health, reader: _Reader
    ) -> None:
        self._evaluator = evaluator
        self._health = health
        self._reader = reader
        self._received = f'{self.name} received'
        self._returned = f'{self.name} returned'

    def serve(self, request: HttpRequest, text: bytes) -> Reply:
        """Run the verb, and answer errors in the form of the verb.

        :raises WireError: the body is not JSON
        :raises ServiceBusy: the nodes of the cluster are not loaded yet
        """
        if self.needs_nodes and not self._evaluator.are_nodes_loaded():
            raise errors.ServiceBusy(
                'The nodes of the cluster are not loaded yet'
            )
        try:
            reply = self.run(text)
        except wire.WireError as fault:
            # A body that is not JSON is answered with 400.
            wire.decode(text)
            reply = self._failed(str(fault))
        except errors.SchedulerError as error:
            reply = self._failed(f'{error.name}: {error.args[0]}')
        return Reply(200, wire.encode(reply))

    def _failed(self, text: str) -> Any:
        self._health.count(metrics.VERB_ERRORS, self.name)
        return self.failed(text)

    def count_nodes(self, received: int, returned: int) -> None:
        """Count the nodes of a call."""
        labelled = {self._received: received, self._returned: returned}
        self._health.count_each(metrics.VERB_NODES, labelled)

    @abc.abstractmethod
    def run(self, text: bytes) -> Any:
        """Return the reply to a body."""

    def failed(self, text: str) -> Any:
        """Return the reply with the text of an error."""
        return {'Error': text.replace('%', ' percent')}


class FilterVerb(_Verb):
    """The nodes that pass, in the form and order in which they were sent."""

    name = 'filter'

    def run(self, text: bytes) -> Any:
        """Filter the nodes."""
        args = self._reader.read(text)
        result = self._evaluator.filter(args.pod, args.nodes)
        self.count_nodes(len(args.names), len(result.passed))
        nodes = names = None
        if args.items is None:
            names = result.passed
        else:
            items = [args.items[name] for name in result.passed]
            nodes = {'metadata': {}, 'items': items}
        return {
            'Nodes': nodes,
            'NodeNames': names,
            'FailedNodes': result.failed,
            'FailedAndUnresolvableNodes': result.never,
            'Error': '',
        }

    def failed(self, text: str) -> Any:
        """Let no node pass."""
        return {
            'Nodes': None,
            'NodeNames': None,
            'FailedNodes': {},
            'FailedAndUnresolvableNodes': {},
            **super().failed(text),
        }


class PrioritizeVerb(_Verb):
    """Scores of nodes, 0 to 10."""

    name = 'prioritize'

    def run(self, text: bytes) -> Any:
        """Weigh the nodes."""
        args = self._reader.read(text)
        scores = self._evaluator.prioritize(args.pod, args.nodes)
        self.count_nodes(len(args.names), len(scores.names))
        return scores.text

    def failed(self, text: str) -> Any:
        """Score no node: the reply has no field for an error."""
        return []


class PreemptVerb(_Verb):
    """The candidate nodes on which evicting pods may help."""

    name = 'preempt'

    def run(self, text: bytes) -> Any:
        """Drop candidates that would not pass even without any pod."""
        document = _decode(text)
        victims = wire.candidate_victims(document)
        pod = wire.field(document, 'Pod', dict)
        nodes = Nodes(list(victims))
        result = self._evaluator.filter(pod, nodes, to_place=False)
        kept = [node for node in victims if node not in result.never]
        self.count_nodes(len(victims), len(kept))
        return wire.meta_victims(victims, kept)

    def failed(self, text: str) -> Any:
        """Return no candidate: the reply has no field for an error."""
        return {'NodeNameToMetaVictims': {}}


class BindVerb(_Verb):
    """Binds a pod at the API server; a repeated call succeeds, too."""

    name = 'bind'
    needs_nodes = False

    def __init__(self, binder: Any, *shared: Any) -> None:
        super().__init__(*shared)
        self._binder = binder

    def run(self, text: bytes) -> Any:
        """Bind the named pod."""
        document = wire.decode(text)
        read = functools.partial(wire.field, document, kind=str)
        name, space = read('PodName'), read('PodNamespace')
        uid, node = read('PodUID'), read('Node')
        if not (name and space and node):
            raise wire.WireError('PodName, PodNamespace and Node are required')
        if {name, space} & _NO_NAMES:
            raise wire.WireError('PodName and PodNamespace have to be names')
        claimed = self._evaluator.claim(uid, node)
        try:
            self._binder.bind(space, name, uid, node)
        except errors.SchedulerError:
            if claimed:
                self._evaluator.unclaim(uid)
            raise
        self.count_nodes(1, 1)
        return {'Error': ''}


def routes(
    evaluator: PodEvaluator, health: Health, binder: Any, max_bytes: int
) -> list[Route]:
    """Return the routes of the verbs; without a binder there is no bind.

    Binds wait for an API server, on threads of their own.
    """
    shared = evaluator, health, _Reader()
    served: list[tuple[_Verb, str]] = [
        (FilterVerb(*shared), 'inline'),
        (PrioritizeVerb(*shared), 'inline'),
        (PreemptVerb(*shared), 'inline'),
    ]
    if binder is not None:
        served.append((BindVerb(binder, *shared), 'bind'))
    for verb, _ in served:
        # Counters exist from the start, so that the first call is an increase.
        health.count(
            'http_requests', f'{metrics.VERB_ROUTE}{verb.name} 200', 0
        )
        health.count(metrics.VERB_ERRORS, verb.name, 0)
        verb.count_nodes(0, 0)
    return [
        Route(
            f'{metrics.VERB_ROUTE}{verb.name}',
            verb.serve,
            threads,
            max_bytes,
            methods=('POST',),
            needs_hosts=threads == 'inline',
        )
        for verb, threads in served
    ]
