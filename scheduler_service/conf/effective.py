"""The effective configuration: every option, its value and its source.

Called by the main thread at the start, by the thread that reloads, and by
commands. The functions read private tables of oslo.config's object, which has
no other way to list registered options.
"""

from __future__ import annotations

import hashlib
import math
import os
import pathlib
import re
from collections.abc import Iterator, Mapping, Set
from importlib import metadata
from typing import Any, NamedTuple

import msgspec
from oslo_config import cfg

from scheduler_service import errors

# Group -> option -> value and source, in values of JSON.
Document = Mapping[str, Mapping[str, Any]]
# Shown in place of a secret.
HIDDEN = '***'
# Shown where only the other configuration has an option.
_UNKNOWN = {'value': 'unknown to it'}
# Options that only locate the others, or print something.
_NOT_SHOWN = frozenset(
    ('config_file', 'config_dir', 'config_source', 'shell_completion')
)
# Options that differ between daemons with the same task.
OWN = {
    (group, name)
    for group, names in {
        'DEFAULT': ('log_file', 'log_dir', 'debug', 'default_log_levels'),
        'scheduler': ('server',),
        'http': ('bind_host', 'bind_port', 'cert_file', 'key_file'),
        'oslo_messaging_rabbit': ('processname', 'hostname'),
        'oslo_concurrency': ('lock_path',),
        'oslo_reports': ('log_dir',),
    }.items()
    for name in names
}
# Groups of a document that are no options.
_PARTS = 'files', 'packages'
# How groups of entry points of plug-ins begin.
_PLUGINS = 'scheduler_service.', 'designate.scheduler.filters'
_FAULT = re.compile(r'from (.*?) is not valid: (.*)', re.DOTALL)
_FILE = re.compile(r"detail='([^']*)'")
# Larger numbers are not exact, and no column of a table has them.
_LARGEST = 2**53
# Of a time, in seconds: no thread can wait longer. Options of floating-point
# numbers with a lower bound are times, or ratios.
LONGEST_S = 1e9


class Option(NamedTuple):
    """An option and its value.

    :ivar group: ``DEFAULT`` where it has none
    :ivar source: a file, the command line, a variable, or ``default``
    :ivar reloads: whether a reload applies a new value
    :ivar is_default: whether the value is the default
    :ivar before: of a difference, the value that it replaces, as it is shown
    """

    group: str
    name: str
    value: Any
    source: str
    secret: bool
    reloads: bool
    is_default: bool
    before: Any = None

    @property
    def place(self) -> str:
        """The name of the option in messages."""
        return f'[{self.group}] {self.name}'

    @property
    def shown(self) -> Any:
        """The value; a secret is hidden if it is set."""
        return HIDDEN if self.secret and self.value else self.value


class Difference(NamedTuple):
    """Where two configurations differ: ``[group] option``, and its values."""

    place: str
    before: Any
    after: Any

    def __str__(self) -> str:
        """Return both values, or of a list what was added and removed."""
        old, new = self.before, self.after
        parts = []
        if isinstance(old, list) and isinstance(new, list):
            parts = [
                f'{word} {", ".join(map(str, items))}'
                for word, items in (
                    ('added', [item for item in new if item not in old]),
                    ('removed', [item for item in old if item not in new]),
                )
                if items
            ]
        return f'{self.place}: {"; ".join(parts) or f"{old} -> {new}"}'


def options(conf: Any) -> list[Option]:
    """Return every option that is registered, by group and name.

    :raises: one of ``conf.FAULTS``, for a value that is not valid
    """
    return [_option(conf, group, opt) for group, opt in registered(conf)]


def document(conf: Any) -> dict[str, dict[str, Any]]:
    """Return ``group -> option -> {value, source}``, in values of JSON.

    Secrets are hidden. The groups ``files`` and ``packages`` have the digests
    of policy files, and the versions of packages with plug-ins.

    :raises: one of ``conf.FAULTS``, for a value that is not valid
    """
    groups: dict[str, dict[str, Any]] = {}
    for option in options(conf):
        entry = {'value': _plain(option.shown), 'source': option.source}
        groups.setdefault(option.group, {})[option.name] = entry
    return groups | _parts(conf)


