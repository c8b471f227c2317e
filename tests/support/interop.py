"""Environments of other projects' packages, as they come from the index.

They are kept between runs under ``.venv-interop``, and made again where the
requirements change.
"""

from __future__ import annotations

import contextlib
import fcntl
import pathlib
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Sequence

from tests.support import requirements
from tests.support.paths import ROOT

FOLDER = ROOT / '.venv-interop'
# The compute, placement and DNS services of one release, what they need for
# the databases that they are tested with and for the compute service's own
# functional tests, and what builds and runs our own distribution beside the
# last: installed once for all.
NOVA = 'nova==34.0.0'
_OPENSTACK = (
    NOVA,
    'openstack-placement==16.0.0',
    'designate==23.0.0',
    'PyMySQL',
    'psycopg[binary]',
    'psycopg2-binary',
    'msgspec>=0.20.0',
    'setuptools>=77',
    # Most of the compute service's functional tests fail with a later one.
    'SQLAlchemy<2.1',
    'ddt',
    'fixtures',
    'gabbi',
    'osprofiler',
    'oslotest',
    'requests-mock',
    'stestr',
    'testresources',
    'testscenarios',
    'testtools',
    'wsgi-intercept',
)
# The compute service's programs run with threads of the operating system.
NOVA_ENVIRONMENT = {'OS_NOVA_DISABLE_EVENTLET_PATCHING': '1'}
_LIMIT_S = 1200


def openstack() -> pathlib.Path:
    """Return the folder of an environment with unmodified services.

    Skips the test as :func:`environment` does.
    """
    return environment('openstack', _OPENSTACK)


def environment(name: str, requirements: Sequence[str]) -> pathlib.Path:
    """Return the folder of a virtual environment with some packages.

    Skips the test where pip cannot reach the index, unless
    ``SCHEDULER_TEST_REQUIRE_SERVICES`` is set.

    :param requirements: as pip takes them, with exact versions
    """
    wanted = '\n'.join([sys.version, *requirements])
    with kept(name) as folder:
        done = folder / 'requirements.txt'
        if not done.exists() or done.read_text() != wanted:
            shutil.rmtree(folder, ignore_errors=True)
            venv.create(folder)
            install(folder, *requirements)
            done.write_text(wanted)
    return folder


@contextlib.contextmanager
def kept(name: str) -> Iterator[pathlib.Path]:
    """Give a folder that is kept between runs, to one process at a time."""
    FOLDER.mkdir(exist_ok=True)
    # Processes of one run may want the same one.
    with (FOLDER / f'{name}.lock').open('w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield FOLDER / name


def library(name: str, version: str) -> pathlib.Path:
    """Return a folder with one library alone, to be put before others.

    Skips the test as :func:`environment` does.
    """
    with kept(f'{name}-{version}') as folder:
        done = folder / 'done'
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            _run_pip(
                sys.executable, '--no-deps', '--target', str(folder),
                f'{name}=={version}',
            )  # fmt: skip
            done.touch()
    return folder


def install(folder: pathlib.Path, *arguments: str) -> None:
    """Run ``pip install`` of an environment.

    :raises CalledProcessError: the index can be reached, and yet it failed
    """
    _run_pip(folder / 'bin' / 'python', *arguments)


def _run_pip(python: pathlib.Path | str, *arguments: str) -> None:
    pip = [sys.executable, '-m', 'pip', '--quiet', '--python', python]
    try:
        subprocess.run(
            # Most of the modules are never imported.
            [*pip, 'install', '--no-compile', *arguments],
            check=True,
            timeout=_LIMIT_S,
            stderr=subprocess.PIPE,
        )
    except subprocess.CalledProcessError as fault:
        print(fault.stderr.decode(errors='replace')[-4000:])
        with tempfile.TemporaryDirectory() as place:
            probe = [*pip, 'download', '--no-deps', '--no-cache-dir']
            reached = subprocess.run([*probe, '-d', place, 'msgspec'])
        if reached.returncode == 0:
            raise
        requirements.missing(
            f'pip cannot reach the index for {", ".join(arguments)}'
        )
