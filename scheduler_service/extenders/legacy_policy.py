"""Translates a kube-scheduler's legacy policy file into filters and weighers.

Pure functions over constant tables, for the start of the daemon.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scheduler_service import errors

_CAPACITY = ('CoreFilter', 'RamFilter', 'DiskFilter')
_GROUPS = ('ServerGroupAffinityFilter', 'ServerGroupAntiAffinityFilter')
# Not configurable there: nodes that are down or disabled never pass.
_MANDATORY = ('ComputeFilter',)
_PREDICATES: dict[str, tuple[str, ...]] = {
    'CheckNodeUnschedulable': ('ComputeFilter',),
    'PodToleratesNodeTaints': ('ComputeFilter',),
    # Every request is checked against the host that it forces.
    'HostName': (),
    'PodFitsResources': _CAPACITY,
    'GeneralPredicates': (*_CAPACITY, 'ComputeCapabilitiesFilter'),
    'MatchNodeSelector': (
        'ComputeCapabilitiesFilter',
        'AvailabilityZoneFilter',
    ),
    'MatchInterPodAffinity': _GROUPS,
}
# Priority -> (weigher, field of its multiplier, sign).
_PRIORITIES: dict[str, tuple[tuple[str, str, float], ...]] = {
    'EqualPriority': (),
    'LeastRequestedPriority': (
        ('RAMWeigher', 'ram_weight_multiplier', 1.0),
        ('CPUWeigher', 'cpu_weight_multiplier', 1.0),
    ),
    'MostRequestedPriority': (
        ('RAMWeigher', 'ram_weight_multiplier', -1.0),
        ('CPUWeigher', 'cpu_weight_multiplier', -1.0),
    ),
    'InterPodAffinityPriority': (
        (
            'ServerGroupSoftAffinityWeigher',
            'soft_affinity_weight_multiplier',
            1.0,
        ),
        (
            'ServerGroupSoftAntiAffinityWeigher',
            'soft_anti_affinity_weight_multiplier',
            1.0,
        ),
    ),
}


def filters(predicates: Sequence[str]) -> list[str]:
    """Return names of the filters equivalent to predicates, each once.

    :raises ConfigurationError: some predicates have no equivalent; all of
        them are named
    """
    _check_known('predicates', predicates, _PREDICATES)
    names = dict.fromkeys(_MANDATORY)
    for predicate in predicates:
        names.update(dict.fromkeys(_PREDICATES[predicate]))
    return list(names)


def weighers(
    priorities: Sequence[tuple[str, int]],
) -> tuple[list[str], dict[str, Any]]:
    """Return names of the weighers equivalent to priorities, and multipliers.

    :param priorities: (name, weight) of each
    :return: weighers, each once; and field of the settings -> multiplier
    :raises ConfigurationError: some priorities have no equivalent; all of
        them are named
    """
    _check_known('priorities', [name for name, _ in priorities], _PRIORITIES)
    names: dict[str, None] = {}
    multipliers: dict[str, float] = {}
    for name, weight in priorities:
        for weigher, field, sign in _PRIORITIES[name]:
            names[weigher] = None
            multipliers[field] = multipliers.get(field, 0.0) + sign * weight
    return list(names), multipliers


def _check_known(
    key: str, names: Sequence[str], known: Mapping[str, Any]
) -> None:
    unknown = [name for name in names if name not in known]
    if unknown:
        raise errors.ConfigurationError(
            f'{key}: {", ".join(unknown)}: no filter or weigher is '
            f'equivalent. Known are: {", ".join(sorted(known))}',
            names=unknown,
        )
