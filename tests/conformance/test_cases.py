"""Cases read off other implementations, where they lie beside the project."""

import pathlib

import pytest

from scheduler_service import plugins, request_filters, weighers
from scheduler_service.filters import hosts, pools
from tests.support.conformance import read, run

FOLDER = pathlib.Path(__file__).parents[3] / 'shared' / 'conformance'
OWN = pathlib.Path(__file__).parent / 'cases.jsonl'
KNOWN = (
    {kind.name for kind in hosts.BUILT_IN}
    | {kind.__name__ for kind in pools.BUILT_IN}
    | {kind.name for kind in weighers.BUILT_IN}
    | {one.__name__ for one in request_filters.BUILT_IN}
    | {'PoolScheduler', 'seed_examples', 'weighed_sums'}
)


def files():
    """Return our own cases, and those of every component there is."""
    found = [OWN]
    if FOLDER.is_dir():
        found += [p for p in sorted(FOLDER.glob('*.jsonl')) if p.stem in KNOWN]
    return found


@pytest.mark.conformance
@pytest.mark.parametrize('path', files(), ids=lambda path: path.stem)
def test_verdict_is_the_recorded_one_in_every_case(path):
    cases = list(read(str(path)))
    wrong = {case['id']: told for case in cases if (told := run(case))}
    assert cases
    assert wrong == {}


def test_case_fails_when_its_verdict_is_wrong():
    case = next(read(str(OWN)))
    host = next(iter(case['expected']))
    case['expected'][host] = not case['expected'][host]
    assert host in run(case)


def test_every_filter_is_found_when_named():
    assert plugins.host_filters(
        ['scheduler_service.filters.hosts.all_filters'],
        [kind.name for kind in hosts.BUILT_IN],
    )
