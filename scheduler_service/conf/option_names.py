"""Unknown option names in configuration files.

The library that reads the files ignores them silently, so a value under a
misspelled name would be lost unnoticed. Called by the main thread at the
start, and by the thread that reloads.
"""

from __future__ import annotations

import difflib
import logging
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from typing import Any

from oslo_config import cfg

from scheduler_service.conf import effective

LOG = logging.getLogger(__name__)
# Libraries whose options we read and that register them on first use. No
# others: listing the options of oslo.service imports eventlet's servers,
# which put locks of eventlet into the standard library.
_LIBRARIES = frozenset((
    'oslo.concurrency', 'oslo.config', 'oslo.db', 'oslo.log',
    'oslo.messaging', 'oslo.policy', 'oslo.reports', 'scheduler_service',
))  # fmt: skip
# Sections of other programs, in shared files.
_OF_OTHERS = ('service:', 'keystone')
# Names that are logged; a file of another program has hundreds.
_MOST = 30


def warn(conf: Any) -> None:
    """Log a warning for each unknown name in the files."""
    try:
        sentences = unknown(conf)
    except (cfg.Error, OSError) as fault:
        LOG.warning('The names of options were not checked: %s', fault)
        return
    for text in sentences[:_MOST]:
        LOG.warning(
            'Unknown name in the configuration, without effect: %s', text
        )
    if len(sentences) > _MOST:
        LOG.warning(
            'The configuration has %d more unknown names',
            len(sentences) - _MOST,
        )


def unknown(conf: Any) -> list[str]:
    """Return a sentence for each unknown name in the files.

    :raises ParseError: a file cannot be parsed
    """
    registered: dict[str, set[str]] = {'DEFAULT': set()}
    for group, option in effective.registered(conf):
        _add(registered, group, [option])
    settings = list(entries(paths(conf)))
    if all(name in registered.get(group, ()) for _, group, name in settings):
        return []
    _add_libraries(registered)
    sentences = (
        (path, _sentence(registered, group, name))
        for path, group, name in settings
    )
    return list(
        dict.fromkeys(f'{path}: {text}' for path, text in sentences if text)
    )


def paths(conf: Any) -> list[str]:
    """Return the configuration files that were read, in their order."""
    files = [str(path) for path in conf.config_file or ()]
    for folder in conf.config_dir or ():
        files += sorted(map(str, pathlib.Path(folder).glob('*.conf')))
    return files


def not_text(arguments: Sequence[str], project: str) -> str:
    """Return the first configuration file that is not UTF-8; else nothing.

    :param arguments: of the command line
    :param project: whose default files are read as well
    """
    files = [word.rpartition('=')[2] for word in arguments]
    files += cfg.find_config_files(project)
    for path in files:
        try:
            pathlib.Path(path).read_text(encoding='utf-8')
        except UnicodeDecodeError:
            return path
        except OSError:
            continue
    return ''


def entries(files: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yield (file, group, option) of all options set in files.

    :raises ParseError: a file cannot be parsed
    """
    for path in files:
        sections: dict[str, dict[str, Any]] = {}
        cfg.ConfigParser(path, sections).parse()
        for group, values in sections.items():
            for name in values:
                yield path, group, name.replace('-', '_')


def _add_libraries(registered: dict[str, set[str]]) -> None:
    for entry in metadata.entry_points(group='oslo.config.opts'):
        if entry.name not in _LIBRARIES:
            continue
        try:
            groups = entry.load()()
        except Exception as fault:
            # An optional part of a library that lacks its dependencies.
            LOG.debug('No options of %s: %s', entry.name, fault)
            continue
        for group, options in groups:
            name = getattr(group, 'name', group) or 'DEFAULT'
            _add(registered, name, options)


def _add(
    registered: dict[str, set[str]], group: str, options: Iterable[Any]
) -> None:
    names = registered.setdefault(group, set())
    for option in options:
        names.update((option.dest, option.name.replace('-', '_')))
        for old in option.deprecated_opts:
            place = registered.setdefault(old.group or group, set())
            place.add((old.name or option.name).replace('-', '_'))


def _sentence(registered: dict[str, set[str]], group: str, name: str) -> str:
    known = registered.get(group)
    if group.startswith(_OF_OTHERS) or (known and name in known):
        return ''
    if known is None:
        text, wrong, names = f'no group {group}', group, sorted(registered)
        elsewhere = []
    else:
        text, wrong, names = 'no such option', name, sorted(known)
        elsewhere = sorted(g for g in registered if name in registered[g])
    near = difflib.get_close_matches(wrong, names, 1, 0.75)
    if near:
        text += f'; is {near[0]} meant?'
    elif elsewhere:
        text += f'; [{elsewhere[0]}] has one'
    return f'[{group}] {name}: there is {text}'
