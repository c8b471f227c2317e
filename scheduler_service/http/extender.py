"""The endpoints that a kube-scheduler calls: filter, prioritize and so on.

What goes wrong is answered with status 200 and ``Error``: nothing else is
read there. Only a body that is no JSON, or too long, gets a 4xx.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from typing import Any

import falcon
import msgspec

from scheduler_service import errors
from scheduler_service.engine import pods
from scheduler_service.engine.pods import Nodes, PodEvaluator
from scheduler_service.extender import wire

Body = Callable[[Any], bytes]


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


class _Score(msgspec.Struct, gc=False):
    Host: str
    Score: int


_typed = msgspec.json.Decoder(_Args)
_name_of = msgspec.json.Decoder(_Named)


class Asked:
    """The arguments of filter and prioritize, in either form.

    :ivar items: node name -> its object as it came, JSON; None for names
    """

    def __init__(
        self, pod: Any, names: list[str], items: dict[str, Any] | None
    ) -> None:
        self.pod = pod
        self.names = names
        self.items = items

    @classmethod
    def read(cls, body: bytes) -> Asked:
        """Read them; the usual spelling without reading every node.

        :raises WireError: they cannot be read
        """
        try:
            found = _typed.decode(body)
            if found.NodeNames is not None:
                return cls(found.Pod, found.NodeNames, None)
            if found.Nodes is not None:
                items = {
                    _name_of.decode(one).metadata.name: one
                    for one in found.Nodes.items or ()
                }
                if '' not in items:
                    return cls(found.Pod, list(items), items)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        return cls._read_slowly(wire.decode(body))

    @classmethod
    def _read_slowly(cls, document: Any) -> Asked:
        pod = wire.field(document, 'Pod', dict)
        names = wire.strings(document, 'NodeNames')
        if names is not None:
            return cls(pod, names, None)
        listed = wire.items(document, 'Nodes') or []
        items = {wire.name_of(one): one for one in listed}
        return cls(pod, list(items), items)

    def nodes(self) -> Nodes:
        """Return the nodes to judge."""
        if self.items is None:
            return Nodes(self.names)
        return Nodes(self.names, self._document)

    def _document(self, name: str) -> Any:
        assert self.items is not None
        return self.items[name]


class _Verb(abc.ABC):
    """Base of the verbs: reads, works, and writes what is due."""

    def __init__(self, judge: PodEvaluator, body: Body) -> None:
        self._judge = judge
        self._body = body

    def on_post(self, req: Any, resp: Any) -> None:
        """Answer a call."""
        text = self._body(req)
        try:
            answer = self.answer(text)
        except wire.WireError as fault:
            if not _is_json(text):
                raise
            answer = self.failed(str(fault))
        except errors.SchedulerError as error:
            answer = self.failed(f'{error.name}: {error.args[0]}')
        resp.content_type = falcon.MEDIA_JSON
        resp.data = wire.encode(answer)

    @abc.abstractmethod
    def answer(self, text: bytes) -> Any:
        """Return the answer to a body."""

    def failed(self, text: str) -> Any:
        """Return the answer that says what went wrong."""
        return {'Error': text.replace('%', ' percent')}


def _is_json(text: bytes) -> bool:
    try:
        wire.decode(text)
    except wire.WireError:
        return False
    return True


class Filter(_Verb):
    """Which nodes pass, in the form and order they came."""

    def answer(self, text: bytes) -> Any:
        """Judge the nodes."""
        asked = Asked.read(text)
        found = self._judge.filter(asked.pod, asked.nodes())
        nodes = names = None
        if asked.items is None:
            names = found.passed
        else:
            listed = [asked.items[one] for one in found.passed]
            nodes = {'metadata': {}, 'items': listed}
        return {
            'Nodes': nodes,
            'NodeNames': names,
            'FailedNodes': found.failed,
            'FailedAndUnresolvableNodes': found.never,
            'Error': '',
        }

    def failed(self, text: str) -> Any:
        """Say it, and let no node pass."""
        return {
            'Nodes': None,
            'NodeNames': None,
            'FailedNodes': {},
            'FailedAndUnresolvableNodes': {},
            **super().failed(text),
        }


class Prioritize(_Verb):
    """Scores of 0 to 10."""

    def answer(self, text: bytes) -> Any:
        """Weigh the nodes."""
        asked = Asked.read(text)
        found = self._judge.prioritize(asked.pod, asked.nodes())
        return [_Score(name, score) for name, score in found.items()]

    def failed(self, text: str) -> Any:
        """Score nobody: there is no place for an error."""
        return []


class Preempt(_Verb):
    """The candidates where evicting pods may help."""

    def answer(self, text: bytes) -> Any:
        """Leave out nodes that would never pass."""
        document = wire.decode(text)
        victims = wire.asked_victims(document)
        pod = wire.field(document, 'Pod', dict)
        kept = pods.preemption_candidates(self._judge, pod, victims)
        return wire.meta_victims(victims, kept)

    def failed(self, text: str) -> Any:
        """Offer no candidate: there is no place for an error."""
        return {'NodeNameToMetaVictims': {}}


class Bind(_Verb):
    """Binds a pod at the API server; the same again is done already."""

    def __init__(self, judge: PodEvaluator, binder: Any, body: Body) -> None:
        super().__init__(judge, body)
        self._binder = binder

    def answer(self, text: bytes) -> Any:
        """Bind."""
        document = wire.decode(text)
        read = functools.partial(wire.field, document, kind=str)
        name, space = read('PodName'), read('PodNamespace')
        uid, node = read('PodUID'), read('Node')
        if not (name and space and node):
            raise wire.WireError('PodName, PodNamespace and Node are needed')
        self._binder.bind(space, name, uid, node)
        return {'Error': ''}


def add(app: Any, judge: PodEvaluator, binder: Any, body: Body) -> None:
    """Add the routes; bind only where there is something to bind at."""
    app.add_route('/extender/filter', Filter(judge, body))
    app.add_route('/extender/prioritize', Prioritize(judge, body))
    app.add_route('/extender/preempt', Preempt(judge, body))
    if binder is not None:
        app.add_route('/extender/bind', Bind(judge, binder, body))