def load(document: Document, conf: Any) -> None:
    """Give *conf* the values of a document, but for secrets.

    :param conf: registered options, which are parsed
    :raises: one of ``conf.FAULTS``, for a value that is not valid
    """
    for group, opt in [*registered(conf)]:
        item = document.get(group, {}).get(opt.dest)
        if item is not None and not opt.secret:
            conf.set_override(opt.dest, item['value'], _group(group))


def outdated(document: Document, conf: Any) -> list[Difference]:
    """Return which files and packages are now others than in a document.

    Those that say who may do what are left out: they choose no hosts.

    :param conf: what :func:`load` made of the document
    """
    then = {group: document.get(group, {}) for group in _PARTS}
    return between(then, _parts(conf), {('files', 'oslo_policy.policy_file')})


def _parts(conf: Any) -> dict[str, dict[str, Any]]:
    """Return the groups ``files`` and ``packages`` of a document."""
    files = {}
    for group, path in (
        ('extender', conf.extender.policy_file),
        ('oslo_policy', conf.find_file(conf.oslo_policy.policy_file)),
    ):
        if path and os.path.isfile(path) and os.access(path, os.R_OK):
            content = pathlib.Path(path).read_bytes()
            digest = hashlib.sha256(content).hexdigest()
            files[f'{group}.policy_file'] = {'value': digest, 'source': path}
    packages = {
        name: {'value': metadata.version(name), 'source': 'installed'}
        for name in _packages(conf)
    }
    return dict(zip(_PARTS, (files, packages), strict=True))


def _packages(conf: Any) -> set[str]:
    """Return the names of packages with plug-ins, but for our own."""
    names = {
        package.name
        for package in metadata.distributions()
        for point in package.entry_points
        if point.group.startswith(_PLUGINS)
    }
    group = conf.filter_scheduler
    modules = {
        path.partition('.')[0]
        for path in (
            *group.available_filters, *group.enabled_filters,
            *group.weight_classes, *conf.scheduler.stages,
        )
        if '.' in path
    } - {'scheduler_service', 'nova'}  # fmt: skip
    if modules:
        # Takes long, since it reads what each package has.
        known = metadata.packages_distributions()
        names.update(*(known.get(module, ()) for module in modules))
    return names - {'scheduler-service'}


def by_place(
    document: Document, without: Set[tuple[str, str]] = frozenset()
) -> dict[str, Any]:
    """Return value and source by ``[group] option``, but for some."""
    return {
        f'[{group}] {name}': item
        for group, options in sorted(document.items())
        for name, item in sorted(options.items())
        if (group, name) not in without
    }


def between(
    before: Document,
    after: Document,
    without: Set[tuple[str, str]] = frozenset(),
) -> list[Difference]:
    """Return where two documents differ, but for some options."""
    first, second = by_place(before, without), by_place(after, without)
    return [
        Difference(place, left, right)
        for place in sorted(first.keys() | second.keys())
        if (left := first.get(place, _UNKNOWN)['value'])
        != (right := second.get(place, _UNKNOWN)['value'])
    ]


def fingerprint(conf: Any) -> str:
    """Return 12 hex digits that differ where configurations differ.

    Options with their default are left out, so that a release with more
    options need not differ; neither do options of one daemon or machine: its
    name, addresses, certificate and log. Of a secret only its presence counts.
    Policy files and packages with plug-ins count as well.

    :raises: one of ``conf.FAULTS``, for a value that is not valid
    """
    lines = [
        f'{option.place}\0{_plain(option.shown)!r}'
        for option in options(conf)
        if not (option.is_default or (option.group, option.name) in OWN)
    ]
    lines += [
        f'{place}\0{item["value"]}'
        for place, item in by_place(_parts(conf)).items()
    ]
    return hashlib.sha256('\n'.join(lines).encode()).hexdigest()[:12]


def faults(conf: Any) -> list[str]:
    """Return the errors of values, each with its option and its file."""
    texts = []
    for group, opt in registered(conf):
        try:
            value = _value(conf, group, opt.dest)
        except (cfg.Error, ValueError) as fault:
            texts.append(f'[{group}] {opt.dest}{_reason(str(fault))}')
        except RecursionError:
            texts.append(f'[{group}] {opt.dest}: it refers to itself')
        else:
            if text := _unusable(opt, value):
                source = _source(conf, group, opt.dest)
                texts.append(f'[{group}] {opt.dest} ({source}): {text}')
    return texts


