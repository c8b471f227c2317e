"""Makes hosts of v1 Nodes.

If a node has an annotation with a host's document, the document counts. Else
the fields of the object do: capacity is ``allocatable``, rounded down. Labels
become traits and metadata by a mapping, taints and conditions the status. A
node does not include what is in use on it. Stateless.

The host tables for the nodes of a call, :class:`StoredNodes` and
:class:`SentNodes`, belong to the thread that holds the evaluator's lock.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from scheduler_service import errors
from scheduler_service import extender_wire as wire
from scheduler_service.columns import HostTable, build_table
from scheduler_service.columns.table_copies import TableCopy
from scheduler_service.engine.newest_copy import NewestCopy
from scheduler_service.kube import quantity
from scheduler_service.kube.pod_reader import (
    GIB,
    MAX_AMOUNT,
    MIB,
    ZONE_LABELS,
    PodRequest,
    SizedCache,
    annotated,
)
from scheduler_service.model import Aggregate, Host, Inventory, documents
from scheduler_service.model.inventory import class_of
from scheduler_service.pipeline import HostPipeline
from scheduler_service.pipeline.hosts import Evaluation

# Marks hosts that are nodes of a cluster, in their stats.
MARK = 'kubernetes_node'
# Prefix of the names of aggregates made of nodes' labels, and of the reasons
# of hosts that are disabled because of their nodes.
PREFIX = 'kubernetes:'
_CORDONED = f'{PREFIX} the node is unschedulable'
_TAINTED = f'{PREFIX} taint '
# Ids of such aggregates are in the upper half of what an id may be.
_FIRST_ID = 2**30
_ZONE_KEY = 'availability_zone'
_TRAIT = 'trait'
_METADATA = 'metadata'
_DOWN_TAINTS = frozenset(
    ('node.kubernetes.io/not-ready', 'node.kubernetes.io/unreachable')
)
_EFFECTS = ('NoSchedule', 'NoExecute')
_LONGEST = 255
_ARCHITECTURES = {'amd64': 'x86_64', 'arm64': 'aarch64', '386': 'i686'}
_FEATURE = 'feature.node.kubernetes.io/cpu-cpuid.'
_MAX_RESULTS = 1024
_MAX_REASON_LENGTH = 1000
# Of the JSON of a pod or node. Kubernetes stores objects of 1.5 MiB at most,
# and a parsed object may take many times its bytes.
MOST_BYTES = 4 * 1024 * 1024
_MAX_CACHED_NODES = 20_000
# Bytes of JSON: 20,000 nodes of the usual size.
_MAX_CACHED_SIZE = 256 * 2**20
# Values in the columns of a table: 100,000 nodes with 20 classes, 112 MB.
_MAX_CELLS = 2_000_000
_MAX_OFFERED = 10_000
# The same text for all nodes: a kube-scheduler's event counts equal reasons.
_UNKNOWN = (
    'the node is not in the store: import it with scheduler-manage inventory '
    'import --from-nodes, or set [kubernetes] enabled to have nodes followed'
)


class NodeHost(NamedTuple):
    """A node as a host.

    :ivar metadata: key -> value, of the aggregates that the host is in
    """

    host: Host
    metadata: dict[str, str]


class NodeReader:
    """Makes hosts of v1 Nodes.

    :param domain: of the labels, annotations and resources that are ours
    :param labels: label, in which ``*`` stands for any characters ->
        ``trait``, ``trait.NAME``, ``metadata`` or ``metadata.KEY``
    :param disabling_taints: keys of taints that make a host disabled
    :raises ConfigurationError: a target is none of the four
    """

    def __init__(
        self,
        domain: str,
        labels: Mapping[str, str],
        disabling_taints: Sequence[str],
    ) -> None:
        self._domain = domain
        self._labels = [
            (label, *_target(label, target))
            for label, target in labels.items()
        ]
        self._disabling = frozenset(disabling_taints)

    def read(self, node: Any) -> NodeHost:
        """Return a node as a host.

        :raises WireError: it is not a node
        """
        labels = _objects(_objects(node, 'metadata'), 'labels')
        for label, value in labels.items():
            if value is not None and not isinstance(value, str):
                raise wire.WireError(f'label {label[:100]}: expected a string')
        host = _host(node, labels, self._domain)
        traits, metadata = self._mapped(labels)
        zones = (labels[key] for key in ZONE_LABELS if labels.get(key))
        if zone := next(zones, None):
            metadata[_ZONE_KEY] = zone
        disabled = self._why_disabled(node, host)
        changed = msgspec.structs.replace(
            host,
            status='disabled' if disabled else 'enabled',
            disabled_reason=disabled,
            state='down' if host.state == 'down' or _is_cut_off(node)
            else 'up',
            traits=sorted({*host.traits, *traits}),
            stats={**(host.stats or {}), MARK: True},
        )  # fmt: skip
        return NodeHost(changed, metadata)

    def _mapped(
        self, labels: Mapping[str, Any]
    ) -> tuple[set[str], dict[str, str]]:
        traits: set[str] = set()
        metadata: dict[str, str] = {}
        for label, value in labels.items():
            for pattern, kind, name in self._labels:
                if not fnmatch.fnmatchcase(label, pattern):
                    continue
                if kind == _METADATA:
                    metadata[name or label] = str(value)[:_LONGEST]
                elif value != 'false':
                    traits.add(name or _trait_of(label, str(value)))
                break
        return traits, metadata

    def _why_disabled(self, node: Any, host: Host) -> str | None:
        if host.status == 'disabled':
            reason = host.disabled_reason or 'disabled'
            return f'{PREFIX} its document: {reason}'
        if wire.field(_objects(node, 'spec'), 'unschedulable', bool):
            return _CORDONED
        for key in _tainted(node):
            if key in self._disabling:
                return f'{_TAINTED}{key}'
        return None


def _objects(document: Any, name: str) -> dict[str, Any]:
    """Return a nested object; empty if it is missing."""
    return wire.field(document, name, dict) or {}


def _host(node: Any, labels: Mapping[str, Any], domain: str) -> Host:
    metadata = _objects(node, 'metadata')
    given = annotated(
        _objects(metadata, 'annotations'), f'{domain}/host-document'
    )
    if given is not None:
        try:
            return documents.parse(given, Host, errors.InvalidInventory)
        except errors.InvalidInventory as fault:
            raise wire.WireError(f'{domain}/host-document: {fault}') from None
    name = wire.name_of(node)
    if not name:
        raise wire.WireError('node: metadata.name is required')
    status = _objects(node, 'status')
    size = _objects(status, 'allocatable') or _objects(status, 'capacity')
    resources = {
        offered: {'total': _amount(quantity.whole, value, 'resource', 1)}
        for key, value in size.items()
        if (offered := class_of(key, domain))
    }
    architecture = labels.get('kubernetes.io/arch') or wire.field(
        _objects(status, 'nodeInfo'), 'architecture', str
    )
    architecture = _ARCHITECTURES.get(architecture, architecture)

    def standard(key: str, read: Callable[[Any], int], unit: int) -> int:
        return _amount(read, size.get(key), key, unit)

    document = {
        'host': name[:255],
        'vcpus': standard('cpu', quantity.thousandths, 1000),
        'memory_mb': standard('memory', quantity.whole, MIB),
        'local_gb': standard('ephemeral-storage', quantity.whole, GIB),
        'cpu_allocation_ratio': 1.0,
        'ram_allocation_ratio': 1.0,
        'disk_allocation_ratio': 1.0,
        # A node without the condition is ready.
        'state': 'up' if _condition(node, 'Ready', 'True') == 'True'
        else 'down',
        'traits': sorted(_traits(labels, domain)),
        'resources': resources,
    }  # fmt: skip
    if architecture:
        document['supported_instances'] = [[architecture, None, None]]
    try:
        return documents.parse(document, Host, errors.InvalidInventory)
    except errors.InvalidInventory as fault:
        raise wire.WireError(f'node {name}: {fault}') from None


def _amount(
    read: Callable[[Any], int], value: Any, name: str, unit: int
) -> int:
    """Return a quantity in whole units, rounded down; 0 if it is negative."""
    try:
        return min(max(read(value), 0) // unit, MAX_AMOUNT)
    except quantity.BadQuantity as fault:
        raise wire.WireError(f'{name}: {fault}') from None


def _traits(labels: Mapping[str, Any], domain: str) -> set[str]:
    traits = set()
    for key, value in labels.items():
        if value != 'true':
            continue
        if key.startswith(f'trait.{domain}/'):
            traits.add(key.split('/', 1)[1].upper())
        elif key.startswith(_FEATURE):
            traits.add(f'HW_CPU_X86_{key.removeprefix(_FEATURE).upper()}')
    return {trait for trait in traits if trait.replace('_', '').isalnum()}


def _target(label: str, target: str) -> tuple[str, str]:
    """Return a target's kind and name."""
    kind, _, name = target.partition('.')
    if kind == _TRAIT and re.fullmatch(r'[A-Z0-9_]{0,255}', name):
        return kind, name
    if kind == _METADATA and len(name) <= _LONGEST:
        return kind, name
    raise errors.ConfigurationError(
        f'[kubernetes] labels: {label}: {target} is not one of trait, '
        'trait.NAME, metadata and metadata.KEY'
    )


