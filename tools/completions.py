"""Write what shells complete command lines with.

``python tools/completions.py FOLDER``. ``setup.py`` runs it when a package is
built. Like ``tools/manual.py`` it imports the parsers of the programs, and of
libraries only cliff and shtab: a build has none of the others.
"""

from __future__ import annotations

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Shell -> the name under which it looks for the script of a program.
_NAMES = {'bash': '{}', 'zsh': '_{}', 'fish': '{}.fish'}


def main(folder: pathlib.Path) -> None:
    """Write a script for each program and shell, in a folder of the shell."""
    sys.path.insert(0, str(ROOT))
    from scheduler_service.cmd import status
    from scheduler_service.cmd.commands import completion

    for built in (completion.tree(), status.parser()):
        for shell, name in _NAMES.items():
            script = completion.script(built, shell)
            (folder / shell).mkdir(parents=True, exist_ok=True)
            (folder / shell / name.format(built.prog)).write_text(script)


if __name__ == '__main__':
    main(pathlib.Path(sys.argv[1]))
