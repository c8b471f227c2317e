"""Names in configuration files that no option has.

The library that reads the files says nothing about them: a value under a name
with a typing error does not count, and nobody learns of it. Called by the main
thread at the start, and by the thread that reloads.
"""

from __future__ import annotations

import difflib
import itertools
import logging
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from typing import Any

from oslo_config import cfg

LOG = logging.getLogger(__name__)
# Libraries whose options are registered when they are first used.
# Those whose options we read, and no others: to list the options of
# oslo.service imports eventlet's servers, which leave locks of eventlet in
# the standard library's.
_LIBRARIES = frozenset((
    'oslo.concurrency', 'oslo.config', 'oslo.db', 'oslo.log',
    'oslo.messaging', 'oslo.policy', 'oslo.reports', 'scheduler_service',
))  # fmt: skip
# Sections that belong to other programs, in files that are shared.
_OF_OTHERS = ('service:', 'keystone')
# So many names are logged; a file that is another program's has hundreds.
_MOST = 30


def warn(conf: Any) -> None:
    """Log a warning for each name in the files that no option has."""
    try:
        found = unknown(conf)
    except (cfg.Error, OSError) as fault:
        LOG.warning('The names of options were not checked: %s', fault)
        return
    for text in found[:_MOST]:
        LOG.warning(
            'The configuration has a name that does not count: %s', text
        )
    if len(found) > _MOST:
        LOG.warning(
            'The configuration has %d more names that do not count',
            len(found) - _MOST,
        )


def unknown(conf: Any) -> list[str]:
    """Return a sentence for each name in the files that no option has.

    :raises ParseError: a file cannot be parsed
    """
    known = _registered(conf)
    found = list(entries(paths(conf)))
    if all(name in known.get(group, ()) for _, group, name in found):
        return []
    _add_libraries(known)
    told = (
        (path, _sentence(known, group, name)) for path, group, name in found
    )
    return list(
        dict.fromkeys(f'{path}: {text}' for path, text in told if text)
    )


def paths(conf: Any) -> list[str]:
    """Return the configuration files that were read, in their order."""
    found = [str(path) for path in conf.config_file or ()]
    for folder in conf.config_dir or ():
        found += sorted(map(str, pathlib.Path(folder).glob('*.conf')))
    return found


def not_text(arguments: Sequence[str], project: str) -> str:
    """Return the first configuration file that is not UTF-8; else nothing.

    :param arguments: of the command line
    :param project: names the files that are read where none is given
    """
    option, given = '--config-file', []
    for word, following in itertools.pairwise([*arguments, '']):
        if word == option:
            given.append(following)
        elif word.startswith(f'{option}='):
            given.append(word.partition('=')[2])
    for path in given or cfg.find_config_files(project):
        try:
            pathlib.Path(path).read_text(encoding='utf-8')
        except UnicodeDecodeError:
            return path
        except OSError:
            continue
    return ''


def entries(files: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yield (file, group, option) of all that files set.

    :raises ParseError: a file cannot be parsed
    """
    for path in files:
        sections: dict[str, dict[str, Any]] = {}
        cfg.ConfigParser(path, sections).parse()
        for group, values in sections.items():
            for name in values:
                yield path, group, name.replace('-', '_')


def _registered(conf: Any) -> dict[str, set[str]]:
    """Return the names that are read, older ones too, by group."""
    found: dict[str, set[str]] = {'DEFAULT': set()}
    groups = {'DEFAULT': conf._opts}
    groups.update({group.name: group._opts for group in conf._groups.values()})
    for group, registered in groups.items():
        _add(found, group, [info['opt'] for info in registered.values()])
    return found


def _add_libraries(known: dict[str, set[str]]) -> None:
    """Add the options that ours and libraries register when they are used."""
    for entry in metadata.entry_points(group='oslo.config.opts'):
        if entry.name not in _LIBRARIES:
            continue
        try:
            listed = entry.load()()
        except Exception as fault:
            # An optional part of a library whose own needs are not there.
            LOG.debug('No options of %s: %s', entry.name, fault)
            continue
        for group, options in listed:
            name = getattr(group, 'name', group) or 'DEFAULT'
            _add(known, name, options)


def _add(
    known: dict[str, set[str]], group: str, options: Iterable[Any]
) -> None:
    names = known.setdefault(group, set())
    for option in options:
        names.update((option.dest, option.name.replace('-', '_')))
        for old in option.deprecated_opts:
            place = known.setdefault(old.group or group, set())
            place.add((old.name or option.name).replace('-', '_'))


def _sentence(known: dict[str, set[str]], group: str, name: str) -> str:
    """Return what is odd about a name; empty where nothing is."""
    if name in known.get(group, ()):
        return ''
    if group.startswith(_OF_OTHERS):
        return ''
    place = f'[{group}] {name}'
    if group not in known:
        near = _nearest(group, known)
        if near:
            return f'{place}: there is no group {group}; is {near} meant?'
        return f'{place}: there is no group {group}'
    near = _nearest(name, known[group])
    if near:
        return f'{place}: there is no such option; is {near} meant?'
    elsewhere = sorted(one for one, names in known.items() if name in names)
    if elsewhere:
        return f'{place}: there is no such option; [{elsewhere[0]}] has one'
    return f'{place}: there is no such option'


def _nearest(name: str, names: Iterable[str]) -> str:
    found = difflib.get_close_matches(name, sorted(names), 1, 0.75)
    return found[0] if found else ''
