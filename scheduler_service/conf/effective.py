"""What a configuration says in effect: every option, its value, its source.

Called by the main thread while it starts, by the thread that reloads, and by
commands. Reads the tables of oslo.config's object, which has no other way to
list what is registered.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from oslo_config import cfg

from scheduler_service import errors

# What is shown in the place of a secret.
HIDDEN = '***'
# Options that say where the others are, or what is printed.
_NOT_SHOWN = frozenset(
    ('config_file', 'config_dir', 'config_source', 'shell_completion')
)
# Taken by a reload though the library that owns them does not say so.
_ALSO_TAKEN = frozenset((('DEFAULT', 'default_log_levels'),))
_TAKEN_GROUPS = frozenset(('oslo_policy',))
# What differs between daemons that do the same.
OWN = frozenset(
    (
        ('DEFAULT', 'log_file'),
        ('DEFAULT', 'log_dir'),
        ('DEFAULT', 'debug'),
        ('DEFAULT', 'default_log_levels'),
        ('scheduler', 'server'),
        ('http', 'bind_host'),
        ('http', 'bind_port'),
        ('http', 'cert_file'),
        ('http', 'key_file'),
        ('oslo_messaging_rabbit', 'processname'),
        ('oslo_messaging_rabbit', 'hostname'),
        ('oslo_concurrency', 'lock_path'),
        ('oslo_reports', 'log_dir'),
    )
)
_FAULT = re.compile(r'from (.*?) is not valid: (.*)', re.DOTALL)
_FILE = re.compile(r"detail='([^']*)'")


class Option(NamedTuple):
    """An option and what it is set to.

    :ivar group: ``DEFAULT`` where it has none
    :ivar source: a file, the command line, a variable, or ``default``
    :ivar reloads: whether a reload takes a new value
    :ivar is_default: whether it would have the value if it was not set
    """

    group: str
    name: str
    value: Any
    source: str
    secret: bool
    reloads: bool
    is_default: bool

    @property
    def place(self) -> str:
        """The option as messages name it."""
        return f'[{self.group}] {self.name}'

    @property
    def shown(self) -> Any:
        """The value; of a secret only whether there is one."""
        return HIDDEN if self.secret and self.value else self.value


def options(conf: Any) -> list[Option]:
    """Return every option that is registered, by group and name.

    :raises: one of ``conf.FAULTS``, for a value that is not valid
    """
    return [_option(conf, group, opt) for group, opt in _registered(conf)]


def document(conf: Any) -> dict[str, dict[str, Any]]:
    """Return ``group -> option -> {value, source}`` as JSON can say it.

    Secrets are hidden.

    :raises: one of ``conf.FAULTS``, for a value that is not valid
    """
    found: dict[str, dict[str, Any]] = {}
    for option in options(conf):
        said = {'value': _plain(option.shown), 'source': option.source}
        found.setdefault(option.group, {})[option.name] = said
    return found


def fingerprint(conf: Any) -> str:
    """Return 12 digits that differ where daemons are configured differently.

    What has its default does not count, so that another release, which has
    more options, need not differ; nor does what belongs to one daemon or
    machine: its name, addresses, certificate, and log. Of a secret it counts
    whether there is one.

    :raises: one of ``conf.FAULTS``, for a value that is not valid
    """
    lines = [
        f'{option.place}\0{_plain(option.shown)!r}'
        for option in options(conf)
        if not (option.is_default or (option.group, option.name) in OWN)
    ]
    return hashlib.sha256('\n'.join(lines).encode()).hexdigest()[:12]


def faults(conf: Any) -> list[str]:
    """Return what is wrong with values, each with its option and its file."""
    found = []
    for group, opt in _registered(conf):
        try:
            value = _value(conf, group, opt)
        except (cfg.Error, ValueError) as fault:
            found.append(f'[{group}] {opt.dest}{_reason(str(fault))}')
        except RecursionError:
            found.append(f'[{group}] {opt.dest}: it refers to itself')
        else:
            # No comparison with bounds finds the first of these.
            if isinstance(value, float) and not math.isfinite(value):
                found.append(f'[{group}] {opt.dest}: {value} is not a number')
    return found


def check(conf: Any) -> None:
    """Check every value.

    :raises ConfigurationError: some are not valid; it names all of them
    """
    found = faults(conf)
    if found:
        raise errors.ConfigurationError('; '.join(found))


def register_like(conf: Any, known: Any) -> None:
    """Register on *conf* what libraries have registered on *known* since."""
    for group, opt in _registered(known):
        into = None if group == 'DEFAULT' else group
        conf.register_opt(opt, group=into)
        info = known._get_opt_info(opt.dest, into)
        if 'default' in info:
            conf.set_default(opt.dest, info['default'], group=into)


def differences(before: Any, after: Any) -> list[Option]:
    """Return the options, as *after* has them, that have other values there.

    :raises: one of ``conf.FAULTS``, for a value that is not valid
    """
    old = {
        (option.group, option.name): option.value for option in options(before)
    }
    return [
        option
        for option in options(after)
        if old.get((option.group, option.name)) != option.value
    ]


def keep(conf: Any, running: Any) -> list[Option]:
    """Have *conf* keep the running values of options that need a restart.

    :return: those options, with the values that wait for the restart
    """
    waiting = [
        difference
        for difference in differences(running, conf)
        if not difference.reloads
    ]
    for one in waiting:
        group = None if one.group == 'DEFAULT' else one.group
        value = (
            running[one.name] if group is None else running[group][one.name]
        )
        conf.set_override(one.name, value, group=group)
    return waiting


def _registered(conf: Any) -> Iterator[tuple[str, Any]]:
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


def _value(conf: Any, group: str, opt: Any) -> Any:
    return conf[opt.dest] if group == 'DEFAULT' else conf[group][opt.dest]


def _option(conf: Any, group: str, opt: Any) -> Option:
    place = group, opt.dest
    value, source = _value(conf, group, opt), _source(conf, group, opt.dest)
    return Option(
        group,
        opt.dest,
        value,
        source,
        opt.secret,
        opt.mutable or place in _ALSO_TAKEN or group in _TAKEN_GROUPS,
        source == 'default' or value == opt.default,
    )


def _source(conf: Any, group: str, name: str) -> str:
    at = conf.get_location(name, None if group == 'DEFAULT' else group)
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
    """Return `` (file): what is wrong`` of a message of oslo.config."""
    parts = _FAULT.search(text)
    if parts is None:
        return f': {text}'
    file = _FILE.search(parts[1])
    return f'{f" ({file[1]})" if file else ""}: {parts[2]}'


def _plain(value: Any) -> Any:
    """Return a value as JSON can say it."""
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)
