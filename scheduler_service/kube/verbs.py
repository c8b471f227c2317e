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
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from scheduler_service import errors
from scheduler_service import extender_wire as wire
from scheduler_service.engine.health import Health
from scheduler_service.http import metrics
from scheduler_service.http.message import HttpRequest, Reply
from scheduler_service.http.routes import Route
from scheduler_service.kube.evaluator import Nodes, PodEvaluator
from scheduler_service.kube.node_tables import MOST_BYTES
from scheduler_service.kube.pod_decisions import Pod, PodDecisions


class _Metadata(msgspec.Struct):
    name: str = ''
    uid: str = ''


class _Object(msgspec.Struct):
    metadata: _Metadata


class _List(msgspec.Struct):
    items: list[msgspec.Raw] | None = None


class _Args(msgspec.Struct):
    Pod: Any = None
    Nodes: _List | None = None
    NodeNames: list[str] | None = None


class _Victims(msgspec.Struct):
    Pods: list[_Object] | None
    NumPDBViolations: int = 0


_NULL = msgspec.Raw(b'null')
# Fields of large bodies, spelled as in Go or in lower case.
_LargeArgs = msgspec.defstruct(
    '_LargeArgs',
    [
        (spelled, msgspec.Raw, _NULL)
        for name in ('Pod', 'Nodes', 'NodeNames', 'NodeNameToVictims',
                     'NodeNameToMetaVictims')
        for spelled in (name, name.lower())
    ],
)  # fmt: skip


class _LargeList(msgspec.Struct):
    items: msgspec.Raw = _NULL


