"""Scripts with which shells complete command lines, made from the parsers.

Stateless; imports nothing heavy. The scripts are plain data and a few lines
of shell: pressing a key starts no Python.
"""

from __future__ import annotations

import argparse
import itertools
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

SHELLS = ('bash', 'zsh', 'fish')


class Place(NamedTuple):
    """What may stand after some words of a command line.

    :ivar words: nouns or verbs -> what they are for
    :ivar options: the same of options
    :ivar choices: the values of those options that have a list of them
    """

    words: Mapping[str, str]
    options: Mapping[str, str]
    choices: Mapping[str, Sequence[str]]


def places(parser: argparse.ArgumentParser) -> dict[str, Place]:
    """Return what may stand after which words, such as ``db sync``."""
    words: dict[str, str] = {}
    options: dict[str, str] = {}
    choices: dict[str, Sequence[str]] = {}
    found: dict[str, Place] = {'': Place(words, options, choices)}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {
                one.dest: one.help or '' for one in action._choices_actions
            }
            for name, inner in action.choices.items():
                words[name] = helps.get(name, '')
                for below, place in places(inner).items():
                    found[f'{name} {below}'.strip()] = place
        elif action.help is not argparse.SUPPRESS:
            for option in action.option_strings:
                options[option] = action.help or ''
                if action.choices:
                    choices[option] = [str(one) for one in action.choices]
    return found


def script(program: str, found: Mapping[str, Place], shell: str) -> str:
    """Return the script of a shell.

    :param found: of :func:`places`
    :param shell: one of :data:`SHELLS`
    """
    return _WRITERS[shell](program, found)


def _bash(program: str, found: Mapping[str, Place]) -> str:
    name = '_' + program.replace('-', '_')
    return '\n'.join(
        [
            f'# Completion of {program} for bash.',
            f'{name}() {{',
            "    local at='' word current previous",
            '    current="${COMP_WORDS[COMP_CWORD]}"',
            '    previous="${COMP_WORDS[COMP_CWORD - 1]}"',
            '    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do',
            '        case "$at/$word" in',
            *_steps(found, '            '),
            '        esac',
            '    done',
            '    case "$at/$previous" in',
            *(
                f'        {shlex.quote(f"{at}/{option}")}) '
                f'COMPREPLY=($(compgen -W {shlex.quote(" ".join(values))} -- '
                '"$current")); return ;;'
                for at, place in found.items()
                for option, values in place.choices.items()
            ),
            '    esac',
            '    case "$at" in',
            *(
                f'        {shlex.quote(at)}) COMPREPLY=($(compgen '
                f'{"" if place.words else "-f "}-W '
                f'{shlex.quote(" ".join([*place.words, *place.options]))} '
                '-- "$current")) ;;'
                for at, place in found.items()
            ),
            '    esac',
            '}',
            f'complete -o filenames -o bashdefault -F {name} {program}',
            '',
        ]
    )


def _steps(found: Mapping[str, Place], indent: str) -> list[str]:
    """Return the cases in which a word leads from one place to the next."""
    return [
        f'{indent}{shlex.quote(f"{at}/{word}")}) '
        f'at={shlex.quote(f"{at} {word}".strip())} ;;'
        for at, place in found.items()
        for word in place.words
    ]


def _zsh(program: str, found: Mapping[str, Place]) -> str:
    name = '_' + program.replace('-', '_')
    return '\n'.join(
        [
            f'#compdef {program}',
            f'{name}() {{',
            "    local at='' word",
            '    local -a known',
            '    for word in "${(@)words[2,CURRENT-1]}"; do',
            '        case "$at/$word" in',
            *_steps(found, '            '),
            '        esac',
            '    done',
            '    case "$at/${words[CURRENT-1]}" in',
            *(
                f'        {shlex.quote(f"{at}/{option}")}) '
                f'compadd -- {" ".join(map(shlex.quote, values))}; return ;;'
                for at, place in found.items()
                for option, values in place.choices.items()
            ),
            '    esac',
            '    case "$at" in',
            *(
                f'        {shlex.quote(at)}) known=({_described(place)}) ;;'
                for at, place in found.items()
            ),
            '    esac',
            "    _describe 'argument' known",
            '    _files',
            '}',
            f'compdef {name} {program}',
            '',
        ]
    )


def _described(place: Place) -> str:
    """Return words with what they are for, as zsh reads them."""
    return ' '.join(
        shlex.quote(f'{word}:{_short(text)}'.replace('\n', ' '))
        for word, text in {**place.words, **place.options}.items()
    )


def _short(text: str) -> str:
    """Return the first part of a help text."""
    return text.partition(';')[0].partition(' (default')[0]


def _fish(program: str, found: Mapping[str, Place]) -> str:
    lines = [f'# Completion of {program} for fish.']
    for at, place in found.items():
        start = (
            f'complete -c {program} -n {shlex.quote(_condition(at, place))}'
        )
        lines += [
            f'{start} -f -a {_fished(word)} -d {_fished(_short(text))}'
            for word, text in place.words.items()
        ]
        for option, text in place.options.items():
            kind = (
                f'-l {option[2:]}'
                if option[:2] == '--'
                else f'-s {option[1:]}'
            )
            line = f'{start} {kind} -d {_fished(_short(text))}'
            if option in place.choices:
                values = _fished(' '.join(place.choices[option]))
                line += f' -x -a {values}'
            lines.append(line)
    return '\n'.join([*lines, ''])


def _condition(at: str, place: Place) -> str:
    """Return when fish offers what stands at a place."""
    tests = [f'__fish_seen_subcommand_from {word}' for word in at.split()]
    if place.words:
        others = ' '.join(place.words)
        tests.append(f'not __fish_seen_subcommand_from {others}')
    return '; and '.join(tests) or 'true'


def _fished(text: str) -> str:
    """Return a text in single quotes, as fish reads them."""
    escaped = text.replace('\\', '\\\\').replace("'", "\\'")
    return f"'{escaped}'"


_WRITERS: dict[str, Callable[[str, Mapping[str, Place]], str]] = {
    'bash': _bash,
    'zsh': _zsh,
    'fish': _fish,
}


def asked_shell(words: Sequence[str]) -> str | None:
    """Return the shell that ``--shell_completion`` names; None: it is absent.

    Looked for before the other options are parsed: the library's own answer
    needs files that its package does not have.
    """
    option = '--shell_completion'
    for word, following in itertools.pairwise([*words, '']):
        if word == option:
            return following
        if word.startswith(f'{option}='):
            return word.partition('=')[2]
    return None


def answer(
    program: str, words: Sequence[str], parser: Callable[[], Any]
) -> int | None:
    """Print the script that ``--shell_completion`` asks for.

    :param parser: returns the parser of the program's options
    :return: the exit status; None: it is not asked for
    """
    shell = asked_shell(words)
    if shell is None:
        return None
    if shell not in SHELLS:
        known = ', '.join(SHELLS)
        print(
            f'{program}: --shell_completion: {shell!r} is not one of {known}',
            file=sys.stderr,
        )
        return 2
    print(script(program, places(parser()), shell), end='')
    return 0
