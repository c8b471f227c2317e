"""Which tests are run for a mutant of the code that keeps promises."""

import sys

from tests.support.paths import ROOT

sys.path.append(str(ROOT / 'tools'))

import mutants
import mutation

SQL = 'scheduler_service/store/claims/pg_claims.py'
USER = 'scheduler_service/store/claims/batch.py'


def test_what_a_module_only_names_is_tested_by_those_who_use_it():
    """Its own lines are executed by the test that imports it first."""
    source = (ROOT / SQL).read_text()
    mutant = next(iter(mutants.of(SQL, source)))
    tests = {
        'user': {'lines': {USER: [90]}, 'passed': True, 'seconds': 1.0},
        'other': {'lines': {'x.py': [1]}, 'passed': True, 'seconds': 1.0},
        'failed': {'lines': {USER: [90]}, 'passed': False, 'seconds': 1.0},
    }
    assert mutation.importers(SQL) == [USER]
    assert mutation.covering(mutant, tests) == ['user']


def test_rooms_name_files_that_are_there():
    assert {*mutation.files().values()} == {*mutation.ROOMS}


def test_a_sample_has_all_mutants_of_a_room_that_has_few():
    made = {
        room: list(mutants.of(f'{room}.py', 'a = 1\n' * count))
        for room, count in (('few', 2), ('many', 40))
    }
    chosen = mutation.sample(made, 12, 1)
    assert len({*chosen}) == 12
    assert {*made['few']} < {*chosen}
