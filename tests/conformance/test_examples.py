"""The pages of components: written from the code, examples that run."""

import pathlib
import sys

import pytest

from tests.support.conformance import run

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / 'tools'))

import component_pages  # noqa: E402

NAMES = [name for kinds in component_pages.KINDS.values() for name, _ in kinds]
KNOWN = component_pages.known()


@pytest.mark.parametrize('name', NAMES)
def test_example_of_a_component_passes_when_run(name):
    told = KNOWN[name]
    assert run(component_pages.case(name, told['example'])) == ''


def test_every_component_has_a_page_and_no_other_has():
    assert set(KNOWN) == set(NAMES)


def test_pages_are_current_when_written_again(tmp_path):
    component_pages.write(tmp_path)
    folder = ROOT / 'doc' / 'source' / 'components'
    ours = {path.name: path.read_text() for path in folder.glob('*.rst')}
    new = {path.name: path.read_text() for path in tmp_path.glob('*.rst')}
    assert ours == new
