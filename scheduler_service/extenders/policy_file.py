"""Parses a policy file with extenders, in the older and the newer format.

The older format is JSON with ``kind: Policy``: keys in any case, durations in
nanoseconds, unknown keys ignored and reported. The newer format is YAML or
JSON with ``kind: KubeSchedulerConfiguration``: keys in exactly one case,
durations as text, unknown keys are errors. Predicates and priorities of the
older format are translated into filters and weighers. Stateless; used by the
main thread.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from scheduler_service import errors
from scheduler_service.model import document_text

DEFAULT_TIMEOUT_S = 5.0
_EXTENDED = re.compile(
    r'(?!requests\.|[^/]*kubernetes\.io/)[^/]+/'
    r'[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?'
)
# The part before the host; a password may have any character in it.
_CREDENTIALS = re.compile(r'//.*@')
_UNITS = {
    'ns': 1e-9, 'us': 1e-6, '\u00b5s': 1e-6, 'ms': 1e-3, 's': 1.0, 'm': 60.0,
    'h': 3600.0,
}  # fmt: skip
_SPAN = re.compile(r'(\d+\.?\d*|\.\d+)(ns|us|\u00b5s|ms|s|m|h)')
_DURATION = re.compile(rf'0|({_SPAN.pattern})+')
# Keys without an effect here: of the older format, in lower case, and of the
# newer format.
_OLDER_UNUSED = 'hardpodaffinitysymmetricweight', 'alwayscheckallpredicates'
_NEWER_UNUSED = (
    'profiles', 'parallelism', 'leaderElection', 'clientConnection',
    'healthzBindAddress', 'metricsBindAddress', 'enableProfiling',
    'enableContentionProfiling', 'percentageOfNodesToScore',
    'podInitialBackoffSeconds', 'podMaxBackoffSeconds',
    'delayCacheUntilActive',
)  # fmt: skip
# A kube-scheduler ignores it as well.
_IGNORED = 'apiversion', *_OLDER_UNUSED

_CAPACITY = ('CoreFilter', 'RamFilter', 'DiskFilter')
_GROUPS = ('ServerGroupAffinityFilter', 'ServerGroupAntiAffinityFilter')
# A kube-scheduler never lets nodes pass that are down or disabled.
_MANDATORY = ('ComputeFilter',)
_PREDICATES: dict[str, tuple[str, ...]] = {
    'CheckNodeUnschedulable': ('ComputeFilter',),
    'PodToleratesNodeTaints': ('ComputeFilter',),
    # Forced hosts are checked without a filter.
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


class Tls(
    msgspec.Struct, frozen=True, rename='camel', forbid_unknown_fields=True
):
    """TLS settings of an extender; data takes precedence over files."""

    insecure: bool = False
    server_name: str = ''
    cert_file: str = ''
    key_file: str = ''
    ca_file: str = ''
    cert_data: bytes = b''
    key_data: bytes = b''
    ca_data: bytes = b''

    def __post_init__(self) -> None:
        if self.insecure and (self.ca_file or self.ca_data):
            raise ValueError('insecure and a CA exclude each other')
        has_key = bool(self.key_file or self.key_data)
        if bool(self.cert_file or self.cert_data) != has_key:
            raise ValueError(
                'a certificate needs its key, and a key its certificate'
            )


class ManagedResource(
    msgspec.Struct, frozen=True, rename='camel', forbid_unknown_fields=True
):
    """An extended resource that an extender manages."""

    name: str
    ignored_by_scheduler: bool = False

    def __post_init__(self) -> None:
        if not _EXTENDED.fullmatch(self.name):
            raise ValueError(
                f'{self.name!r} is not an extended resource: expected '
                'DOMAIN/NAME with a domain outside kubernetes.io'
            )


class Extender(
    msgspec.Struct, frozen=True, rename='camel', forbid_unknown_fields=True
):
    """An extender; an empty verb is not called.

    :ivar weight: of its scores
    :ivar http_timeout: nanoseconds in the older format, else a text
    :ivar node_cache_capable: whether it takes names of nodes, not nodes
    :ivar managed_resources: empty: it is called for every request
    :ivar ignorable: whether a request goes on if a call fails
    """

    url_prefix: Annotated[str, msgspec.Meta(pattern='^https?://')]
    filter_verb: str = ''
    prioritize_verb: str = ''
    preempt_verb: str = ''
    bind_verb: str = ''
    weight: int = 0
    enable_https: bool = msgspec.field(default=False, name='enableHTTPS')
    tls: Tls | None = msgspec.field(default=None, name='tlsConfig')
    http_timeout: Annotated[int, msgspec.Meta(ge=0)] | str = 0
    node_cache_capable: bool = False
    managed_resources: tuple[ManagedResource, ...] = ()
    ignorable: bool = False

    def __post_init__(self) -> None:
        if self.prioritize_verb and self.weight <= 0:
            raise ValueError(
                'weight: expected a positive integer with prioritizeVerb'
            )
        text = self.http_timeout
        if isinstance(text, str) and not _DURATION.fullmatch(text):
            raise ValueError('httpTimeout: expected a duration such as 1m30s')

    @property
    def timeout(self) -> float:
        """How long a whole call may take, in seconds."""
        if isinstance(self.http_timeout, int):
            return self.http_timeout / 1e9 or DEFAULT_TIMEOUT_S
        spans = _SPAN.findall(self.http_timeout)
        seconds = sum(float(number) * _UNITS[unit] for number, unit in spans)
        return seconds or DEFAULT_TIMEOUT_S

    @property
    def managed(self) -> list[str]:
        return [resource.name for resource in self.managed_resources]

    @property
    def unused(self) -> list[str]:
        """The paths of its keys that have no effect here."""
        return ['preemptVerb'] * bool(self.preempt_verb) + [
            f'managedResources[{at}].ignoredByScheduler'
            for at, resource in enumerate(self.managed_resources)
            if resource.ignored_by_scheduler
        ]

    @property
    def label(self) -> str:
        """The name for logs and errors: the URL without credentials."""
        return without_credentials(self.url_prefix)

    def url(self, verb: str) -> str:
        return f'{self.url_prefix.rstrip("/")}/{verb}'


def without_credentials(url: str) -> str:
    """Return a URL without its user, its password and its query."""
    return _CREDENTIALS.sub('//', url).partition('?')[0]


class _Named(msgspec.Struct):
    name: str = ''
    argument: dict[str, Any] = {}

    def __post_init__(self) -> None:
        known = self.name in _PREDICATES or self.name in _PRIORITIES
        if self.argument and known:
            raise ValueError(f'{self.name} with an argument is not supported')


class _Priority(_Named):
    weight: Annotated[int, msgspec.Meta(ge=0)] = 0


class _Older(msgspec.Struct):
    kind: str = ''
    predicates: list[_Named] | None = None
    priorities: list[_Priority] | None = None
    extenders: list[Extender] = []


class _Newer(msgspec.Struct):
    apiVersion: Literal[
        'kubescheduler.config.k8s.io/v1',
        'kubescheduler.config.k8s.io/v1beta3',
        'kubescheduler.config.k8s.io/v1beta2',
        'kubescheduler.config.k8s.io/v1beta1',
    ]
    extenders: list[Extender] = []


_Configuration = msgspec.defstruct(
    '_Configuration',
    [(key, Any, None) for key in ('kind', *_NEWER_UNUSED)],
    bases=(_Newer,),
    forbid_unknown_fields=True,
)
# Key -> the type of its object, or of the objects in its list.
_PARTS: dict[str, type[Any]] = {
    'predicates': _Named,
    'priorities': _Priority,
    'extenders': Extender,
    'tlsConfig': Tls,
    'managedResources': ManagedResource,
}


class PolicyFile(NamedTuple):
    """A parsed policy file.

    :ivar extenders: in the order in which they are called
    :ivar predicates: their names; None: absent
    :ivar priorities: (name, weight); None: absent
    :ivar unknown: paths of keys that were ignored
    :ivar unused: paths of known keys that have no effect here
    """

    extenders: list[Extender]
    predicates: list[str] | None
    priorities: list[tuple[str, int]] | None
    unknown: list[str]
    unused: list[str]


def read(text: bytes, source: str) -> PolicyFile:
    """Parse a policy file.

    :param source: its path, for errors
    :raises ConfigurationError: with the path of the key and what was expected
    """
    try:
        document, _ = document_text.parse(text)
    except (ValueError, RecursionError) as fault:
        raise errors.ConfigurationError(
            f'{source}: cannot be read as YAML or JSON: {fault}'
        ) from None
    try:
        return _policy(document)
    except msgspec.ValidationError as fault:
        reason, _, place = str(fault).partition(' - at `$')
        place = place.strip('.`')
        raise errors.ConfigurationError(
            f'{source}: {place}: {reason}' if place else f'{source}: {reason}'
        ) from None
    except ValueError as fault:
        raise errors.ConfigurationError(f'{source}: {fault}') from None


def _policy(document: Any) -> PolicyFile:
    kind = document.get('kind') if isinstance(document, dict) else None
    is_newer = kind == 'KubeSchedulerConfiguration'
    if not is_newer and kind not in ('Policy', None):
        raise ValueError(
            'kind: expected Policy or KubeSchedulerConfiguration, '
            f'got {kind!r}'
        )
    unknown: list[str] = []
    form: Any = _Configuration if is_newer else _Older
    spelled = _spelled(document, form, None if is_newer else unknown)
    parsed = msgspec.convert(spelled, form)
    _check(parsed.extenders, str if is_newer else int)
    # Ignorable extenders are called last; the sort is stable.
    ordered = sorted(parsed.extenders, key=lambda extender: extender.ignorable)
    predicates = priorities = None
    if not is_newer and parsed.predicates is not None:
        predicates = [named.name for named in parsed.predicates]
    if not is_newer and parsed.priorities is not None:
        priorities = [
            (named.name, named.weight) for named in parsed.priorities
        ]
        for at, (_, weight) in enumerate(priorities):
            if not weight:
                raise ValueError(
                    f'priorities[{at}].weight: expected a positive integer'
                )
    unused = [
        key
        for key in map(str, document)
        if (is_newer and key in _NEWER_UNUSED)
        or (not is_newer and key.lower() in _OLDER_UNUSED)
    ]
    for at, extender in enumerate(parsed.extenders):
        unused += [f'extenders[{at}].{key}' for key in extender.unused]
    return PolicyFile(ordered, predicates, priorities, unknown, unused)


def _spelled(
    document: Any, form: Any, unknown: list[str] | None, place: str = ''
) -> Any:
    """Return an object without null, its keys spelled as in the newer format.

    :param unknown: gets the paths of unknown keys, which are left out; None:
        the newer format, in which keys stay as they are
    """
    if not isinstance(document, dict):
        return document
    names = {name.lower(): name for name in form.__struct_encode_fields__}
    result = {}
    for key, value in document.items():
        name, at = str(key), f'{place}.{key}' if place else str(key)
        if unknown is not None:
            if name.lower() not in names:
                if name.lower() not in _IGNORED:
                    unknown.append(at)
                continue
            name = names[name.lower()]
        part = _PARTS.get(name)
        if part is not None and isinstance(value, list):
            value = [
                _spelled(item, part, unknown, f'{at}[{index}]')
                for index, item in enumerate(value)
            ]
        elif part is not None:
            value = _spelled(value, part, unknown, at)
        if value is not None:
            result[name] = value
    return result


def _check(extenders: Sequence[Extender], timeout: type[Any]) -> None:
    """Check rules across extenders.

    :param timeout: type of ``httpTimeout`` in the format of the file
    """
    binders = [extender for extender in extenders if extender.bind_verb]
    if len(binders) > 1:
        raise ValueError(
            f'extenders: {len(binders)} have a bindVerb, at most one may'
        )
    managed: set[str] = set()
    for index, extender in enumerate(extenders):
        limit = extender.http_timeout
        if limit != 0 and not isinstance(limit, timeout):
            raise ValueError(
                f'extenders[{index}].httpTimeout: expected '
                + ('nanoseconds' if timeout is int else 'a text such as 5s')
            )
        for name in extender.managed:
            if name in managed:
                raise ValueError(
                    f'extenders[{index}].managedResources: {name} is managed '
                    'by another extender already'
                )
            managed.add(name)


def with_equivalents(parsed: PolicyFile) -> tuple[PolicyFile, list[str]]:
    """Return a policy without predicates and priorities unknown here.

    :return: the policy, and the names that are left out, each once
    """
    predicates, priorities = parsed.predicates, parsed.priorities
    names = [*(predicates or ()), *(name for name, _ in priorities or ())]
    known = {*_PREDICATES, *_PRIORITIES}
    return parsed._replace(
        predicates=predicates and [n for n in predicates if n in known],
        priorities=priorities and [p for p in priorities if p[0] in known],
    ), [name for name in dict.fromkeys(names) if name not in known]


def filters(predicates: Sequence[str]) -> list[str]:
    """Return names of the filters equivalent to predicates, each once.

    :raises ConfigurationError: some predicates have no equivalent; all of
        them are named
    """
    _check_names('predicates', predicates, _PREDICATES)
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
    _check_names('priorities', [name for name, _ in priorities], _PRIORITIES)
    names: dict[str, None] = {}
    multipliers: dict[str, float] = {}
    for name, weight in priorities:
        for weigher, field, sign in _PRIORITIES[name]:
            names[weigher] = None
            multipliers[field] = multipliers.get(field, 0.0) + sign * weight
    return list(names), multipliers


def _check_names(
    key: str, names: Sequence[str], table: Mapping[str, Any]
) -> None:
    unknown = [name for name in names if name not in table]
    if unknown:
        raise errors.ConfigurationError(
            f'{key}: {", ".join(unknown)}: no filter or weigher is '
            f'equivalent. Supported are: {", ".join(sorted(table))}',
            names=unknown,
        )
