"""The programs that a benchmark runs."""

from benchmarks import common
from tests.support.paths import PROGRAMS


def test_without_a_revision_the_programs_are_those_of_this_tree() -> None:
    with common.installed(None) as programs:
        assert programs == PROGRAMS
