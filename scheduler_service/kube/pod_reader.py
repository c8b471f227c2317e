"""Reads v1 Pods: what they request, and what they use of a node.

If a pod has an annotation with a request of our own, the request counts, else
the fields of the object, rounded up. Only the few fields that count are
parsed, spelled as in JSON of an API server. Pods of one workload differ only
in their names, so results are cached by the fields that they depend on. All
functions raise WireError where a pod is invalid.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from decimal import ROUND_DOWN, Decimal
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from scheduler_service import errors
from scheduler_service import extender_wire as wire
from scheduler_service.kube import quantity
from scheduler_service.model import STANDARD_CLASSES, Request, documents
from scheduler_service.model.inventory import class_of
from scheduler_service.model.limits import NAME_LENGTH

ZONE_LABELS = (
    'topology.kubernetes.io/zone',
    'failure-domain.beta.kubernetes.io/zone',
)
MIB, GIB = 2**20, 2**30
MAX_AMOUNT = 2**53
# Under this name each pod is counted once.
PODS = 'pods'
# Amounts of these classes are claimed in whole units, and requested in parts:
# thousandths, and bytes.
PARTS = {'VCPU': 1000, 'MEMORY_MB': MIB, 'DISK_GB': GIB}
_RESOURCES = {'VCPU': 'cpu', 'MEMORY_MB': 'memory',
              'DISK_GB': 'ephemeral-storage'}  # fmt: skip


def parts_of(name: str) -> str:
    """Return the name under which parts of a class are counted."""
    return f'parts of {name}'


# What a kube-scheduler counts for a container that requests nothing.
_DEFAULT_CPU = Decimal('0.1')
_DEFAULT_MEMORY = Decimal(200 * 2**20)
_MAX_CACHED = 4096
# Characters of the keys; the values are a few times as large.
_MAX_CACHED_SIZE = 8 * 2**20
_MAX_CLASSES = 64
V = TypeVar('V')


class SizedCache(Generic[V]):
    """A cache that is emptied when it is full; for one thread at a time.

    :param max_size: of all values together, in the unit of :meth:`put`
    """

    def __init__(self, max_values: int, max_size: int) -> None:
        self._max_values = max_values
        self._max_size = max_size
        self._values: dict[bytes, V] = {}
        self._size = 0

    def get(self, key: bytes) -> V | None:
        """Return the value of a key; None: there is none."""
        return self._values.get(key)

    def put(self, key: bytes, value: V, size: int) -> None:
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
    :ivar foreign: the classes among them that others may offer: a container
        requests them, in a domain that is not ours, and no annotation of ours
    :ivar parts: class -> requested :data:`PARTS` of it, where hosts are shared
        with instances
    """

    load: dict[str, float]
    classes: dict[str, int]
    foreign: frozenset[str] = frozenset()
    parts: Mapping[str, int] = {}

    def having(self, known: Set[str]) -> PodUsage:
        """Return the use without foreign classes that are not known."""
        left = self.classes.keys() - (self.foreign - known)
        classes = {n: a for n, a in self.classes.items() if n in left}
        return self._replace(classes=classes, foreign=self.foreign & known)

    @property
    def is_claimed(self) -> bool:
        """Whether it takes something that is claimed."""
        return bool(self.classes or self.parts)

    @property
    def amounts(self) -> dict[str, float]:
        """Amounts of all resource classes, and of one pod."""
        amounts = {**self.load, **self.classes, PODS: 1.0}
        for name, amount in self.parts.items():
            amounts[parts_of(name)] = float(amount)
        return amounts

    def claimed(self, before: Mapping[str, int]) -> dict[str, int]:
        """Return what a pod takes of its host in whole units.

        :param before: parts that other pods on the host have; what all of them
            take is their sum, rounded up once
        """
        amounts = dict(self.classes)
        for name, parts in self.parts.items():
            unit, first = PARTS[name], before.get(name, 0)
            amounts[name] = -(-(first + parts) // unit) - -(-first // unit)
        return {name: amount for name, amount in amounts.items() if amount}


class PodRequest(NamedTuple):
    """What pods of one key request.

    :ivar key: equal only for pods with equal requests
    """

    key: bytes
    request: Request
    usage: PodUsage

    def having(self, usage: PodUsage) -> PodRequest:
        """Return the request for no extended resources but those in use."""
        resources = self.request.resources
        kept = {*STANDARD_CLASSES, *usage.classes}
        amounts = {n: a for n, a in resources.items() if n in kept}
        if amounts == resources:
            return self._replace(usage=usage)
        key = self.key + _encode(sorted(usage.classes))
        return PodRequest(key, self.request.having(amounts=amounts), usage)


class IgnoredPods(NamedTuple):
    """Pods that pass on every node, and are not scored.

    :ivar namespaces: all pods in them
    :ivar labels: and pods with one of these labels; None as a value: any
    """

    namespaces: frozenset[str] = frozenset()
    labels: tuple[tuple[str, str | None], ...] = ()

    def has(self, pod: Pod) -> bool:
        """Whether a pod is one of them."""
        labels = pod.metadata.labels or {}
        return pod.metadata.namespace in self.namespaces or any(
            key in labels and value in (None, labels[key])
            for key, value in self.labels
        )


class PlacedPod(NamedTuple):
    """A pod on a node."""

    uid: str
    node: str
    usage: PodUsage
    priority: int = 0


class PodMetadata(msgspec.Struct, gc=False):
    """Names of a pod, its labels and its annotations."""

    namespace: str = ''
    name: str = ''
    uid: str = ''
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Resources(msgspec.Struct, gc=False):
    limits: dict[str, Any] | None = None
    requests: dict[str, Any] | None = None


_NOTHING = _Resources()


class _Container(msgspec.Struct, gc=False):
    name: str = ''
    resources: _Resources | None = None
    restartPolicy: str | None = None


class _Given(msgspec.Struct, gc=False):
    """What the kubelet has given to a container, or to a pod."""

    name: str = ''
    resources: _Resources | None = None
    allocatedResources: dict[str, Any] | None = None


class _Condition(msgspec.Struct, gc=False):
    type: str = ''
    reason: str | None = None


class _SchedulingGroup(msgspec.Struct, gc=False):
    podGroupName: str | None = None


class _Spec(msgspec.Struct, gc=False):
    nodeName: str = ''
    priority: int | None = None
    nodeSelector: dict[str, str] | None = None
    containers: list[_Container] | None = None
    initContainers: list[_Container] | None = None
    resources: _Resources | None = None
    overhead: dict[str, Any] | None = None
    schedulingGroup: _SchedulingGroup | None = None


class _Status(_Given, gc=False):
    nominatedNodeName: str = ''
    conditions: list[_Condition] | None = None
    containerStatuses: list[_Given] | None = None
    initContainerStatuses: list[_Given] | None = None

    def is_infeasible(self) -> bool:
        """Whether the node never gives the pod what it was resized to."""
        return any(
            condition.type == 'PodResizePending'
            and condition.reason == 'Infeasible'
            for condition in self.conditions or ()
        )


class Pod(msgspec.Struct, gc=False):
    """The fields of a v1 Pod that are read."""

    metadata: PodMetadata = msgspec.field(default_factory=PodMetadata)
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def group(self) -> str | None:
        """The name of its scheduling group; None: it has none."""
        group = self.spec.schedulingGroup
        return None if group is None else group.podGroupName


_decoder = msgspec.json.Decoder(Pod)
_encode = msgspec.json.Encoder().encode


def read(text: bytes | msgspec.Raw) -> Pod:
    """Return a pod.

    :param text: JSON of a v1 Pod
    """
    try:
        return _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise wire.WireError(f'pod: {fault}') from None


class PodReader:
    """Says what pods request and use; for one thread.

    :param domain: of the annotations, labels and resources that are ours
    :param managed: the only foreign classes that are read; None: all
    :param shared: whether hosts are shared with instances
    """

    def __init__(
        self,
        domain: str,
        managed: frozenset[str] | None = None,
        shared: bool = False,
    ) -> None:
        self._domain = domain
        self._shared = shared
        self._managed = managed
        self._requests = SizedCache[PodRequest](_MAX_CACHED, _MAX_CACHED_SIZE)
        self._usages = SizedCache[PodUsage](_MAX_CACHED, _MAX_CACHED_SIZE)

    def request(self, pod: Pod) -> PodRequest:
        """Return what a pod requests."""
        key = key_of(pod, self._domain)
        cached = self._requests.get(key)
        if cached is not None:
            return cached
        usage = self._usage_of(pod)
        request = PodRequest(key, pod_request(pod, self._domain), usage)
        request = request.having(usage)
        classes = len(request.usage.classes)
        if classes > _MAX_CLASSES:
            raise wire.WireError(
                f'the pod asks for {classes} extended resources; at most '
                f'{_MAX_CLASSES}'
            )
        self._requests.put(key, request, len(key))
        return request

    def placed(self, text: msgspec.Raw) -> PlacedPod:
        """Return a pod's node, else the nominated one, and its use there.

        :param text: JSON of a v1 Pod
        """
        return self.named(text)[1]

    def named(self, text: msgspec.Raw) -> tuple[str, PlacedPod]:
        """Return the same after the namespace, a slash, and the name."""
        pod = read(text)
        metadata, priority = pod.metadata, pod.spec.priority or 0
        name = f'{metadata.namespace}/{metadata.name}'[:NAME_LENGTH]
        node = pod.spec.nodeName or pod.status.nominatedNodeName
        placed = PlacedPod(metadata.uid, node, self.usage(pod), priority)
        return name, placed

    def usage(self, pod: Pod) -> PodUsage:
        """Return what a pod uses."""
        key = key_of(pod, self._domain)
        usage = self._usages.get(key)
        if usage is None:
            usage = self._usage_of(pod)
            self._usages.put(key, usage, len(key))
        return usage

    def _usage_of(self, pod: Pod) -> PodUsage:
        usage = usage_of(pod, self._domain)
        if self._shared:
            amounts = pod_amounts(pod)
            parts = {
                name: _up(amounts.get(key, Decimal(0)) * 1000, 1)
                if name == 'VCPU'
                else _up(amounts.get(key, Decimal(0)), 1)
                for name, key in _RESOURCES.items()
            }
            usage = usage._replace(parts={n: p for n, p in parts.items() if p})
        if self._managed is None:
            return usage
        return usage.having(self._managed)._replace(foreign=frozenset())


def key_of(pod: Pod, domain: str) -> bytes:
    """Return a text that is equal only for pods with equal requests."""
    spec, status = pod.spec, pod.status
    return _encode(
        (
            pod.metadata.namespace,
            (pod.metadata.annotations or {}).get(f'{domain}/request'),
            spec.nodeSelector,
            spec.containers,
            spec.initContainers,
            spec.resources,
            spec.overhead,
            status.containerStatuses,
            status.initContainerStatuses,
            status.resources,
            status.allocatedResources,
            status.is_infeasible(),
        )
    )


def annotated(annotations: Mapping[str, Any] | None, key: str) -> Any:
    """Return our own document in an annotation; None if there is none."""
    text = (annotations or {}).get(key)
    if not isinstance(text, str):
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        raise wire.WireError(f'annotation {key}: not JSON') from None


def _own_request(pod: Pod, domain: str) -> Request | None:
    """Return the request in the annotation of a pod, None if there is none."""
    given = annotated(pod.metadata.annotations, f'{domain}/request')
    return None if given is None else _parsed(pod, given)


def _parsed(pod: Pod, document: Any) -> Request:
    try:
        request = documents.request(document)
        request.refuse_internal_hints()
        return request
    except errors.InvalidRequest as fault:
        raise wire.WireError(f'pod {pod.metadata.name}: {fault}') from None


def pod_request(pod: Pod, domain: str) -> Request:
    """Return a pod as a request."""
    own = _own_request(pod, domain)
    request = own or _parsed(pod, _plain_request(pod, domain))
    if own is not None:
        # An annotation that does not name a resource takes it from no
        # container.
        resources = request.resources
        classes = classes_of(pod_amounts(pod), domain)
        if not classes.keys() <= resources.keys():
            request = msgspec.structs.replace(
                request, amounts={**classes, **resources}
            )
    return request.with_ids()


def _plain_request(pod: Pod, domain: str) -> dict[str, Any]:
    amounts = pod_amounts(pod)
    specs = {
        f'resources:{name}': str(amount)
        for name, amount in classes_of(amounts, domain).items()
    }
    selector = pod.spec.nodeSelector or {}
    for key, value in selector.items():
        if key.startswith(f'trait.{domain}/') and value == 'true':
            specs[f'trait:{key.split("/", 1)[1].upper()}'] = 'required'
    zones = (selector[key] for key in ZONE_LABELS if selector.get(key))
    zero = Decimal(0)
    return {
        'project_id': pod.metadata.namespace or None,
        'flavor': {
            'vcpus': _up(amounts.get('cpu', zero), 1),
            'memory_mb': _up(amounts.get('memory', zero), MIB),
            'root_gb': _up(amounts.get('ephemeral-storage', zero), GIB),
            'extra_specs': specs,
        },
        'availability_zone': next(zones, None),
    }


def usage_of(pod: Pod, domain: str) -> PodUsage:
    """Return what a pod uses."""
    amounts = pod_amounts(pod)
    cpu = amounts.get('cpu', Decimal(0))
    memory = amounts.get('memory', Decimal(0))
    of_pod = _requested(pod.spec.resources)
    for container in pod.spec.containers or ():
        requested = {**of_pod, **_requested(container.resources)}
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
    classes = classes_of(amounts, domain)
    own = {n: a for n, a in amounts.items() if n.startswith(f'{domain}/')}
    foreign = classes.keys() - classes_of(own, domain).keys()
    asked = _own_request(pod, domain)
    if asked is not None:
        stated = {
            name: amount
            for name, amount in asked.resources.items()
            if name not in STANDARD_CLASSES
        }
        classes = {**classes, **stated}
        foreign -= stated.keys()
    return PodUsage(load, classes, frozenset(foreign))


def classes_of(amounts: Mapping[str, Decimal], domain: str) -> dict[str, int]:
    """Return the extended resources among amounts, by class."""
    totals: dict[str, int] = {}
    for key, amount in amounts.items():
        name = class_of(key, domain)
        if name is not None and amount > 0:
            totals[name] = totals.get(name, 0) + _up(amount, 1)
    return totals


def pod_amounts(pod: Pod) -> dict[str, Decimal]:
    """Return how much of each resource a pod requests, in units of 1.

    That is the larger of: all containers and sidecars together; each init
    container with the sidecars before it. What the pod requests as a whole
    replaces it, and the pod's overhead is added. While a pod is resized in
    place, the largest counts of what it requests, was allocated and has, as
    in a kube-scheduler; without the request if that is infeasible.
    """
    spec, status = pod.spec, pod.status
    given = {
        one.name: one
        for each in (status.containerStatuses, status.initContainerStatuses)
        for one in each or ()
    }
    infeasible = status.is_infeasible()
    total: dict[str, Decimal] = {}
    for container in spec.containers or ():
        requested = _requested(container.resources)
        _add(total, _resized(requested, given.get(container.name), infeasible))
    sidecars: dict[str, Decimal] = {}
    peak: dict[str, Decimal] = {}
    for container in spec.initContainers or ():
        step, requested = dict(sidecars), _requested(container.resources)
        if container.restartPolicy == 'Always':
            one = given.get(container.name)
            _add(step, _resized(requested, one, infeasible))
            sidecars = step
        else:
            _add(step, requested)
        _raise_to(peak, step)
    _add(total, sidecars)
    _raise_to(total, peak)
    requested = _requested(spec.resources)
    of_pod = _resized(requested, status, infeasible)
    total.update(
        (name, of_pod.get(name, amount))
        for name, amount in requested.items()
        if name in ('cpu', 'memory') or name.startswith('hugepages-')
    )
    _add(total, _quantities(spec.overhead))
    return total


def _resized(
    requested: dict[str, Decimal], given: _Given | None, infeasible: bool
) -> dict[str, Decimal]:
    """Return what counts of a container or pod.

    :param given: None: the kubelet has given it nothing yet
    """
    if given is None or given.resources is None:
        return requested
    amounts = {} if infeasible else dict(requested)
    _raise_to(amounts, _quantities(given.resources.requests))
    _raise_to(amounts, _quantities(given.allocatedResources))
    return amounts


def _requested(resources: _Resources | None) -> dict[str, Decimal]:
    """Return requests, or limits where nothing is requested."""
    stated = resources or _NOTHING
    return {**_quantities(stated.limits), **_quantities(stated.requests)}


def _quantities(values: Mapping[str, Any] | None) -> dict[str, Decimal]:
    amounts = {}
    for name, value in (values or {}).items():
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
