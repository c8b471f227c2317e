"""Makes v1 Nodes of hosts and v1 Pods of requests, for extenders.

Values without a field in v1 objects are in annotations under our own domain,
so that nothing is lost. Threads that call extenders use the functions on
copies of the host table, and only read them.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from scheduler_service.columns import HostTable
from scheduler_service.columns.table import decoded
from scheduler_service.columns.table_copies import node_name
from scheduler_service.model import (
    ENCODED_FIELDS,
    NESTED_FIELDS,
    STANDARD_CLASSES,
    STANDARD_FIELDS,
    Aggregate,
    Request,
)
from scheduler_service.model.inventory import class_of
from scheduler_service.settings import Settings

_VALUE = re.compile(r'([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?')
_NAMESPACE = re.compile(r'[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?')
_ARCHITECTURES = {'x86_64': 'amd64', 'aarch64': 'arm64', 'i686': '386'}
_PODS = '1000'


class ResourceNames:
    """The names of resource classes as extended resources.

    :param domain: of our labels, annotations and extended resources
    :param managed: names that extenders manage, for the classes that a
        kube-scheduler's pods with them request here
    """

    def __init__(self, domain: str, managed: Iterable[str]) -> None:
        self.domain = domain
        self._managed: defaultdict[str | None, list[str]] = defaultdict(list)
        for name in managed:
            self._managed[class_of(name, domain)].append(name)

    def of(self, amounts: Mapping[str, int]) -> dict[str, int]:
        """Return amounts of classes, except standard ones, by the names."""
        return {
            name: amount
            for key, amount in amounts.items()
            if key not in STANDARD_CLASSES
            for name in self._managed.get(key) or [f'{self.domain}/{key}']
        }


class NodeMaker:
    """Makes v1 Nodes of hosts."""

    def __init__(self, names: ResourceNames, settings: Settings) -> None:
        self._domain = names.domain
        self._names = names
        self._settings = settings

    def nodes(
        self, table: HostTable, rows: Sequence[int], names: Sequence[str]
    ) -> list[dict[str, Any]]:
        """Return the Nodes of some rows.

        :param names: of the nodes, one for each row
        """
        nested = {name: decoded(table, name) for name in NESTED_FIELDS}
        made = []
        for row, name in zip(rows, names, strict=True):
            documents = {key: nested[key].at(row) for key in nested}
            made.append(self._node(table, row, name, documents))
        return made

    def _node(
        self,
        view: HostTable,
        at: int,
        name: str,
        documents: Mapping[str, Any],
    ) -> dict[str, Any]:
        host, node = view.host_at(at), view.node_at(at)
        enabled = bool(view.number('enabled')[at])
        up = bool(view.number('up')[at])
        zone = view.zone_at(at, self._settings.default_availability_zone)
        traits = sorted(view.coded['trait_set'].at(at))
        aggregates = [
            view.topology.aggregates[number]
            for number in sorted(view.coded['aggregate_set'].at(at))
        ]
        figures = self._figures(view, at)
        capacity = self._capacity(view, at)
        architecture = _architecture(documents['supported_instances'])
        document = {
            'host': host,
            'hypervisor_hostname': node,
            'uuid': view.coded['uuid'].at(at),
            'status': 'enabled' if enabled else 'disabled',
            'state': 'up' if up else 'down',
            **{
                key: view.coded[key].at(at)
                for key in ENCODED_FIELDS
                if view.coded[key].at(at) is not None
            },
            **figures,
            **{k: v for k, v in documents.items() if v},
            'traits': traits,
        }  # fmt: skip
        labels = {
            'kubernetes.io/hostname': name,
            'topology.kubernetes.io/zone': zone,
            **{f'trait.{self._domain}/{trait}': 'true' for trait in traits},
            **self._aggregate_labels(aggregates),
        }
        if architecture:
            labels['kubernetes.io/arch'] = architecture
        address = view.coded['host_ip'].at(at)
        return {
            'metadata': {
                'name': name,
                'uid': document['uuid'],
                'creationTimestamp': None,
                'labels': _valid_labels(labels),
                'annotations': {
                    f'{self._domain}/host': host,
                    f'{self._domain}/hypervisor-hostname': node,
                    f'{self._domain}/usage': _json(figures),
                    f'{self._domain}/traits': _json(traits),
                    f'{self._domain}/aggregates': _json(
                        [
                            {
                                'id': aggregate.id,
                                'uuid': aggregate.uuid,
                                'name': aggregate.name,
                                'metadata': aggregate.metadata,
                            }
                            for aggregate in aggregates
                        ]
                    ),
                    f'{self._domain}/host-document': _json(document),
                },
            },
            'spec': _spec(enabled, up),
            'status': {
                'capacity': capacity,
                'allocatable': capacity,
                'conditions': [
                    {'type': 'Ready', 'status': 'True' if up else 'Unknown'}
                ],
                'addresses': [
                    *([{'type': 'InternalIP', 'address': address}]
                      if address else []),
                    {'type': 'Hostname', 'address': name},
                ],
                'nodeInfo': {'architecture': architecture or ''},
            },
        }  # fmt: skip

    def _figures(self, view: HostTable, at: int) -> dict[str, Any]:
        figures: dict[str, Any] = {}
        for name, (total, used, ratio) in STANDARD_FIELDS.items():
            columns = view.resources[name]
            own_ratio = float(columns.ratio[at])
            figures[total] = int(columns.total[at])
            figures[used] = int(columns.used[at])
            if not math.isnan(own_ratio):
                figures[ratio] = own_ratio
        offered = {}
        for name, columns in view.resources.items():
            if name not in STANDARD_CLASSES and columns.total[at] >= 0:
                offered[name] = {
                    'total': int(columns.total[at]),
                    'used': int(columns.used[at]),
                    'reserved': int(columns.reserved[at]),
                    'allocation_ratio': float(columns.ratio[at]),
                }
        if offered:
            figures['resources'] = offered
        figures['num_instances'] = int(view.number('num_instances')[at])
        return figures

    def _capacity(self, view: HostTable, at: int) -> dict[str, str]:
        def limit(name: str) -> float:
            return float(view.capacity(name, self._settings)[at])

        capacity = {
            'cpu': f'{round(limit("VCPU") * 1000)}m',
            'memory': f'{int(limit("MEMORY_MB"))}Mi',
            'ephemeral-storage': f'{int(limit("DISK_GB"))}Gi',
            'pods': _PODS,
        }
        offered = {
            name: int(limit(name))
            for name, columns in view.resources.items()
            if columns.total[at] >= 0
        }
        for name, amount in self._names.of(offered).items():
            capacity[name] = str(amount)
        return capacity

    def _aggregate_labels(
        self, aggregates: Sequence[Aggregate]
    ) -> dict[str, str]:
        labels: dict[str, str] = {}
        values: dict[str, set[str]] = {}
        for aggregate in aggregates:
            labels[f'aggregate.{self._domain}/{aggregate.id}'] = 'true'
            for key, value in aggregate.metadata.items():
                values.setdefault(key, set()).add(value)
        for key, distinct in values.items():
            if len(distinct) == 1:
                name = f'metadata.aggregate.{self._domain}/{key}'
                labels[name] = distinct.pop()
        return labels


def pod(request: Request, uuid: str, names: ResourceNames) -> dict[str, Any]:
    """Return an instance of a request as a v1 Pod."""
    amounts, domain = request.resources, names.domain
    requests = {
        'cpu': str(amounts.get('VCPU', 0)),
        'memory': f'{amounts.get("MEMORY_MB", 0)}Mi',
        'ephemeral-storage': f'{amounts.get("DISK_GB", 0)}Gi',
    }
    limits = {name: str(n) for name, n in names.of(amounts).items()}
    project = request.project_id or ''
    labels = {}
    if request.instance_group:
        labels[f'{domain}/server-group'] = request.instance_group
    return {
        'metadata': {
            'name': f'instance-{uuid}',
            'namespace': project if _NAMESPACE.fullmatch(project)
            else 'default',
            'uid': uuid,
            'creationTimestamp': None,
            'labels': _valid_labels(labels),
            'annotations': {
                f'{domain}/request': _json(msgspec.to_builtins(request)),
            },
        },
        'spec': {
            'containers': [
                {
                    'name': 'instance',
                    'resources': {
                        'requests': {**requests, **limits},
                        'limits': limits,
                    },
                }
            ],
            'nodeSelector': _selector(request, domain),
            **_affinity(request, domain),
            'restartPolicy': 'Never',
            'schedulerName': 'scheduler-service',
            'priority': 0,
        },
        'status': {'phase': 'Pending'},
    }  # fmt: skip


def _selector(request: Request, domain: str) -> dict[str, str]:
    labels = {
        f'trait.{domain}/{trait}': 'true'
        for trait in sorted(request.required_traits)
    }
    if request.availability_zone:
        labels['topology.kubernetes.io/zone'] = request.availability_zone
    return _valid_labels(labels)


def _affinity(request: Request, domain: str) -> dict[str, Any]:
    terms: dict[str, Any] = {}
    expressions = [
        {'key': f'trait.{domain}/{trait}', 'operator': 'DoesNotExist'}
        for trait in sorted(request.forbidden_traits)
    ]
    fields = [
        {
            'key': 'metadata.name',
            'operator': operator,
            'values': sorted(node_name(host) for host in hosts),
        }
        for operator, hosts in (
            ('NotIn', request.ignore_hosts),
            ('In', request.force_hosts),
        )
        if hosts
    ]
    if expressions:
        terms['matchExpressions'] = expressions
    if fields:
        terms['matchFields'] = fields
    if not terms:
        return {}
    required = 'requiredDuringSchedulingIgnoredDuringExecution'
    return {
        'affinity': {
            'nodeAffinity': {required: {'nodeSelectorTerms': [terms]}}
        }
    }


def _spec(enabled: bool, up: bool) -> dict[str, Any]:
    reasons = {'unschedulable': not enabled, 'unreachable': not up}
    taints = [
        {'key': f'node.kubernetes.io/{reason}', 'effect': 'NoSchedule'}
        for reason, holds in reasons.items()
        if holds
    ]
    spec: dict[str, Any] = {} if enabled else {'unschedulable': True}
    return {**spec, 'taints': taints} if taints else spec


def _architecture(supported: Any) -> str:
    first = next(iter(supported or ()), None)
    name = str(first[0]) if first and first[0] else ''
    return _ARCHITECTURES.get(name, name)


def _valid_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels that Kubernetes allows.

    Annotations have the values of all labels.
    """
    return {
        key: value
        for key, value in labels.items()
        if _VALUE.fullmatch(value) and _VALUE.fullmatch(key.split('/')[-1])
    }


def _json(value: Any) -> str:
    return json.dumps(value, separators=(',', ':'))
