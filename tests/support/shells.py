"""What shells offer at the end of a line, asked of the shells themselves."""

from __future__ import annotations

import os
import pathlib
import pty
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Sequence

from tests.support import requirements
from tests.support.waiting import LIMIT_S

# An interactive zsh: completion works only while its line editor runs. Each
# word that completion adds goes through a function that writes it down; calls
# that only sort words into arrays of the shell are left alone.
_ZSH = """
unsetopt auto_list beep
fpath=({folder} $fpath)
autoload -Uz compinit
compinit -u -D
compadd() {{
    local -a added
    if [[ " $* " != *' -'[OAD]' '* ]]; then
        builtin compadd -A added "$@"
        offered+=($added)
    fi
    builtin compadd "$@"
}}
zle-line-init() {{
    local line
    for line in {lines}; do
        offered=()
        BUFFER=$line
        CURSOR=$#BUFFER
        zle complete-word
        print -rl -- $offered {end} >>{answers}
    done
    exit
}}
zle -N zle-line-init
"""
_END = '(end)'


def offered(
    shell: str, share: pathlib.Path, lines: Sequence[str]
) -> list[list[str]]:
    """Return what a shell offers at the end of each line.

    :param share: where the scripts are installed, as a package's ``share``
    """
    requirements.need_program(shell)
    with tempfile.TemporaryDirectory() as home:
        return _ASKED[shell](share, lines, pathlib.Path(home))


def _bash(
    share: pathlib.Path, lines: Sequence[str], home: pathlib.Path
) -> list[list[str]]:
    return [_asked_of_bash(share, line, home) for line in lines]


def _asked_of_bash(
    share: pathlib.Path, line: str, home: pathlib.Path
) -> list[str]:
    # The shell makes words of its own of the signs between them.
    words = line.replace('=', ' = ').rstrip(' ').split(' ')
    words += [''] if line[-1] in ' ' else []
    script = share / 'bash-completion/completions' / words[0]
    ask = (
        f'. {shlex.quote(str(script))}\n'
        f'COMP_WORDS=({shlex.join(words)})\n'
        f'COMP_CWORD={len(words) - 1}\n'
        f'_shtab_{words[0].replace("-", "_")}\n'
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    return _output(['bash', '-c', ask], home).split()


def _fish(
    share: pathlib.Path, lines: Sequence[str], home: pathlib.Path
) -> list[list[str]]:
    ask = '\n'.join(
        f'complete -C{shlex.quote(line)}; echo {shlex.quote(_END)}'
        for line in lines
    )
    answer = _output(['fish', '-c', ask], home, XDG_DATA_DIRS=str(share))
    words = [line.partition('\t')[0] for line in answer.splitlines()]
    # Options that are written with a sign of equality are offered whole.
    return [[word.partition('=')[2] or word for word in part]
            for part in _parts(words)]  # fmt: skip


def _output(command: Sequence[str], home: pathlib.Path, **more: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=LIMIT_S,
        cwd=_folder(home), env={**_environment(home), **more},
    )  # fmt: skip
    assert done.stderr == ''
    return done.stdout


def _environment(home: pathlib.Path) -> dict[str, str]:
    """Return an environment that has no settings of a user."""
    (_folder(home) / 'a.conf').touch()
    # Newer shells complete nothing for a program that is not there.
    programs = home / '.programs'
    programs.mkdir(exist_ok=True)
    for name in ('scheduler-manage', 'scheduler-status'):
        (programs / name).touch(0o755)
    return {
        'PATH': f'{programs}:{os.environ["PATH"]}',
        'LC_ALL': 'C.UTF-8', 'TERM': 'vt100',
        'HOME': str(home), 'ZDOTDIR': str(home),
    }  # fmt: skip


def _folder(home: pathlib.Path) -> pathlib.Path:
    """Return the folder in which the shells look for files."""
    folder = home / 'folder'
    folder.mkdir(exist_ok=True)
    return folder


def _zsh(
    share: pathlib.Path, lines: Sequence[str], home: pathlib.Path
) -> list[list[str]]:
    answers = home / '.answers'
    (home / '.zshrc').write_text(
        _ZSH.format(
            folder=shlex.quote(str(share / 'zsh/site-functions')),
            lines=shlex.join(lines),
            end=shlex.quote(_END),
            answers=answers,
        )
    )
    shown = _on_a_terminal(['zsh', '-d', '-i'], home)
    assert answers.exists(), shown
    return _parts(answers.read_text().splitlines())


def _on_a_terminal(command: Sequence[str], home: pathlib.Path) -> str:
    """Run a program on a terminal of its own; return what it showed."""
    ours, its = pty.openpty()
    with subprocess.Popen(
        command, stdin=its, stdout=its, stderr=its, cwd=_folder(home),
        env=_environment(home), start_new_session=True,
    ):  # fmt: skip
        os.close(its)
        shown = b''
        try:
            while piece := os.read(ours, 65536):
                shown += piece
        except OSError:
            # How a terminal says that nobody writes to it any more.
            pass
        finally:
            os.close(ours)
    return shown.decode(errors='replace')


def _parts(words: Sequence[str]) -> list[list[str]]:
    """Return the words before each end; those that are empty left out."""
    parts: list[list[str]] = [[]]
    for word in words:
        if word == _END:
            parts.append([])
        elif word:
            parts[-1].append(word)
    return parts[:-1]


_ASKED: dict[
    str,
    Callable[[pathlib.Path, Sequence[str], pathlib.Path], list[list[str]]],
] = {'bash': _bash, 'zsh': _zsh, 'fish': _fish}
