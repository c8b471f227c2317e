"""The wheel of the tree, built once for all tests that install it."""

import fcntl
import os
import pathlib

import pytest

from tests.support import wheels


@pytest.fixture(scope='session')
def wheel(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[pathlib.Path, pathlib.Path]:
    """A wheel, and the source tree that it was built of."""
    folder = tmp_path_factory.getbasetemp()
    if 'PYTEST_XDIST_WORKER' in os.environ:
        # The folder above is that of the run, which all processes share.
        folder = folder.parent
    source, built = folder / 'tree', folder / 'built'
    with (folder / 'wheel.lock').open('w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not list(built.glob('*.whl')):
            wheels.build(wheels.copy_of_the_tree(source), built)
    (found,) = built.glob('*.whl')
    return found, source
