"""A commit that is installed beside this tree, and what runs of it."""

import subprocess

import pytest

from benchmarks import common
from tests.support import wheels
from tests.support.paths import PROGRAMS, ROOT

_PLACES = """
import importlib.metadata
import scheduler_service

distribution = importlib.metadata.distribution('scheduler-service')
print(scheduler_service.__file__)
print(distribution.locate_file(''))
for entry in distribution.entry_points:
    entry.load()
"""


def test_without_a_revision_the_programs_are_those_of_this_tree() -> None:
    with common.installed(None) as programs:
        assert programs == PROGRAMS


@pytest.mark.slow
def test_a_commit_runs_with_its_own_code_and_entry_points(
    monkeypatch, tmp_path
) -> None:
    monkeypatch.setenv('PYTHONPATH', str(ROOT))
    # Its wheel is built once for all tests.
    with common.installed(wheels.EARLIER) as programs:
        printed = subprocess.run(
            [programs / 'python3', '-c', _PLACES],
            check=True, capture_output=True, text=True,
            cwd=tmp_path, env=common.environment(),
        ).stdout.splitlines()  # fmt: skip
        assert len(printed) == 2
        assert all(one.startswith(str(programs.parent)) for one in printed)
        assert programs != PROGRAMS
        config = common.write_config(
            tmp_path, f'sqlite:///{tmp_path}/a.sqlite', 'inproc://a/'
        )
        document = common.inventory(3)
        common.import_inventory(config, document, programs)
        shown = common.manage(
            config, 'host', 'list', '-f', 'json', programs=programs
        ).stdout
        assert all(common.host_name(n) in shown for n in range(3))
    assert not programs.exists()