def _trait_of(label: str, value: str) -> str:
    text = label if value in ('', 'true') else f'{label}_{value}'
    made = re.sub('[^A-Z0-9]', '_', text.upper())
    return f'CUSTOM_{made}'[:_LONGEST]


def _tainted(node: Any) -> Iterable[str]:
    """Return the keys of taints that keep pods away."""
    for taint in wire.field(_objects(node, 'spec'), 'taints', list) or ():
        if wire.field(taint, 'effect', str) in _EFFECTS:
            yield wire.field(taint, 'key', str)


def _is_cut_off(node: Any) -> bool:
    """Whether taints or conditions show that no pod can run on the node."""
    if _DOWN_TAINTS.intersection(_tainted(node)):
        return True
    return _condition(node, 'NetworkUnavailable', '') == 'True'


def _condition(node: Any, name: str, default: str) -> str:
    status = _objects(node, 'status')
    for condition in wire.field(status, 'conditions', list) or ():
        if wire.field(condition, 'type', str) == name:
            return str(wire.field(condition, 'status', str))
    return default


def is_checked_by_scheduler(disabled_reason: str | None) -> bool:
    """Whether a host is disabled by a cordon or a taint of its node.

    A kube-scheduler checks both itself: some pods tolerate them.
    """
    return (disabled_reason or '').startswith((_CORDONED, _TAINTED))


