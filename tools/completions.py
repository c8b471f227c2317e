"""Write what shells complete command lines with.

``python tools/completions.py FOLDER``. ``setup.py`` runs it when a package is
built. Like ``tools/manual.py`` it imports the parser of ``scheduler-manage``
and nothing else that is not there during a build.
"""

from __future__ import annotations

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
_PROGRAM = 'scheduler-manage'
# Shell -> the name under which it looks for the script.
_NAMES = {
    'bash': _PROGRAM,
    'zsh': f'_{_PROGRAM}',
    'fish': f'{_PROGRAM}.fish',
}


def main(folder: pathlib.Path) -> None:
    """Write a script for each shell, in a folder of its own."""
    sys.path.insert(0, str(ROOT))
    from scheduler_service.cmd import completion, parser

    found = completion.places(parser.build())
    for shell, name in _NAMES.items():
        script = completion.script(_PROGRAM, found, shell)
        (folder / shell).mkdir(parents=True, exist_ok=True)
        (folder / shell / name).write_text(script)


if __name__ == '__main__':
    main(pathlib.Path(sys.argv[1]))
