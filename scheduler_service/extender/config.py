"""The extenders of a policy file, in its older and its newer format.

The older is JSON with ``kind: Policy``: keys in any case, times in
nanoseconds, what is not known is ignored and said. The newer is YAML or JSON
with ``kind: KubeSchedulerConfiguration``: keys as written, times as text, and
what is not known is refused.
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
_UNITS = {
    'ns': 1e-9, 'us': 1e-6, '\u00b5s': 1e-6, 'ms': 1e-3, 's': 1.0, 'm': 60.0,
    'h': 3600.0,
}  # fmt: skip
_SPAN = re.compile(r'(\d+\.?\d*|\.\d+)(ns|us|\u00b5s|ms|s|m|h)')
_VERSIONS = tuple(
    f'kubescheduler.config.k8s.io/{one}'
    for one in ('v1', 'v1beta3', 'v1beta2', 'v1beta1')
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


@dataclasses.dataclass(frozen=True, slots=True)
class Tls:
    """How an extender is trusted, and trusts us; data wins over files."""

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
    """One extender; a verb that is empty is not called.

    :ivar timeout: of a whole call, in seconds
    :ivar managed: resource -> whether we are to ignore it ourselves; empty:
        every request concerns it
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

    def url(self, verb: str) -> str:
        """Return the URL of a verb."""
        return f'{self.url_prefix.rstrip("/")}/{verb}'


@dataclasses.dataclass(frozen=True, slots=True)
class Policy:
    """What a policy file says.

    :ivar extenders: in the order in which they are asked
    :ivar predicates: their names; None: not given
    :ivar priorities: (name, weight); None: not given
    :ivar unknown: keys that were ignored, with their places
    """

    extenders: tuple[Extender, ...] = ()
    predicates: tuple[str, ...] | None = None
    priorities: tuple[tuple[str, int], ...] | None = None
    unknown: tuple[str, ...] = ()


