"""The endpoints that a kube-scheduler calls: filter, prioritize and so on.

Errors have status 200 and a text in ``Error``, since the kube-scheduler reads
nothing else. Only a body that is not JSON, or too long, gets a 4xx. Before
the hosts and the nodes of a followed cluster are loaded, the status is 503: a
kube-scheduler then goes on without an extender that is ``ignorable``, also
for verbs whose reply has no ``Error``. Any thread may run the verbs;
``http.routes`` says which do.

A pod is bound after its use of a host is claimed. A thread of the HTTP server
calls :meth:`PodBinder.bind`, which waits for the engine: it claims, and hands
the job to the stage *bind*, whose threads call the API server. A binding that
fails is undone by the cycle. One of which nobody knows whether it was made
keeps its claim until the pod is seen, or was not for a while.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

import msgspec

from scheduler_service import errors
from scheduler_service import extender_wire as wire
from scheduler_service.columns import HostTable
from scheduler_service.engine.health import Health
from scheduler_service.engine.jobs import HostJob, PodJob
from scheduler_service.engine.measurements import VERB_ROUTE
from scheduler_service.engine.messages import DeliveredMessage
from scheduler_service.engine.queue import RequestQueue
from scheduler_service.http.message import HttpRequest, Reply
from scheduler_service.http.routes import Route
from scheduler_service.kube.api import ApiServer
from scheduler_service.kube.evaluator import (
    Nodes,
    PodDecisions,
    PodEvaluator,
    PodPlace,
)
from scheduler_service.kube.node_reader import MOST_BYTES
from scheduler_service.kube.pod_book import PodBook
from scheduler_service.kube.pod_reader import Pod, PodMetadata
from scheduler_service.kube.pod_reader import read as read_pod
from scheduler_service.model import Request
from scheduler_service.model.limits import NAME_LENGTH
from scheduler_service.stages import WaitingStage

_MESSAGE = DeliveredMessage(lane='pods')
# The engine answers a job whose deadline has passed, unless the database
# keeps it waiting.
_LONGER_S = 0.5
# How long a pod waits for claims to be released whose pods are gone.
_RELEASE_S = 2.0


class _Metadata(msgspec.Struct):
    name: str = ''
    uid: str = ''


class _Object(msgspec.Struct):
    metadata: _Metadata


class _Items(msgspec.Struct):
    items: list[msgspec.Raw] | None = None


class _Parsed(msgspec.Struct):
    items: list[_Object] | None = None


class _Args(msgspec.Struct):
    Pod: msgspec.Raw
    Nodes: _Items | None = None
    NodeNames: list[str] | None = None


class _Victims(msgspec.Struct):
    Pods: list[_Object] | None
    NumPDBViolations: int = 0


class _MetaPod(msgspec.Struct):
    UID: str


class _MetaVictims(msgspec.Struct):
    """Pods to evict from a node, and how many budgets that violates."""

    Pods: list[_MetaPod] | None
    NumPDBViolations: int = 0


Bind = Callable[[PodMetadata, str], None]
_NULL = msgspec.Raw(b'null')
# Fields of large bodies, spelled as in Go or in lower case.
_Fields = msgspec.defstruct(
    '_Fields',
    [
        (spelled, msgspec.Raw, _NULL)
        for name in ('Pod', 'Nodes', 'NodeNames', 'NodeNameToVictims',
                     'NodeNameToMetaVictims')
        for spelled in (name, name.lower())
    ],
)  # fmt: skip


# Parts that would change the path of a call.
_NO_NAMES = {'.', '..'}
# Bodies up to this size are kept for the next verb.
_REMEMBERED_BYTES = 8 * 1024 * 1024
# Nodes of a call, and victims of a call for preemption.
MOST_OBJECTS = 100_000
_object = msgspec.json.Decoder(_Object)
_typed = msgspec.json.Decoder(_Args)
_fields = msgspec.json.Decoder(_Fields)
_strings = msgspec.json.Decoder(list[str])
_parsed = msgspec.json.Decoder(_Parsed)
_items = msgspec.json.Decoder(_Items)
_victims = msgspec.json.Decoder(dict[str, _Victims])
_meta_victims = msgspec.json.Decoder(dict[str, _MetaVictims])
_NOT_PARSED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class NodeArgs(NamedTuple):
    """The arguments of filter and prioritize."""

    pod: Pod
    nodes: Nodes

    @classmethod
    def read(cls, body: bytes) -> NodeArgs:
        """Parse a body; nodes stay unparsed.

        :raises WireError: the body is not valid
        :raises PayloadTooLarge: the pod is too large, or there are too many
            nodes
        """
        try:
            if len(body) <= MOST_BYTES:
                args = _typed.decode(body)
                pod = read_pod(args.Pod)
                if pod.spec.containers and args.NodeNames is not None:
                    return cls(pod, Nodes(args.NodeNames))
                if pod.spec.containers and args.Nodes is not None:
                    items = {
                        _object.decode(node).metadata.name: node
                        for node in args.Nodes.items or ()
                    }
                    return cls(pod, Nodes(list(items), items))
        except (*_NOT_PARSED, wire.WireError):
            pass
        # Large, not valid, or with fields in another case.
        return cls._of(_Body(body))

    @classmethod
    def _of(cls, body: _Body) -> NodeArgs:
        pod = body.pod()
        names = body.parse('NodeNames', _strings, b',')
        if names is not None:
            return cls(pod, Nodes(names))
        mark = b'"metadata"'
        # Stops at the first item that is no node, however many follow.
        nodes = body.parse('Nodes', _parsed, mark)
        items = {}
        if nodes is not None and nodes.items:
            raw = body.parse('Nodes', _items, mark)
            items = {
                node.metadata.name: item
                for node, item in zip(nodes.items, raw.items, strict=True)
            }
        return cls(pod, Nodes(list(items), items))


class _Body:
    """The fields of a body that are read.

    Parsing all of a large one could take seconds, and many times its bytes.
    Methods raise WireError where a field is not valid, and PayloadTooLarge
    where the pod has more than :data:`MOST_BYTES`, or a field more objects
    than :data:`MOST_OBJECTS`.

    :raises NotJson: it is not an object
    """

    def __init__(self, body: bytes) -> None:
        if len(body) <= MOST_BYTES:
            body = wire.encode(wire.respelled(wire.decode(body)))
        try:
            self._fields = _fields.decode(body)
        except _NOT_PARSED as fault:
            raise wire.NotJson(f'not JSON: {fault}') from None

    def _text(self, name: str) -> msgspec.Raw:
        text: msgspec.Raw = getattr(self._fields, name)
        return getattr(self._fields, name.lower()) if text == _NULL else text

    def pod(self) -> Pod:
        """Return the pod."""
        text = self._text('Pod')
        size = len(memoryview(text))
        if size > MOST_BYTES:
            raise errors.PayloadTooLarge(
                f'Pod: {size} bytes, at most {MOST_BYTES} are allowed',
                size=size,
                limit=MOST_BYTES,
            )
        return read_pod(text)

    def parse(
        self, name: str, decoder: msgspec.json.Decoder[Any], *marks: bytes
    ) -> Any:
        """Return a field; None without it.

        :param marks: texts of which each of its objects has one
        """
        text = self._text(name)
        if text == _NULL:
            return None
        size = len(memoryview(text))
        content = bytes(text) if size > MOST_BYTES else b''
        if sum(map(content.count, marks)) > MOST_OBJECTS:
            raise errors.PayloadTooLarge(
                f'{name}: more than {MOST_OBJECTS} are not allowed',
                limit=MOST_OBJECTS,
            )
        try:
            return decoder.decode(text)
        except _NOT_PARSED as fault:
            raise wire.WireError(f'{name}: {fault}') from None

    def victims(self) -> dict[str, _MetaVictims]:
        """Return the victims by candidate node, sent as uids or as pods."""
        meta: dict[str, _MetaVictims] | None = self.parse(
            'NodeNameToMetaVictims', _meta_victims, b'"Pods"', b'"UID"'
        )
        if meta is not None:
            return meta
        with_pods: dict[str, _Victims] | None = self.parse(
            'NodeNameToVictims', _victims, b'"Pods"', b'"metadata"'
        )
        return {
            node: _MetaVictims(
                [_MetaPod(pod.metadata.uid) for pod in victims.Pods or ()],
                victims.NumPDBViolations,
            )
            for node, victims in (with_pods or {}).items()
        }


class _Reader:
    """Reads arguments, and keeps those of the last call.

    Where all nodes pass, the calls for filter and prioritize have the same
    body: its arguments, with the evaluator's results, are used again.
    """

    def __init__(self) -> None:
        self._last: tuple[bytes, NodeArgs] = b'', NodeArgs(Pod(), Nodes([]))

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
        self._health.count('extender_verb_errors', self.name)
        return self.failed(text)

    def count_nodes(self, received: int, returned: int) -> None:
        """Count the nodes of a call."""
        count, name = self._health.count, 'extender_verb_nodes'
        count(name, self.name, 'received', by=received)
        count(name, self.name, 'returned', by=returned)

    @contextlib.contextmanager
    def recording(self, pod: Pod) -> Iterator[None]:
        """Record why the block fails for a pod."""
        try:
            yield
        except errors.SchedulerError as error:
            self._decisions.failed(self.name, pod, error)
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
        received, returned = len(args.nodes.names), len(result.passed)
        self.count_nodes(received, returned)
        self._decisions.filtered(
            self.name, args.pod, received, returned, result.rejections
        )
        nodes = names = None
        if args.nodes.items is None:
            names = result.passed
        else:
            items = [args.nodes.items[name] for name in result.passed]
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
        self.count_nodes(len(args.nodes.names), len(scores.names))
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
        body = _Body(text)
        victims, pod = body.victims(), body.pod()
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
        return {
            'NodeNameToMetaVictims': {node: victims[node] for node in kept}
        }

    def failed(self, text: str) -> Any:
        """Return no candidate: the reply has no field for an error."""
        return {'NodeNameToMetaVictims': {}}


class BindVerb(_Verb):
    """Binds a pod at the API server; a repeated call succeeds, too."""

    name = 'bind'
    needs_nodes = False

    def __init__(self, bind: Bind, *shared: Any) -> None:
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
        pod = Pod(PodMetadata(space, name, uid))
        with self.recording(pod):
            self._bind(pod.metadata, node)
        self.count_nodes(1, 1)
        self._decisions.bound(pod, node)
        return {'Error': ''}


def routes(
    evaluator: PodEvaluator,
    health: Health,
    decisions: PodDecisions,
    bind: Bind | None,
    max_bytes: int,
) -> list[Route]:
    """Return the routes of the verbs; *bind* binds a pod to a node.

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
        health.count('http_requests', f'{VERB_ROUTE}{verb.name}', '200', by=0)
        health.count('extender_verb_calls', verb.name, by=0)
        health.count('extender_verb_errors', verb.name, by=0)
        verb.count_nodes(0, 0)
    return [
        Route(
            f'{VERB_ROUTE}{verb.name}',
            verb.serve,
            threads,
            max_bytes if verb.needs_nodes else min(max_bytes, MOST_BYTES),
            methods=('POST',),
            needs_hosts=threads == 'inline',
        )
        for verb, threads in served
    ]


