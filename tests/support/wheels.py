"""The package as it is installed: a wheel, in an environment of its own."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from importlib import metadata
from typing import Any

from packaging import requirements

from tests.support import interop
from tests.support.paths import ROOT

# A commit whose daemons are met by those of this tree: the first release.
EARLIER = '3ea45092'
# Of commits that need Git to know their version.
_VERSION = {'PBR_VERSION': '0.0.1'}


def build(
    source: pathlib.Path, folder: pathlib.Path, **env: str
) -> pathlib.Path:
    """Build the wheel of a source tree; return its path.

    What builds it is kept between runs.

    :param env: further variables
    """
    needed = _declared(ROOT)['build-system']['requires']
    python = interop.environment('build', needed) / 'bin/python'
    done = subprocess.run(
        [sys.executable, '-m', 'pip', '--python', python, 'wheel', '--quiet',
         '--no-deps', '--no-build-isolation', '--disable-pip-version-check',
         '-w', folder, source],
        env={**os.environ, **env},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    (found,) = folder.glob('*.whl')
    return found


def install_commit(revision: str, folder: pathlib.Path) -> pathlib.Path:
    """Install a commit into a new environment; return its ``bin``.

    The files of the commit are in the folder ``source`` beside the
    environment. The wheel is kept between runs.
    """
    commit = _git('rev-parse', '--verify', f'{revision}^{{commit}}')
    name = commit.decode().strip()
    source = folder / 'source'
    source.mkdir()
    subprocess.run(
        ['tar', '-x'], input=_git('archive', name), cwd=source, check=True
    )
    with interop.kept(f'wheel-{name}') as kept:
        wheels = list(kept.glob('*.whl'))
        wheel = wheels[0] if wheels else build(source, kept, **_VERSION)
    return install(wheel, source, folder / 'venv')


def _git(*words: str) -> bytes:
    return subprocess.run(
        ['git', *words], cwd=ROOT, stdout=subprocess.PIPE, check=True
    ).stdout


def copy_of_the_tree(folder: pathlib.Path) -> pathlib.Path:
    """Copy the files of the project as they are now; return the folder."""
    listed = subprocess.run(
        ['git', 'ls-files', '-z', '--cached', '--others',
         '--exclude-standard'],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split('\0')):
        # One that was deleted may still be in the index.
        if (ROOT / name).is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
    return folder


def _declared(source: pathlib.Path) -> dict[str, Any]:
    """Return what a source tree says of its package."""
    return tomllib.loads((source / 'pyproject.toml').read_text())


def install(
    wheel: pathlib.Path, source: pathlib.Path, folder: pathlib.Path
) -> pathlib.Path:
    """Install a wheel alone into a new environment; return its ``bin``."""
    venv.create(folder)
    subprocess.run(
        [sys.executable, '-m', 'pip', '--python', folder / 'bin/python',
         'install', '--quiet', '--no-deps', '--disable-pip-version-check',
         wheel],
        check=True, timeout=300,
    )  # fmt: skip
    add_libraries(folder, source)
    return folder / 'bin'


def add_libraries(folder: pathlib.Path, source: pathlib.Path) -> None:
    """Let an environment see the libraries that a source tree declares.

    They are those of this environment, where it has them; an environment that
    is kept between runs has the others.
    """
    places = [pathlib.Path(sysconfig.get_path('purelib'))]
    missing = [
        dependency
        for dependency in _declared(source)['project']['dependencies']
        if not _is_met(dependency)
    ]
    if missing:
        kept = interop.environment('earlier', missing)
        places[:0] = kept.glob('lib/python*/site-packages')
    (packages,) = folder.glob('lib/python*/site-packages')
    lines = '\n'.join(map(str, places))
    (packages / 'needed.pth').write_text(f'{lines}\n')


def _is_met(dependency: str) -> bool:
    """Whether this environment has what a package needs."""
    wanted = requirements.Requirement(dependency)
    try:
        found = metadata.version(wanted.name)
    except metadata.PackageNotFoundError:
        return False
    return wanted.specifier.contains(found)
