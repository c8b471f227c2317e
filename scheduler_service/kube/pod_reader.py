"""Reads v1 Pods: what they request, and what they use of a node.

If a pod has an annotation with a request of our own, the request counts, else
the fields of the object, rounded up. Pods of one workload differ only in their
names, so requests are cached by the fields that they depend on.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from decimal import ROUND_DOWN, Decimal
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from scheduler_service import errors
from scheduler_service import extender_wire as wire
from scheduler_service.kube import quantity
from scheduler_service.model import STANDARD_CLASSES, Request, documents

ZONE_LABELS = (
    'topology.kubernetes.io/zone',
    'failure-domain.beta.kubernetes.io/zone',
)
MIB, GIB = 2**20, 2**30
MAX_AMOUNT = 2**53
# Under this name each pod is counted once.
PODS = 'pods'
# What a kube-scheduler counts for a container that requests nothing.
_DEFAULT_CPU = Decimal('0.1')
_DEFAULT_MEMORY = Decimal(200 * 2**20)
_MAX_CACHED = 4096
# Characters of the keys; the values are a few times as large.
_MAX_CACHED_SIZE = 8 * 2**20
_MAX_CLASSES = 64
# The fields that count; keys in another case are valid as well.
_POD = ('metadata', 'spec')
_METADATA = ('namespace', 'annotations')
_SPEC = ('nodeSelector', 'containers', 'initContainers', 'resources',
         'overhead')  # fmt: skip
_CONTAINER = ('resources', 'restartPolicy')
_READ_FIELDS = frozenset((*_POD, *_METADATA, *_SPEC, *_CONTAINER))
_FOLDED = {name.lower() for name in _READ_FIELDS}
_NOTHING = msgspec.Raw(b'null')

K = TypeVar('K', bound=Hashable)
V = TypeVar('V')


class SizedCache(Generic[K, V]):
    """A cache that is emptied when it is full; for one thread at a time.

    :param max_size: of all values together, in the unit of :meth:`put`
    """

    def __init__(self, max_values: int, max_size: int) -> None:
        self._max_values = max_values
        self._max_size = max_size
        self._values: dict[K, V] = {}
        self._size = 0

    def get(self, key: K) -> V | None:
        """Return the value of a key; None: there is none."""
        return self._values.get(key)

    def put(self, key: K, value: V, size: int) -> None:
        """Keep a value under a key that has none."""
        if (
            len(self._values) >= self._max_values
            or self._size + size > self._max_size
        ):
            self._values.clear()
            self._size = 0
        self._values[key] = value
        self._size += size


class PodUsage(NamedTuple):
    """What a pod uses of a node.

    :ivar load: VCPU, MEMORY_MB and DISK_GB, not rounded; for comparing nodes,
        so containers that request no processor or memory count as well
    :ivar classes: every other resource class -> exact amount
    """

    load: dict[str, float]
    classes: dict[str, int]

    @property
    def amounts(self) -> dict[str, float]:
        """Amounts of all resource classes, and of one pod."""
        return {**self.load, **self.classes, PODS: 1.0}


class PodRequest(NamedTuple):
    """What pods of one key request.

    :ivar key: None: the pod is unusual, and is not cached
    """

    key: str | None
    request: Request
    usage: PodUsage


class IgnoredPods(NamedTuple):
    """Pods that pass on every node, and are not scored.

    :ivar namespaces: all pods in them
    :ivar labels: and pods with one of these labels; None as a value: any
    """

    namespaces: frozenset[str] = frozenset()
    labels: tuple[tuple[str, str | None], ...] = ()

    def has(self, pod: Any) -> bool:
        """Whether a parsed pod is one of them.

        :raises WireError: the pod is invalid
        """
        metadata = objects(pod, 'metadata')
        if wire.field(metadata, 'namespace', str) in self.namespaces:
            return True
        if not self.labels:
            return False
        labels = objects(metadata, 'labels')
        return any(
            key in labels and value in (None, labels[key])
            for key, value in self.labels
        )


class PlacedPod(NamedTuple):
    """A pod on a node."""

    uid: str
    node: str
    usage: PodUsage


class _Metadata(msgspec.Struct, gc=False):
    uid: str = ''
    annotations: dict[str, str] | None = None


class _Container(msgspec.Struct, gc=False):
    resources: msgspec.Raw = _NOTHING
    restartPolicy: str | None = None


class _Spec(msgspec.Struct, gc=False):
    nodeName: str = ''
    containers: list[_Container] | None = None
    initContainers: list[_Container] | None = None
    resources: msgspec.Raw = _NOTHING
    overhead: msgspec.Raw = _NOTHING


class _Status(msgspec.Struct, gc=False):
    nominatedNodeName: str = ''


class _Pod(msgspec.Struct, gc=False):
    metadata: _Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


_placed_pod = msgspec.json.Decoder(_Pod)


class PodReader:
    """Reads pods of a scheduler, and of an API server; for one thread.

    :param domain: of the annotations, labels and resources that are ours
    """

    def __init__(self, domain: str) -> None:
        self._domain = domain
        self._requests = SizedCache[str, PodRequest](
            _MAX_CACHED, _MAX_CACHED_SIZE
        )
        self._usages = SizedCache[Hashable, PodUsage](_MAX_CACHED, _MAX_CACHED)

    def request(self, pod: Any) -> PodRequest:
        """Return what a pod requests.

        :param pod: a v1 Pod, parsed, as a kube-scheduler sends it
        :raises WireError: the pod is invalid
        """
        key = key_of(pod, self._domain)
        cached = None if key is None else self._requests.get(key)
        if cached is not None:
            return cached
        request = PodRequest(
            key, pod_request(pod, self._domain), usage_of(pod, self._domain)
        )
        classes = len(request.usage.classes)
        if classes > _MAX_CLASSES:
            raise wire.WireError(
                f'the pod asks for {classes} extended resources; at most '
                f'{_MAX_CLASSES}'
            )
        if key is not None:
            self._requests.put(key, request, len(key))
        return request

    def placed(self, text: msgspec.Raw) -> PlacedPod:
        """Return a pod's node, else the nominated one, and its use there.

        Only the few fields that count are parsed, of some kilobytes.

        :param text: JSON of a v1 Pod, as an API server writes it
        :raises WireError: the pod is invalid
        """
        pod = _parsed(text)
        spec = pod.spec
        key = (
            (pod.metadata.annotations or {}).get(f'{self._domain}/request'),
            _resources(spec.containers),
            _resources(spec.initContainers),
            bytes(spec.resources),
            bytes(spec.overhead),
        )
        usage = self._usages.get(key)
        if usage is None:
            usage = usage_of(wire.decode(text), self._domain)
            self._usages.put(key, usage, 1)
        node = spec.nodeName or pod.status.nominatedNodeName
        return PlacedPod(pod.metadata.uid, node, usage)


def _resources(containers: list[_Container] | None) -> Hashable:
    return tuple(
        (bytes(container.resources), container.restartPolicy)
        for container in containers or ()
    )


def _parsed(text: msgspec.Raw) -> _Pod:
    try:
        return _placed_pod.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as fault:
        raise wire.WireError(f'pod: {fault}') from None


def placed_uid(text: msgspec.Raw) -> str:
    """Return the uid of a pod in JSON.

    :raises WireError: the pod is invalid
    """
    return _parsed(text).metadata.uid


def uid_of(pod: Any) -> str:
    """Return the uid of a parsed pod; empty if it has none.

    :raises WireError: the document is not a pod
    """
    uid: str = wire.field(objects(pod, 'metadata'), 'uid', str)
    return uid


class _Unusual(Exception):
    """A field has an unusual spelling or type."""


def key_of(pod: Any, domain: str) -> str | None:
    """Return a text that is equal only for pods with equal requests.

    None if the pod is unusual, for example with keys in another case.
    """
    try:
        metadata, spec = _fields(pod, _POD)
        namespace, annotations = _fields(metadata, _METADATA)
        selector, containers, first, whole, overhead = _fields(spec, _SPEC)
        return repr(
            (
                namespace,
                [
                    item
                    for item in _given(annotations, {}).items()
                    if f'{domain}/' in item[0]
                ],
                selector,
                [_fields(each, _CONTAINER) for each in _given(containers, [])],
                [_fields(each, _CONTAINER) for each in _given(first, [])],
                whole,
                overhead,
            )
        )
    except (_Unusual, AttributeError, TypeError):
        return None


def _fields(document: Any, names: tuple[str, ...]) -> list[Any]:
    if document is None:
        return [None] * len(names)
    if not isinstance(document, dict):
        raise _Unusual
    others = document.keys() - _READ_FIELDS
    if not _FOLDED.isdisjoint(map(str.lower, others)):
        raise _Unusual
    return list(map(document.get, names))


def _given(value: Any, default: Any) -> Any:
    return default if value is None else value


def objects(document: Any, name: str) -> dict[str, Any]:
    """Return a nested object; empty if it is missing."""
    return wire.field(document, name, dict) or {}


def annotated(document: Any, key: str) -> Any:
    """Return our own document in an annotation; None if there is none.

    :raises WireError: the annotation is not JSON
    """
    text = objects(objects(document, 'metadata'), 'annotations').get(key)
    if not isinstance(text, str):
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        raise wire.WireError(f'annotation {key}: not JSON') from None


def pod_request(pod: Any, domain: str) -> Request:
    """Return a pod as a request.

    :raises WireError: the pod is invalid, or its annotation not a request
    """
    given = annotated(pod, f'{domain}/request')
    document = given if given is not None else _plain_request(pod, domain)
    try:
        request = documents.request(document)
    except errors.InvalidRequest as fault:
        name = wire.field(objects(pod, 'metadata'), 'name', str)
        raise wire.WireError(f'pod {name}: {fault}') from None
    if given is not None:
        # An annotation that does not name a resource takes it from no
        # container.
        resources = request.resources
        classes = classes_of(pod_amounts(pod), domain)
        if not classes.keys() <= resources.keys():
            request = msgspec.structs.replace(
                request, amounts={**classes, **resources}
            )
    return request.with_ids()


def _plain_request(pod: Any, domain: str) -> dict[str, Any]:
    amounts = pod_amounts(pod)
    specs = {
        f'resources:{name}': str(amount)
        for name, amount in classes_of(amounts, domain).items()
    }
    selector = objects(objects(pod, 'spec'), 'nodeSelector')
    for key, value in selector.items():
        if key.startswith(f'trait.{domain}/') and value == 'true':
            specs[f'trait:{key.split("/", 1)[1].upper()}'] = 'required'
    zones = (selector[key] for key in ZONE_LABELS if selector.get(key))
    namespace = wire.field(objects(pod, 'metadata'), 'namespace', str)
    zero = Decimal(0)
    return {
        'project_id': namespace or None,
        'flavor': {
            'vcpus': _up(amounts.get('cpu', zero), 1),
            'memory_mb': _up(amounts.get('memory', zero), MIB),
            'root_gb': _up(amounts.get('ephemeral-storage', zero), GIB),
            'extra_specs': specs,
        },
        'availability_zone': next(zones, None),
    }


def usage_of(pod: Any, domain: str) -> PodUsage:
    """Return what a pod uses.

    :param pod: a v1 Pod, parsed
    :raises WireError: the pod is invalid
    """
    amounts = pod_amounts(pod)
    cpu = amounts.get('cpu', Decimal(0))
    memory = amounts.get('memory', Decimal(0))
    spec = objects(pod, 'spec')
    for container in wire.field(spec, 'containers', list) or ():
        requested = _requested(container)
        if 'cpu' not in requested:
            cpu += _DEFAULT_CPU
        if 'memory' not in requested:
            memory += _DEFAULT_MEMORY
    disk = amounts.get('ephemeral-storage', Decimal(0))
    load = {
        'VCPU': float(cpu),
        'MEMORY_MB': float(memory) / MIB,
        'DISK_GB': float(disk) / GIB,
    }
    annotations = objects(objects(pod, 'metadata'), 'annotations')
    if f'{domain}/request' not in annotations:
        return PodUsage(load, classes_of(amounts, domain))
    resources = dict(pod_request(pod, domain).resources)
    for name in STANDARD_CLASSES:
        resources.pop(name, None)
    return PodUsage(load, resources)


def classes_of(amounts: Mapping[str, Decimal], domain: str) -> dict[str, int]:
    """Return the extended resources among amounts, by class."""
    totals: dict[str, int] = {}
    for key, amount in amounts.items():
        name = quantity.class_of(key, domain)
        if name is not None and amount > 0:
            totals[name] = totals.get(name, 0) + _up(amount, 1)
    return totals


def pod_amounts(pod: Any) -> dict[str, Decimal]:
    """Return how much of each resource a pod requests, in units of 1.

    That is the larger of: all containers and sidecars together; each init
    container with the sidecars before it. The pod's overhead is added.

    :raises WireError: a quantity is not valid
    """
    spec = objects(pod, 'spec')
    total: dict[str, Decimal] = {}
    for container in wire.field(spec, 'containers', list) or ():
        _add(total, _requested(container))
    sidecars: dict[str, Decimal] = {}
    peak: dict[str, Decimal] = {}
    for container in wire.field(spec, 'initContainers', list) or ():
        step = dict(sidecars)
        _add(step, _requested(container))
        _raise_to(peak, step)
        if wire.field(container, 'restartPolicy', str) == 'Always':
            sidecars = step
    _add(total, sidecars)
    total.update(
        (name, amount)
        for name, amount in _requested(spec).items()
        if name in ('cpu', 'memory') or name.startswith('hugepages-')
    )
    _raise_to(total, peak)
    _add(total, _quantities(objects(spec, 'overhead')))
    return total


def _requested(container: Any) -> dict[str, Decimal]:
    resources = objects(container, 'resources')
    limits = _quantities(objects(resources, 'limits'))
    return {**limits, **_quantities(objects(resources, 'requests'))}


def _quantities(values: Mapping[str, Any]) -> dict[str, Decimal]:
    amounts = {}
    for name, value in values.items():
        try:
            amounts[name] = quantity.parse(value)
        except quantity.BadQuantity as fault:
            raise wire.WireError(f'{name}: {fault}') from None
    return amounts


def _add(total: dict[str, Decimal], more: Mapping[str, Decimal]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, Decimal(0)) + amount


def _raise_to(peak: dict[str, Decimal], step: Mapping[str, Decimal]) -> None:
    for name, amount in step.items():
        peak[name] = max(peak.get(name, Decimal(0)), amount)


def _up(amount: Decimal, unit: int) -> int:
    rounded = (amount / unit).to_integral_value(ROUND_DOWN)
    more = 1 if rounded * unit < amount else 0
    return min(max(int(rounded) + more, 0), MAX_AMOUNT)