class PodBinder(WaitingStage):
    """Binds pods at the API server: those that take something claimed.

    :param put: queues a job for the engine
    :param book: of what pods take; None: it is not claimed
    :ivar api: where pods are bound
    :ivar timeout: seconds within which a pod has to be bound
    """

    name = 'bind'
    kinds = ('pod',)

    def __init__(
        self,
        evaluator: PodEvaluator,
        put: Callable[[PodJob], Future[Any]],
        book: PodBook | None,
        queue: RequestQueue,
        threads: int,
    ) -> None:
        super().__init__('kube-bind', threads, queue)
        self._evaluator, self._put = evaluator, put
        self._book = book
        self.api: ApiServer
        self.timeout = 0.0

    def use(self, api: ApiServer, timeout: float) -> None:
        """Bind at another API server from now on."""
        self.api, self.timeout = api, timeout

    def bind(self, pod: PodMetadata, node: str) -> None:
        """Bind a pod to a node; a repeated call succeeds, too.

        :raises Conflict: what the pod takes is not free any more
        :raises ExtenderFailed: the API server refuses, or is unreachable
        :raises StoreUnavailable: the claim was not made in time
        """
        deadline = time.monotonic() + self.timeout
        read = None
        if self._evaluator.booked and not self._evaluator.knows(pod.uid):
            # Another daemon filtered nodes for it.
            read = self._read(pod)
        place = self._evaluator.reserve(pod.uid, node, read)
        bound = False
        try:
            if place is not None and place.amounts and self._evaluator.booked:
                try:
                    self._bind_claimed(pod, place, deadline)
                except errors.NoValidHost:
                    # Claims of pods that are gone may be in the way.
                    seconds = min(_RELEASE_S, deadline - time.monotonic())
                    if not (
                        place.left
                        and self._book
                        and self._book.wait_released(place.left, seconds)
                    ):
                        raise
                    self._bind_claimed(pod, place, deadline)
            else:
                self._call(pod, node, deadline)
            bound = True
        finally:
            if place is not None:
                self._evaluator.end_reservation(pod.uid, bound)

    def _read(self, pod: PodMetadata) -> Pod | None:
        found = self.api.pod(pod.namespace, pod.name, self.timeout)
        if found is None or (pod.uid and found.metadata.uid != pod.uid):
            raise errors.NotFound(
                f'There is no pod {pod.namespace}/{pod.name} of this uid'
            )
        pod.uid = found.metadata.uid
        is_other = bool(found.spec.nodeName) or self._evaluator.ignores(found)
        return None if is_other else found

    def _bind_claimed(
        self, pod: PodMetadata, place: PodPlace, deadline: float
    ) -> None:
        job = PodJob(
            request=Request(
                request_id=f'{pod.namespace}/{pod.name}'[:NAME_LENGTH],
                project_id=pod.namespace,
                instance_uuids=[pod.uid],
                amounts=place.amounts,
            ),
            host=place.host,
            node=place.node,
            name=pod.name,
            deadline=deadline,
            message=_MESSAGE,
        )
        future = self._put(job)
        try:
            future.result(max(0.0, deadline - time.monotonic()) + _LONGER_S)
        except (TimeoutError, errors.TooLate):
            raise errors.StoreUnavailable(
                'What the pod takes could not be claimed in time'
            ) from None
        if job.doubt is not None:
            raise job.doubt

    def run(self, jobs: Sequence[HostJob], table: HostTable) -> None:
        """Take away the jobs of pods; they come back bound."""
        for job in jobs:
            assert isinstance(job, PodJob)
            self._lend(job, partial(self._bind_job, job))

    def _bind_job(self, job: PodJob) -> None:
        space, [uid] = job.request.project_id, job.request.instance_uuids
        pod = PodMetadata(str(space), job.name, uid)
        try:
            self._call(pod, job.node, job.deadline or 0.0)
        except errors.ExtenderFailed as error:
            if not error.facts.get('in_doubt'):
                raise
            job.doubt = error

    def _call(self, pod: PodMetadata, node: str, deadline: float) -> None:
        timeout = deadline - time.monotonic()
        self.api.bind(pod.namespace, pod.name, pod.uid, node, timeout)
