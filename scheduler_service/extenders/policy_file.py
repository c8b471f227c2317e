"""Parses a policy file with extenders, in the older and the newer format.

The older format is JSON with ``kind: Policy``: keys in any case, durations in
nanoseconds, unknown keys ignored and reported. The newer format is YAML or
JSON with ``kind: KubeSchedulerConfiguration``: keys in exactly one case,
durations as text, unknown keys are errors. Predicates and priorities of the
older format are translated into filters and weighers. Stateless; used by the
main thread.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from scheduler_service import errors

DEFAULT_TIMEOUT_S = 5.0
_LABEL = re.compile(r'[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?')
# The part before the host; a password may have any character in it.
_CREDENTIALS = re.compile(r'//.*@')
_UNITS = {
    'ns': 1e-9, 'us': 1e-6, '\u00b5s': 1e-6, 'ms': 1e-3, 's': 1.0, 'm': 60.0,
    'h': 3600.0,
}  # fmt: skip
_SPAN = re.compile(r'(\d+\.?\d*|\.\d+)(ns|us|\u00b5s|ms|s|m|h)')
_VERSIONS = tuple(
    f'kubescheduler.config.k8s.io/{version}'
    for version in ('v1', 'v1beta3', 'v1beta2', 'v1beta1')
)
_KEYS = (
    'urlPrefix', 'filterVerb', 'prioritizeVerb', 'preemptVerb', 'bindVerb',
    'weight', 'enableHTTPS', 'tlsConfig', 'httpTimeout', 'nodeCacheCapable',
    'managedResources', 'ignorable',
)  # fmt: skip
_TLS_KEYS = (
    'insecure', 'serverName', 'certFile', 'keyFile', 'caFile', 'certData',
    'keyData', 'caData',
)  # fmt: skip
_NEWER_KEYS = (
    'apiVersion', 'kind', 'extenders', 'profiles', 'parallelism',
    'leaderElection', 'clientConnection', 'healthzBindAddress',
    'metricsBindAddress', 'enableProfiling', 'enableContentionProfiling',
    'percentageOfNodesToScore', 'podInitialBackoffSeconds',
    'podMaxBackoffSeconds', 'delayCacheUntilActive',
)  # fmt: skip

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


@dataclasses.dataclass(frozen=True, slots=True)
class Tls:
    """TLS settings of an extender; data takes precedence over files."""

    insecure: bool = False
    server_name: str = ''
    cert_file: str = ''
    key_file: str = ''
    ca_file: str = ''
    cert_data: bytes = b''
    key_data: bytes = b''
    ca_data: bytes = b''


@dataclasses.dataclass(frozen=True, slots=True)
class Extender:
    """An extender; an empty verb is not called.

    :ivar weight: of its scores
    :ivar timeout: of a whole call, in seconds
    :ivar node_cache_capable: whether it takes names of nodes, not nodes
    :ivar managed: resource -> whether the scheduler itself ignores it; empty:
        the extender is called for every request
    :ivar ignorable: whether a request goes on if a call fails
    """

    url_prefix: str
    filter_verb: str = ''
    prioritize_verb: str = ''
    preempt_verb: str = ''
    bind_verb: str = ''
    weight: int = 0
    enable_https: bool = False
    tls: Tls | None = None
    timeout: float = DEFAULT_TIMEOUT_S
    node_cache_capable: bool = False
    managed: Mapping[str, bool] = dataclasses.field(default_factory=dict)
    ignorable: bool = False

    @property
    def label(self) -> str:
        """The name for logs and errors: the URL without credentials."""
        return without_credentials(self.url_prefix)

    def url(self, verb: str) -> str:
        """Return the URL of a verb."""
        return f'{self.url_prefix.rstrip("/")}/{verb}'


def without_credentials(url: str) -> str:
    """Return a URL without its user, its password and its query."""
    return _CREDENTIALS.sub('//', url).partition('?')[0]


@dataclasses.dataclass(frozen=True, slots=True)
class PolicyFile:
    """A parsed policy file.

    :ivar extenders: in the order in which they are called
    :ivar predicates: their names; None: absent
    :ivar priorities: (name, weight); None: absent
    :ivar unknown: paths of keys that were ignored
    """

    extenders: tuple[Extender, ...] = ()
    predicates: tuple[str, ...] | None = None
    priorities: tuple[tuple[str, int], ...] | None = None
    unknown: tuple[str, ...] = ()


def read(text: bytes, source: str) -> PolicyFile:
    """Parse a policy file.

    :param source: its path, for errors
    :raises ConfigurationError: with the path of the key and what was expected
    """
    try:
        document = msgspec.yaml.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError) as fault:
        raise errors.ConfigurationError(
            f'{source}: cannot be read as YAML or JSON: {fault}'
        ) from None
    try:
        policy = _policy(document)
        _check(policy.extenders)
    except _Invalid as fault:
        raise errors.ConfigurationError(f'{source}: {fault}') from None
    # Ignorable extenders are called last; the sort is stable.
    ordered = sorted(policy.extenders, key=lambda extender: extender.ignorable)
    return dataclasses.replace(policy, extenders=tuple(ordered))


class _Invalid(Exception):
    """A value in the file is not valid."""


class _Object:
    """An object of the file, read by the rules of its format.

    :param place: its path in the file
    :param keys: the keys that it may have
    :param strict: the newer format: case matters, unknown keys are errors
    :param unknown: gets the paths of unknown keys
    """

    def __init__(
        self,
        document: Any,
        place: str,
        keys: Sequence[str],
        strict: bool,
        unknown: list[str],
    ) -> None:
        if not isinstance(document, dict):
            raise _Invalid(f'{place or "the file"}: expected an object')
        self.place = place
        self.strict = strict
        self.unknown = unknown
        self._values: dict[str, Any] = {}
        names = {key if strict else key.lower(): key for key in keys}
        for key, value in document.items():
            name = names.get(str(key) if strict else str(key).lower())
            if name is not None:
                self._values[name] = value
                continue
            if strict:
                raise _Invalid(f'{self.at(key)}: unknown key')
            unknown.append(self.at(key))

    def at(self, key: Any) -> str:
        """Return the path of a key in the file."""
        return f'{self.place}.{key}' if self.place else str(key)

    def get(self, key: str, kind: type[Any], default: Any) -> Any:
        """Return the value of a key; the default if it is absent.

        :raises _Invalid: it is not of *kind*
        """
        value = self._values.get(key)
        if value is None:
            return default
        valid = isinstance(value, kind)
        if kind is int and isinstance(value, bool):
            valid = False
        if not valid:
            raise _Invalid(f'{self.at(key)}: expected a {kind.__name__}')
        return value

    def objects(
        self, key: str, keys: Sequence[str], make: Callable[[_Object], Any]
    ) -> tuple[Any, ...] | None:
        """Return what *make* returns for each object of a list.

        :return: None if the key is absent
        """
        documents = self.get(key, list, None)
        if documents is None:
            return None
        return tuple(
            make(
                _Object(
                    document,
                    f'{self.at(key)}[{index}]',
                    keys,
                    self.strict,
                    self.unknown,
                )
            )
            for index, document in enumerate(documents)
        )


def _policy(document: Any) -> PolicyFile:
    kind = document.get('kind') if isinstance(document, dict) else None
    unknown: list[str] = []
    if kind == 'KubeSchedulerConfiguration':
        whole = _Object(document, '', _NEWER_KEYS, True, unknown)
        if whole.get('apiVersion', str, '') not in _VERSIONS:
            raise _Invalid(
                f'apiVersion: expected one of {", ".join(_VERSIONS)}'
            )
        extenders = whole.objects('extenders', _KEYS, _extender)
        return PolicyFile(extenders or ())
    if kind not in ('Policy', None):
        raise _Invalid(
            'kind: expected Policy or KubeSchedulerConfiguration, '
            f'got {kind!r}'
        )
    keys = (
        'kind', 'apiVersion', 'predicates', 'priorities', 'extenders',
        'hardPodAffinitySymmetricWeight', 'alwaysCheckAllPredicates',
    )  # fmt: skip
    whole = _Object(document, '', keys, False, unknown)
    parts = ('name', 'argument', 'weight')
    extenders = whole.objects('extenders', (*_KEYS, 'apiVersion'), _extender)
    return PolicyFile(
        extenders or (),
        whole.objects('predicates', parts, _named),
        whole.objects('priorities', parts, _weighted),
        tuple(unknown),
    )


def _named(obj: _Object) -> str:
    name: str = obj.get('name', str, '')
    if obj.get('argument', dict, None):
        raise _Invalid(
            f'{obj.place}: {name} with an argument is not supported'
        )
    return name


def _weighted(obj: _Object) -> tuple[str, int]:
    weight = obj.get('weight', int, 0)
    if weight <= 0:
        raise _Invalid(f'{obj.at("weight")}: expected a positive integer')
    return _named(obj), weight


def _extender(obj: _Object) -> Extender:
    tls = obj.get('tlsConfig', dict, None)
    prefix = obj.get('urlPrefix', str, '')
    if not prefix.startswith(('http://', 'https://')):
        raise _Invalid(
            f'{obj.at("urlPrefix")}: expected http://... or https://...'
        )
    managed = obj.objects(
        'managedResources', ('name', 'ignoredByScheduler'), _managed
    )
    return Extender(
        url_prefix=prefix,
        filter_verb=obj.get('filterVerb', str, ''),
        prioritize_verb=obj.get('prioritizeVerb', str, ''),
        preempt_verb=obj.get('preemptVerb', str, ''),
        bind_verb=obj.get('bindVerb', str, ''),
        weight=obj.get('weight', int, 0),
        enable_https=obj.get('enableHTTPS', bool, False),
        tls=None
        if tls is None
        else _tls(
            _Object(
                tls, obj.at('tlsConfig'), _TLS_KEYS, obj.strict, obj.unknown
            )
        ),
        timeout=_timeout(obj) or DEFAULT_TIMEOUT_S,
        node_cache_capable=obj.get('nodeCacheCapable', bool, False),
        managed=dict(managed or ()),
        ignorable=obj.get('ignorable', bool, False),
    )


def _timeout(obj: _Object) -> float:
    if not obj.strict:
        spent = obj.get('httpTimeout', int, 0)
        if spent < 0:
            raise _Invalid(
                f'{obj.at("httpTimeout")}: expected a duration of at least 0'
            )
        return float(spent) / 1e9
    text: str = obj.get('httpTimeout', str, '0')
    spans = _SPAN.findall(text)
    if ''.join(a + b for a, b in spans) != text and text != '0':
        raise _Invalid(
            f'{obj.at("httpTimeout")}: expected a duration such as 1m30s'
        )
    return sum(float(number) * _UNITS[unit] for number, unit in spans)


def _managed(obj: _Object) -> tuple[str, bool]:
    name: str = obj.get('name', str, '')
    domain, slash, rest = name.partition('/')
    if (
        not slash
        or not domain
        or not _LABEL.fullmatch(rest)
        or domain == 'kubernetes.io'
        or domain.endswith('.kubernetes.io')
        or name.startswith('requests.')
    ):
        raise _Invalid(
            f'{obj.at("name")}: {name!r} is not an extended resource: '
            'expected DOMAIN/NAME with a domain outside kubernetes.io'
        )
    return name, obj.get('ignoredByScheduler', bool, False)


def _tls(obj: _Object) -> Tls:
    data = {}
    for key in ('certData', 'keyData', 'caData'):
        try:
            data[key] = base64.b64decode(obj.get(key, str, ''), validate=True)
        except (binascii.Error, ValueError):
            raise _Invalid(f'{obj.at(key)}: expected base64') from None
    tls = Tls(
        insecure=obj.get('insecure', bool, False),
        server_name=obj.get('serverName', str, ''),
        cert_file=obj.get('certFile', str, ''),
        key_file=obj.get('keyFile', str, ''),
        ca_file=obj.get('caFile', str, ''),
        cert_data=data['certData'],
        key_data=data['keyData'],
        ca_data=data['caData'],
    )
    if tls.insecure and (tls.ca_file or tls.ca_data):
        raise _Invalid(f'{obj.place}: insecure and a CA exclude each other')
    if bool(tls.cert_file or tls.cert_data) != bool(
        tls.key_file or tls.key_data
    ):
        raise _Invalid(
            f'{obj.place}: a certificate needs its key, and a key its '
            'certificate'
        )
    return tls


def _check(extenders: Sequence[Extender]) -> None:
    """Check rules across keys and extenders.

    :raises _Invalid: an extender, or several together, are not valid
    """
    binders = [extender for extender in extenders if extender.bind_verb]
    if len(binders) > 1:
        raise _Invalid(
            f'extenders: {len(binders)} have a bindVerb, at most one may'
        )
    seen: set[str] = set()
    for index, extender in enumerate(extenders):
        if extender.prioritize_verb and extender.weight <= 0:
            raise _Invalid(
                f'extenders[{index}].weight: expected a positive integer with '
                'prioritizeVerb'
            )
        for name in extender.managed:
            if name in seen:
                raise _Invalid(
                    f'extenders[{index}].managedResources: {name} is managed '
                    'by another extender already'
                )
            seen.add(name)


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
