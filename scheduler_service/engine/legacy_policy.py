"""Predicates and priorities of the older policy file, in our own names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scheduler_service import errors

_CAPACITY = ('CoreFilter', 'RamFilter', 'DiskFilter')
_GROUPS = ('ServerGroupAffinityFilter', 'ServerGroupAntiAffinityFilter')
# What always runs there: nodes that are down or not to be used are left out.
_MANDATORY = ('ComputeFilter',)
_PREDICATES: dict[str, tuple[str, ...]] = {
    'CheckNodeUnschedulable': ('ComputeFilter',),
    'PodToleratesNodeTaints': ('ComputeFilter',),
    # A host that is forced is a step of every request.
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
    """Return the filters that predicates stand for, each once.

    :raises ConfigurationError: names all that have no equivalent here
    """
    _refuse('predicates', predicates, _PREDICATES)
    found = dict.fromkeys(_MANDATORY)
    for name in predicates:
        found.update(dict.fromkeys(_PREDICATES[name]))
    return list(found)


def weighers(
    priorities: Sequence[tuple[str, int]],
) -> tuple[list[str], dict[str, Any]]:
    """Return the weighers that priorities stand for, and multipliers.

    :raises ConfigurationError: names all that have no equivalent here
    """
    _refuse('priorities', [name for name, _ in priorities], _PRIORITIES)
    names: dict[str, None] = {}
    multipliers: dict[str, float] = {}
    for name, weight in priorities:
        for weigher, field, sign in _PRIORITIES[name]:
            names[weigher] = None
            multipliers[field] = multipliers.get(field, 0.0) + sign * weight
    return list(names), multipliers


def _refuse(what: str, names: Sequence[str], known: Mapping[str, Any]) -> None:
    bad = [name for name in names if name not in known]
    if bad:
        raise errors.ConfigurationError(
            f'{what}: {", ".join(bad)}: nothing here does the same. There '
            f'are: {", ".join(sorted(known))}',
            names=bad,
        )