# Parts that would change the path of a call.
_NO_NAMES = {'.', '..'}
# Bodies up to this size are kept for the next verb.
_REMEMBERED_BYTES = 8 * 1024 * 1024
# Nodes of a call, and victims of a call for preemption.
MOST_OBJECTS = 100_000
_typed = msgspec.json.Decoder(_Args)
_large_typed = msgspec.json.Decoder(_LargeArgs)
_large_list = msgspec.json.Decoder(_LargeList)
_raw_items = msgspec.json.Decoder(list[msgspec.Raw])
_objects = msgspec.json.Decoder(list[_Object] | None)
_victims = msgspec.json.Decoder(dict[str, _Victims])
_object = msgspec.json.Decoder(_Object)
_NOT_PARSED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


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
        :raises PayloadTooLarge: the pod is too large, or there are too many
            nodes
        """
        if len(body) > MOST_BYTES:
            return cls._read_large(_LargeBody(body))
        try:
            args = _typed.decode(body)
            pod = args.Pod
            if pod is not None and args.NodeNames is not None:
                return cls(pod, args.NodeNames, None)
            if pod is not None and args.Nodes is not None:
                items = {
                    _object.decode(node).metadata.name: node
                    for node in args.Nodes.items or ()
                }
                if '' not in items:
                    return cls(pod, list(items), items)
        except _NOT_PARSED:
            pass
        return cls._read_slowly(wire.decode(body))

    @classmethod
    def _read_slowly(cls, document: Any) -> NodeArgs:
        pod = wire.field(document, 'Pod', dict)
        names = wire.strings(document, 'NodeNames')
        if names is not None:
            return cls(pod, names, None)
        nodes = wire.items(document, 'Nodes') or []
        items = {wire.name_of(node): node for node in nodes}
        return cls(pod, list(items), items)

    @classmethod
    def _read_large(cls, body: _LargeBody) -> NodeArgs:
        pod = body.document('Pod')
        if pod is None:
            return cls(None, [], None)
        names = body.limited('NodeNames', b',')
        if names is not None:
            sent = {'NodeNames': wire.decode(names)}
            return cls(pod, wire.strings(sent, 'NodeNames') or [], None)
        nodes = body.limited('Nodes', b'"metadata"')
        items = _node_items(nodes) if nodes is not None else {}
        return cls(pod, list(items), items)


def _node_items(nodes: bytes) -> dict[str, Any]:
    """Return node name -> its object as sent, of a large list.

    :raises WireError: the list is not valid
    """
    try:
        items = _large_list.decode(nodes).items
        # Stops at the first item that is no node, however many follow.
        parsed = _objects.decode(items)
        if parsed is None:
            return {}
        names = [node.metadata.name for node in parsed]
        return dict(zip(names, _raw_items.decode(items), strict=True))
    except _NOT_PARSED as fault:
        raise wire.WireError(f'Nodes: {fault}') from None


class _LargeBody:
    """A body of more than :data:`MOST_BYTES`: only fields that are read count.

    Parsing all of it could take seconds, and many times its bytes.

    :raises NotJson: it is not an object
    """

    def __init__(self, body: bytes) -> None:
        try:
            self._args = _large_typed.decode(body)
        except _NOT_PARSED as fault:
            raise wire.NotJson(f'not JSON: {fault}') from None

    def _text(self, name: str) -> msgspec.Raw | None:
        """Return the JSON of a field; None without it."""
        for spelled in (name, name.lower()):
            text: msgspec.Raw = getattr(self._args, spelled)
            if text != _NULL:
                return text
        return None

    def document(self, name: str) -> Any:
        """Return a field that is one object, parsed; None without it.

        :raises WireError: it is not an object
        :raises PayloadTooLarge: it has more than :data:`MOST_BYTES`
        """
        text = self._text(name)
        if text is None:
            return None
        size = len(memoryview(text))
        if size > MOST_BYTES:
            raise errors.PayloadTooLarge(
                f'{name}: {size} bytes, at most {MOST_BYTES} are allowed',
                size=size,
                limit=MOST_BYTES,
            )
        return wire.field({name: wire.decode(text)}, name, dict)

    def limited(self, name: str, *marks: bytes) -> bytes | None:
        """Return the JSON of a field with many objects; None without it.

        :param marks: texts, of which each object has one
        :raises PayloadTooLarge: there are more than :data:`MOST_OBJECTS`
        """
        raw = self._text(name)
        if raw is None:
            return None
        text = bytes(raw)
        if sum(map(text.count, marks)) > MOST_OBJECTS:
            raise errors.PayloadTooLarge(
                f'{name}: more than {MOST_OBJECTS} are not allowed',
                limit=MOST_OBJECTS,
            )
        return text


def _preempt_document(body: bytes) -> Any:
    """Return the arguments of preempt, in any spelling of keys.

    :raises WireError: the body is not valid
    :raises PayloadTooLarge: the pod is too large, or there are too many
        victims
    """
    if len(body) <= MOST_BYTES:
        return wire.decode(body)
    large = _LargeBody(body)
    document = {
        name: large.document(name) for name in ('Pod', 'NodeNameToMetaVictims')
    }
    text = large.limited('NodeNameToVictims', b'"Pods"', b'"metadata"')
    if text is not None:
        try:
            victims = _victims.decode(text)
        except _NOT_PARSED as fault:
            raise wire.WireError(f'NodeNameToVictims: {fault}') from None
        document['NodeNameToVictims'] = msgspec.to_builtins(victims)
    return document


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
        self,
        evaluator: PodEvaluator,
        health: Health,
        reader: _Reader,
        decisions: PodDecisions,
    ) -> None:
        self._evaluator = evaluator
        self._health = health
        self._reader = reader
        self._decisions = decisions
        self._received = f'{self.name} received'
        self._returned = f'{self.name} returned'

    def serve(self, request: HttpRequest, text: bytes) -> Reply:
        """Run the verb, and answer errors in the form of the verb.

        :raises NotJson: the body is not JSON
        :raises ServiceBusy: the nodes of the cluster are not loaded yet
        """
        if self.needs_nodes and not self._evaluator.are_nodes_loaded():
            raise errors.ServiceBusy(
                'The nodes of the cluster are not loaded yet'
            )
        try:
            reply = self.run(text)
        except wire.NotJson:
            # Answered with 400.
            raise
        except wire.WireError as fault:
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

    @contextlib.contextmanager
    def recording(self, pod: Any) -> Iterator[None]:
        """Record why the block fails for a pod, parsed or its names."""
        try:
            yield
        except errors.SchedulerError as error:
            names = pod if isinstance(pod, Pod) else Pod.of(pod)
            self._decisions.failed(self.name, names, error)
            raise

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
        with self.recording(args.pod):
            result = self._evaluator.filter(args.pod, args.nodes)
        received, returned = len(args.names), len(result.passed)
        self.count_nodes(received, returned)
        self._decisions.filtered(
            self.name, args.pod, received, returned, result.rejections
        )
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
        with self.recording(args.pod):
            scores = self._evaluator.prioritize(args.pod, args.nodes)
        self.count_nodes(len(args.names), len(scores.names))
        if not scores.is_ignored:
            self._decisions.scored(args.pod, scores.names, scores.values)
        return scores.text

    def failed(self, text: str) -> Any:
        """Score no node: the reply has no field for an error."""
        return []


class PreemptVerb(_Verb):
    """The candidate nodes on which evicting pods may help."""

    name = 'preempt'

    def run(self, text: bytes) -> Any:
        """Drop candidates that would not pass even without any pod."""
        document = _preempt_document(text)
        victims = wire.candidate_victims(document)
        pod = wire.field(document, 'Pod', dict)
        nodes = Nodes(list(victims))
        with self.recording(pod):
            result = self._evaluator.filter(pod, nodes, to_place=False)
        kept = [node for node in victims if node not in result.never]
        self.count_nodes(len(victims), len(kept))
        if result.rejections is not None:
            final = [one for one in result.rejections if one.is_final]
            self._decisions.filtered(
                self.name, pod, len(victims), len(kept), final
            )
        return wire.meta_victims(victims, kept)

    def failed(self, text: str) -> Any:
        """Return no candidate: the reply has no field for an error."""
        return {'NodeNameToMetaVictims': {}}


class BindVerb(_Verb):
    """Binds a pod at the API server; a repeated call succeeds, too."""

    name = 'bind'
    needs_nodes = False

    def __init__(self, bind: Callable[..., None], *shared: Any) -> None:
        super().__init__(*shared)
        self._bind = bind

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
        pod = Pod(space, name, uid)
        with self.recording(pod):
            claimed = self._evaluator.claim(uid, node)
            try:
                self._bind(space, name, uid, node)
            except errors.SchedulerError:
                if claimed:
                    self._evaluator.unclaim(uid)
                raise
        self.count_nodes(1, 1)
        self._decisions.bound(pod, node)
        return {'Error': ''}


def routes(
    evaluator: PodEvaluator,
    health: Health,
    decisions: PodDecisions,
    bind: Callable[..., None] | None,
    max_bytes: int,
) -> list[Route]:
    """Return the routes of the verbs; *bind* binds a pod at an API server.

    Binds wait for an API server, on threads of their own.
    """
    shared = evaluator, health, _Reader(), decisions
    served: list[tuple[_Verb, str]] = [
        (FilterVerb(*shared), 'inline'),
        (PrioritizeVerb(*shared), 'inline'),
        (PreemptVerb(*shared), 'inline'),
    ]
    if bind is not None:
        served.append((BindVerb(bind, *shared), 'bind'))
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
            max_bytes if verb.needs_nodes else min(max_bytes, MOST_BYTES),
            methods=('POST',),
            needs_hosts=threads == 'inline',
        )
        for verb, threads in served
    ]