def _unusable(opt: Any, value: Any) -> str:
    """Return why a value of the right type cannot be used; '' if it can."""
    needed = opt.required or not isinstance(opt, cfg.StrOpt)
    if value in (None, '') and opt.default is not None and needed:
        return 'it needs a value'
    # A comparison with bounds never rejects NaN.
    if isinstance(value, float) and not math.isfinite(value):
        return f'{value} is not a number'
    is_time = isinstance(opt, cfg.FloatOpt) and opt.type.min is not None
    limit = LONGEST_S if is_time else _LARGEST
    if isinstance(value, int | float) and abs(value) > limit:
        return f'{value} is larger than {limit:g}'
    return ''


def check(conf: Any) -> None:
    """Check every value.

    :raises ConfigurationError: values are not valid; it names all of them
    """
    texts = faults(conf)
    if texts:
        raise errors.ConfigurationError('; '.join(texts))


def register_like(conf: Any, running: Any) -> None:
    """Register on *conf* the options that libraries added to *running*."""
    for group, opt in registered(running):
        into = _group(group)
        conf.register_opt(opt, group=into)
        info = running._get_opt_info(opt.dest, into)
        if 'default' in info:
            conf.set_default(opt.dest, info['default'], group=into)


def differences(before: Any, after: Any) -> list[Option]:
    """Return the options of *after* whose values differ from *before*.

    :raises: one of ``conf.FAULTS``, for a value that is not valid
    """
    old = {(option.group, option.name): option for option in options(before)}
    changed = []
    for option in options(after):
        earlier = old.get((option.group, option.name))
        if earlier is None or earlier.value != option.value:
            shown = earlier.shown if earlier is not None else None
            changed.append(option._replace(before=shown))
    return changed


def keep(conf: Any, running: Any) -> list[Option]:
    """Keep in *conf* the running values of options that need a restart.

    :return: those options, with the values that wait for the restart
    """
    waiting = [
        difference
        for difference in differences(running, conf)
        if not difference.reloads
    ]
    for option in waiting:
        value = _value(running, option.group, option.name)
        conf.set_override(option.name, value, _group(option.group))
    return waiting


def registered(conf: Any) -> Iterator[tuple[str, Any]]:
    """Yield (group, option), in order."""
    groups = {'DEFAULT': conf._opts}
    groups.update({g.name: g._opts for g in list(conf._groups.values())})
    for group in sorted(groups):
        for name in sorted(groups[group]):
            opt = groups[group][name]['opt']
            if name not in _NOT_SHOWN and not isinstance(
                opt, cfg.SubCommandOpt
            ):
                yield group, opt


def _group(name: str) -> str | None:
    """Return a group as oslo.config names it."""
    return None if name == 'DEFAULT' else name


def _value(conf: Any, group: str, name: str) -> Any:
    return conf[name] if group == 'DEFAULT' else conf[group][name]


def _option(conf: Any, group: str, opt: Any) -> Option:
    value = _value(conf, group, opt.dest)
    source = _source(conf, group, opt.dest)
    return Option(
        group,
        opt.dest,
        value,
        source,
        opt.secret,
        # A reload applies two that their libraries do not mark.
        opt.mutable
        or opt.dest == 'default_log_levels'
        or group == 'oslo_policy',
        source == 'default' or value == opt.default,
    )


def _source(conf: Any, group: str, name: str) -> str:
    at = conf.get_location(name, _group(group))
    kind = 'default' if at is None else at.location.name
    if kind in ('opt_default', 'set_default', 'default'):
        return 'default'
    if kind == 'user':
        return str(at.detail)
    if kind == 'environment':
        return f'variable {at.detail}'
    if kind == 'set_override':
        return 'the start of the daemon'
    return 'command line'


def _reason(text: str) -> str:
    """Return `` (file): error`` from a message of oslo.config."""
    parts = _FAULT.search(text)
    if parts is None:
        return f': {text}'
    file = _FILE.search(parts[1])
    return f'{f" ({file[1]})" if file else ""}: {parts[2]}'


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value, enc_hook=str, str_keys=True)
