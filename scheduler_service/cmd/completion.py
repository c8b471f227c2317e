"""Scripts with which shells complete command lines, made from the parsers.

Stateless; imports nothing heavy. The scripts are plain data and a few lines
of shell: pressing a key starts no Python.
"""

from __future__ import annotations

import argparse
import itertools
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

SHELLS = ('bash', 'zsh', 'fish')
# What the parsers call a value that names a file or folder.
_PATHS = {'FILE', 'PATH', 'DIR'}


class Value(NamedTuple):
    """What an option or an argument may be.

    :ivar known: all that it may be, where that is a list
    :ivar path: it names a file or a folder
    """

    known: Sequence[str] = ()
    path: bool = False


class Place(NamedTuple):
    """What may stand after some words of a command line.

    :ivar words: nouns or verbs -> what they are for
    :ivar options: the same of options
    :ivar values: what options may be that take a value
    :ivar argument: what an argument may be that is no option
    """

    words: Mapping[str, str]
    options: Mapping[str, str]
    values: Mapping[str, Value]
    argument: Value = Value()


def places(parser: argparse.ArgumentParser) -> dict[str, Place]:
    """Return what may stand after which words, such as ``db sync``."""
    words: dict[str, str] = {}
    options: dict[str, str] = {}
    values: dict[str, Value] = {}
    argument = Value()
    below: dict[str, Place] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            words.update(_words(action))
            below.update(_below(action))
        elif not action.option_strings:
            argument = argument if any(argument) else _value(action)
        elif action.help is not argparse.SUPPRESS:
            for option in action.option_strings:
                options[option] = action.help or ''
                if action.nargs != 0:
                    values[option] = _value(action)
    return {'': Place(words, options, values, argument), **below}


def _words(action: Any) -> dict[str, str]:
    """Return the nouns or verbs of an action, with what they are for."""
    helps = {one.dest: one.help or '' for one in action._choices_actions}
    return {name: helps.get(name, '') for name in action.choices}


def _below(action: Any) -> dict[str, Place]:
    """Return the places after the nouns or verbs of an action."""
    return {
        f'{name} {words}'.strip(): place
        for name, inner in action.choices.items()
        for words, place in places(inner).items()
    }


def _value(action: argparse.Action) -> Value:
    if action.choices:
        return Value([str(one) for one in action.choices])
    named = str(action.metavar or action.dest).upper()
    return Value(path=not _PATHS.isdisjoint(named.split('|')))


def script(program: str, found: Mapping[str, Place], shell: str) -> str:
    """Return the script of a shell.

    :param found: of :func:`places`
    :param shell: one of :data:`SHELLS`
    """
    return _WRITERS[shell](program, found)


def _function(program: str) -> str:
    """Return the name of a function in a script."""
    return '_' + program.replace('-', '_')


def _bash(program: str, found: Mapping[str, Place]) -> str:
    name = _function(program)
    return '\n'.join(
        [
            f'# Completion of {program} for bash.',
            f'{name}() {{',
            "    local at='' option='' word current",
            '    current="${COMP_WORDS[COMP_CWORD]}"',
            '    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do',
            '        # The shell makes three words of --option=value.',
            '        [ "$word" = = ] && continue',
            *_walk(found, '        '),
            '    done',
            '    [ "$current" = = ] && current=\'\'',
            '    if [ -n "$option" ]; then',
            '        case "$at/$option" in',
            *(
                f'            {cases}) COMPREPLY=($({_compgen(value)})) ;;'
                for cases, value in _options_by_value(found)
            ),
            '        esac',
            '        return',
            '    fi',
            '    case "$at" in',
            *(
                f'        {shlex.quote(at)}) COMPREPLY=($('
                f'{_compgen(_argument(place))})) ;;'
                for at, place in found.items()
            ),
            '    esac',
            '}',
            f'complete -o filenames -F {name} {program}',
            '',
        ]
    )


def _compgen(value: Value) -> str:
    files = '-f ' if value.path else ''
    words = shlex.quote(' '.join(value.known))
    return f'compgen {files}-W {words} -- "$current"'


def _argument(place: Place) -> Value:
    """Return all that may stand at a place where no value is waited for."""
    own = place.argument
    return Value([*place.words, *own.known, *place.options], own.path)


def _walk(found: Mapping[str, Place], indent: str) -> list[str]:
    """Return the body of the loop over words before the one to complete.

    It leaves in ``at`` the place, and in ``option`` the option whose value
    comes next. The value of an option leads to no other place.
    """
    inner = indent + '    '
    return [
        f'{indent}[ -n "$option" ] && option=\'\' && continue',
        f'{indent}case "$at/$word" in',
        *(
            f'{inner}{shlex.quote(f"{at}/{word}")}) '
            f'at={shlex.quote(f"{at} {word}".strip())} ;;'
            for at, place in found.items()
            for word in place.words
        ),
        *(
            f'{inner}{cases}) option="$word" ;;'
            for cases, _ in _options_by_value(found)
        ),
        f'{indent}esac',
    ]