def read(text: bytes, source: str) -> Policy:
    """Read a policy file.

    :raises ConfigurationError: with the place and what was expected there
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
    except _Wrong as wrong:
        raise errors.ConfigurationError(f'{source}: {wrong}') from None
    # Those that may be missed are asked last, each kind in its order.
    ordered = sorted(policy.extenders, key=lambda one: one.ignorable)
    return dataclasses.replace(policy, extenders=tuple(ordered))


class _Wrong(Exception):
    """Something in the file is not as it has to be."""


class _Object:
    """An object of the file, read by the rules of its format.

    :param strict: keys exactly as written, and no others
    """

    def __init__(
        self,
        document: Any,
        place: str,
        known: Sequence[str],
        strict: bool,
        unknown: list[str],
    ) -> None:
        if not isinstance(document, dict):
            raise _Wrong(f'{place or "the document"}: expected an object')
        self.place = place
        self.strict = strict
        self.unknown = unknown
        self._found: dict[str, Any] = {}
        names = {one if strict else one.lower(): one for one in known}
        for key, value in document.items():
            name = names.get(str(key) if strict else str(key).lower())
            if name is not None:
                self._found[name] = value
                continue
            if strict:
                raise _Wrong(f'{self.at(key)}: unknown key')
            unknown.append(self.at(key))

    def at(self, key: Any) -> str:
        """Return the place of a key."""
        return f'{self.place}.{key}' if self.place else str(key)

    def get(self, key: str, kind: type[Any], default: Any) -> Any:
        """Return a value of a kind, the default where it is absent."""
        value = self._found.get(key)
        if value is None:
            return default
        good = isinstance(value, kind)
        if kind is int and isinstance(value, bool):
            good = False
        if not good:
            raise _Wrong(f'{self.at(key)}: expected a {kind.__name__}')
        return value

    def each(
        self, key: str, known: Sequence[str], make: Callable[[_Object], Any]
    ) -> tuple[Any, ...] | None:
        """Return what is made of each object of a list; None if absent."""
        listed = self.get(key, list, None)
        if listed is None:
            return None
        return tuple(
            make(
                _Object(
                    one, f'{self.at(key)}[{at}]', known, self.strict,
                    self.unknown,
                )
            )
            for at, one in enumerate(listed)
        )  # fmt: skip


def _policy(document: Any) -> Policy:
    kind = document.get('kind') if isinstance(document, dict) else None
    unknown: list[str] = []
    if kind == 'KubeSchedulerConfiguration':
        whole = _Object(document, '', _NEWER_KEYS, True, unknown)
        if whole.get('apiVersion', str, '') not in _VERSIONS:
            raise _Wrong(f'apiVersion: expected one of {", ".join(_VERSIONS)}')
        found = whole.each('extenders', _KEYS, _extender)
        return Policy(found or ())
    if kind not in ('Policy', None):
        raise _Wrong(
            'kind: expected Policy or KubeSchedulerConfiguration, '
            f'got {kind!r}'
        )
    known = (
        'kind', 'apiVersion', 'predicates', 'priorities', 'extenders',
        'hardPodAffinitySymmetricWeight', 'alwaysCheckAllPredicates',
    )  # fmt: skip
    whole = _Object(document, '', known, False, unknown)
    parts = ('name', 'argument', 'weight')
    extenders = whole.each('extenders', (*_KEYS, 'apiVersion'), _extender)
    return Policy(
        extenders or (),
        whole.each('predicates', parts, _named),
        whole.each('priorities', parts, _weighted),
        tuple(unknown),
    )


def _named(one: _Object) -> str:
    name: str = one.get('name', str, '')
    if one.get('argument', dict, None):
        raise _Wrong(f'{one.place}: {name} with an argument is not supported')
    return name


def _weighted(one: _Object) -> tuple[str, int]:
    weight = one.get('weight', int, 0)
    if weight <= 0:
        raise _Wrong(f'{one.at("weight")}: has to be positive')
    return _named(one), weight


def _extender(one: _Object) -> Extender:
    tls = one.get('tlsConfig', dict, None)
    prefix = one.get('urlPrefix', str, '')
    if not prefix.startswith(('http://', 'https://')):
        raise _Wrong(
            f'{one.at("urlPrefix")}: expected http://... or https://...'
        )
    managed = one.each(
        'managedResources', ('name', 'ignoredByScheduler'), _managed
    )
    return Extender(
        url_prefix=prefix,
        filter_verb=one.get('filterVerb', str, ''),
        prioritize_verb=one.get('prioritizeVerb', str, ''),
        preempt_verb=one.get('preemptVerb', str, ''),
        bind_verb=one.get('bindVerb', str, ''),
        weight=one.get('weight', int, 0),
        enable_https=one.get('enableHTTPS', bool, False),
        tls=None
        if tls is None
        else _tls(
            _Object(
                tls, one.at('tlsConfig'), _TLS_KEYS, one.strict, one.unknown
            )
        ),
        timeout=_timeout(one) or DEFAULT_TIMEOUT_S,
        node_cache_capable=one.get('nodeCacheCapable', bool, False),
        managed=dict(managed or ()),
        ignorable=one.get('ignorable', bool, False),
    )


def _timeout(one: _Object) -> float:
    if not one.strict:
        spent = one.get('httpTimeout', int, 0)
        if spent < 0:
            raise _Wrong(f'{one.at("httpTimeout")}: is negative')
        return float(spent) / 1e9
    text: str = one.get('httpTimeout', str, '0')
    spans = _SPAN.findall(text)
    if ''.join(a + b for a, b in spans) != text and text != '0':
        raise _Wrong(
            f'{one.at("httpTimeout")}: expected a duration such as 1m30s'
        )
    return sum(float(number) * _UNITS[unit] for number, unit in spans)


def _managed(one: _Object) -> tuple[str, bool]:
    name: str = one.get('name', str, '')
    domain, slash, rest = name.partition('/')
    if (
        not slash
        or not domain
        or not _LABEL.fullmatch(rest)
        or domain == 'kubernetes.io'
        or domain.endswith('.kubernetes.io')
        or name.startswith('requests.')
    ):
        raise _Wrong(
            f'{one.at("name")}: {name!r} is no extended resource, which is '
            'DOMAIN/NAME outside kubernetes.io'
        )
    return name, one.get('ignoredByScheduler', bool, False)


def _tls(one: _Object) -> Tls:
    data = {}
    for key in ('certData', 'keyData', 'caData'):
        try:
            data[key] = base64.b64decode(one.get(key, str, ''), validate=True)
        except (binascii.Error, ValueError):
            raise _Wrong(f'{one.at(key)}: expected base64') from None
    found = Tls(
        insecure=one.get('insecure', bool, False),
        server_name=one.get('serverName', str, ''),
        cert_file=one.get('certFile', str, ''),
        key_file=one.get('keyFile', str, ''),
        ca_file=one.get('caFile', str, ''),
        cert_data=data['certData'],
        key_data=data['keyData'],
        ca_data=data['caData'],
    )
    if found.insecure and (found.ca_file or found.ca_data):
        raise _Wrong(f'{one.place}: insecure with a CA')
    if bool(found.cert_file or found.cert_data) != bool(
        found.key_file or found.key_data
    ):
        raise _Wrong(f'{one.place}: a certificate and its key go together')
    return found


def _check(extenders: Sequence[Extender]) -> None:
    """Refuse what no extender may be, and what two may not."""
    binders = [one for one in extenders if one.bind_verb]
    if len(binders) > 1:
        raise _Wrong(f'extenders: {len(binders)} have bindVerb, one may')
    seen: set[str] = set()
    for at, one in enumerate(extenders):
        if one.prioritize_verb and one.weight <= 0:
            raise _Wrong(
                f'extenders[{at}].weight: has to be positive with '
                'prioritizeVerb'
            )
        for name in one.managed:
            if name in seen:
                raise _Wrong(
                    f'extenders[{at}].managedResources: {name} is managed by '
                    'two'
                )
            seen.add(name)