def is_node(host: Host) -> bool:
    """Whether a stored host was made of a node."""
    return bool((host.stats or {}).get(MARK))


def has_nodes(table: HostTable) -> bool:
    """Whether any host of a table was made of a node."""
    marked = f'"{MARK}":true'.encode()
    return any(marked in (text or b'') for text in table.coded['stats'].values)


def is_of_nodes(aggregate: Aggregate) -> bool:
    """Whether a stored aggregate was made of labels of nodes."""
    return aggregate.id >= _FIRST_ID and aggregate.name.startswith(PREFIX)


def aggregates_of(nodes: Iterable[NodeHost]) -> list[Aggregate]:
    """Return one aggregate for each key and value of the nodes' metadata.

    The id is a hash of both.
    """
    members: dict[tuple[str, str], list[str]] = {}
    for host, metadata in nodes:
        for pair in metadata.items():
            members.setdefault(pair, []).append(host.host)
    taken: set[int] = set()
    made = []
    for key, value in sorted(members):
        digest = hashlib.sha256(f'{key}\0{value}'.encode()).digest()
        number = int.from_bytes(digest[:4]) % _FIRST_ID
        while number in taken:
            number = (number + 1) % _FIRST_ID
        taken.add(number)
        made.append(
            Aggregate(
                id=_FIRST_ID + number,
                name=f'{PREFIX}{key}={value}'[:_LONGEST],
                hosts=sorted(set(members[key, value])),
                metadata={key: value},
            )
        )
    return made


def inventory_of(document: Any, reader: NodeReader) -> Inventory:
    """Return the inventory of a node or a list of nodes.

    :param document: as ``kubectl get -o json`` prints it
    :raises WireError: the document is neither
    """
    if wire.field(document, 'kind', str) == 'Node':
        nodes = [document]
    else:
        nodes = wire.field(document, 'items', list)
        if nodes is None:
            raise wire.WireError('expected a list of nodes with items')
    hosts = [reader.read(node) for node in nodes]
    return Inventory(
        hosts=[host.host for host in hosts], aggregates=aggregates_of(hosts)
    )


def of_options(conf: Any) -> NodeReader:
    """Return the reader that the options of *conf* make.

    :raises ConfigurationError: an option cannot be used
    """
    group = conf.kubernetes
    return NodeReader(
        conf.extender.domain, group.labels, group.disabling_taints
    )