def _options_by_value(
    found: Mapping[str, Place],
) -> list[tuple[str, Value]]:
    """Return patterns of options at their places, and what they may be."""
    cases: dict[tuple[tuple[str, ...], bool], list[str]] = {}
    for at, place in found.items():
        for option, value in place.values.items():
            same = cases.setdefault((tuple(value.known), value.path), [])
            same.append(shlex.quote(f'{at}/{option}'))
    return [('|'.join(same), Value(*key)) for key, same in cases.items()]


def _zsh(program: str, found: Mapping[str, Place]) -> str:
    name = _function(program)
    return '\n'.join(
        [
            f'#compdef {program}',
            f'{name}() {{',
            "    local at='' option='' word",
            '    local -a known',
            '    for word in "${(@)words[2,CURRENT-1]}"; do',
            *_walk(found, '        '),
            '    done',
            '    if [[ -z $option && $PREFIX == --*=* ]]; then',
            '        option=${PREFIX%%=*}',
            "        compset -P '*='",
            '    fi',
            '    if [[ -n $option ]]; then',
            '        case "$at/$option" in',
            *(
                f'            {cases}) {_added(value)} ;;'
                for cases, value in _options_by_value(found)
            ),
            '        esac',
            '        return',
            '    fi',
            '    case "$at" in',
            *(
                f'        {shlex.quote(at)}) known=({_described(place)})'
                f'{"; _files" if place.argument.path else ""} ;;'
                for at, place in found.items()
            ),
            '    esac',
            "    _describe 'argument' known",
            '}',
            '# The first time, a shell that found this file runs it as the',
            '# function of that name; others read it at their start.',
            f'if [[ $funcstack[1] == _{program} ]]; then',
            f'    {name} "$@"',
            'else',
            f'    compdef {name} {program}',
            'fi',
            '',
        ]
    )


def _added(value: Value) -> str:
    """Return what adds the values of an option, for zsh."""
    if value.path:
        return '_files'
    return f'compadd -- {" ".join(map(shlex.quote, value.known))}'.strip()


def _described(place: Place) -> str:
    """Return words with what they are for, as zsh reads them."""
    known = dict.fromkeys(place.argument.known, '')
    return ' '.join(
        shlex.quote(f'{word}:{_short(text)}'.replace('\n', ' '))
        for word, text in {**place.words, **known, **place.options}.items()
    )


def _short(text: str) -> str:
    """Return the first part of a help text."""
    return text.partition(';')[0].partition(' (default')[0]


def _fish(program: str, found: Mapping[str, Place]) -> str:
    at_function = f'_{_function(program)}_at'
    lines = [
        f'# Completion of {program} for fish.',
        f'function {at_function}',
        "    set -l at ''",
        "    set -l option ''",
        '    for word in (commandline -opc)[2..]',
        '        if test -n "$option"',
        "            set option ''",
        '            continue',
        '        end',
        '        switch "$at/$word"',
        *(
            f'            case {_fished(f"{at}/{word}")}; '
            f'set at {_fished(f"{at} {word}".strip())}'
            for at, place in found.items()
            for word in place.words
        ),
        *(
            f'            case {cases.replace("|", " ")}; set option $word'
            for cases, _ in _options_by_value(found)
        ),
        '        end',
        '    end',
        '    test "$at" = "$argv[1]"',
        'end',
    ]
    for at, place in found.items():
        condition = _fished(f'{at_function} {_fished(at)}')
        start = f'complete -c {program} -n {condition}'
        lines += _fished_place(start, place)
    return '\n'.join([*lines, ''])


def _fished_place(start: str, place: Place) -> Iterator[str]:
    """Yield the lines that say what may stand at a place."""
    if not place.argument.path:
        yield f'{start} -f'
    for word in place.argument.known:
        yield f'{start} -a {_fished(word)}'
    for word, text in place.words.items():
        yield f'{start} -a {_fished(word)} -d {_fished(_short(text))}'
    for option, text in place.options.items():
        kind = '-l' if option.startswith('--') else '-s'
        line = (
            f'{start} {kind} {option.lstrip("-")} -d {_fished(_short(text))}'
        )
        value = place.values.get(option)
        if value:
            known = _fished(' '.join(value.known))
            line += ' -r -F' if value.path else f' -x -a {known}'
        yield line


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