def _offered(table: HostTable) -> set[str]:
    """Return the classes of which a host has some."""
    return {
        name
        for name, columns in table.resources.items()
        if (columns.total > 0).any()
    }


class StoredNodes:
    """Caches filter results of stored nodes until their table changes.

    A kube-scheduler calls for one pod after another, and many pods request
    the same.

    :param newest: gives the copies, whose memo is used here alone
    :ivar offered: classes of which a host has some
    """

    def __init__(self, pipeline: HostPipeline, newest: NewestCopy) -> None:
        self._pipeline = pipeline
        self._newest = newest
        self._copy: TableCopy | None = None
        self.offered: set[str] = set()
        # By the key of pods.
        self._results: dict[bytes, Evaluation] = {}

    def use(self, pipeline: HostPipeline) -> None:
        """Evaluate by another pipeline, and drop all results."""
        self._pipeline = pipeline
        self._newest.forget()
        self._copy = None

    def newest(self) -> TableCopy | None:
        """Return a copy of the newest table; None if there is none yet."""
        copy = self._newest.get()
        if copy is not self._copy:
            self._copy, self._results = copy, {}
            self.offered = _offered(copy.table) if copy else set()
        return copy

    def results(self, pod: PodRequest) -> Evaluation:
        """Return the filter results of a pod on the table returned last."""
        assert self._copy is not None
        table, results = self._copy.table, self._results
        result = results.get(pod.key)
        if result is None:
            if len(results) >= _MAX_RESULTS:
                results.clear()
            result = results[pod.key] = self._pipeline.evaluate(
                table, pod.request
            )
        return result


class SentNodes:
    """Makes tables of nodes that are not in the store; caches the nodes.

    :param reader: makes hosts of their objects
    :param find: returns a followed node by its name, where only the name was
        sent; None: not found
    :ivar offered: classes of which a node had some, in this call or before: a
        call may have few of a cluster's nodes
    """

    def __init__(
        self,
        reader: NodeReader,
        find: Callable[[str], NodeHost | None] = lambda _: None,
    ) -> None:
        self._reader = reader
        self.find = find
        self.offered: set[str] = set()
        # Digest of a node's JSON -> the node.
        self._cached = SizedCache[NodeHost](
            _MAX_CACHED_NODES, _MAX_CACHED_SIZE
        )

    def table_of(
        self,
        names: Sequence[str],
        items: Mapping[str, msgspec.Raw] | None,
        classes: Collection[str],
    ) -> tuple[HostTable, list[str], dict[str, str]]:
        """Return a table, the names of its rows, and node -> reason.

        The reasons are of invalid or missing nodes, which have no row.

        :param items: as in :class:`kube.evaluator.Nodes`
        :param classes: that the pod requests; a table with very many classes
            is limited to them
        """
        nodes: dict[str, NodeHost] = {}
        rejected: dict[str, str] = {}
        for name in names:
            try:
                node = self._read(name, items)
            except wire.WireError as fault:
                reason = f'the node cannot be read: {fault}'
                rejected[name] = reason[:_MAX_REASON_LENGTH].replace(
                    '%', ' percent'
                )
                continue
            if node is not None:
                nodes[name] = node
            else:
                rejected[name] = _UNKNOWN
        hosts = [node.host for node in nodes.values()]
        offered = {name for host in hosts for name in host.resources}
        is_large = len(offered) * len(hosts) > _MAX_CELLS
        table = build_table(
            list(enumerate(hosts)),
            aggregates_of(nodes.values()),
            classes=classes if is_large else None,
        )
        if len(self.offered) > _MAX_OFFERED:
            self.offered.clear()
        self.offered |= _offered(table)
        return table, list(nodes), rejected

    def _read(
        self, name: str, items: Mapping[str, msgspec.Raw] | None
    ) -> NodeHost | None:
        """Return a node; None: only its name was sent, and it is not followed.

        A kube-scheduler sends each node twice for each pod.

        :raises WireError: the node is invalid
        """
        if items is None:
            return self.find(name)
        node = items[name]
        size = len(memoryview(node))
        if size > MOST_BYTES:
            raise wire.WireError(f'{size} bytes, at most {MOST_BYTES}')
        key = hashlib.blake2b(node, digest_size=16).digest()
        cached = self._cached.get(key)
        if cached is None:
            cached = self._reader.read(wire.decode(node))
            self._cached.put(key, cached, size)
        return cached
