"""Extra-spec operators, edge by edge."""

import pytest

from scheduler_service import specops


@pytest.mark.parametrize(
    ('value', 'requirement', 'expected'),
    [
        ('1', '=1', False),
        ('1', '= 1', True),
        ('1', '=  1', True),
        ('2', '= 1', True),
        ('1', '=', False),
        ('1', 's<', False),
        ('', 's== ', False),
        ('1', '== 1 2', True),
        ('abc', 's== abc d', True),
        ('abc', '<in> b z', True),
        ('1e3', '>= 999', True),
        ('inf', '>= 5', True),
        ('1_000', '== 1000', True),
        ('nan', '== nan', False),
        ('', '', True),
        ('', ' ', False),
        (' ', ' ', True),
        ('b', '<or> a b', False),
        ('a b', '<or> a b <or> c', False),
        ('c', '<or> a b c', True),
        ('aesmmx', '<all-in> aes mmx', True),
        ('aes', '<all-in> aes mmx', False),
        ('1', '<OR> 1', False),
        ('TRUE', 'true', False),
        ('10', 's> 9', False),
        (None, '', False),
        (None, 's!= x', False),
    ],
)
def test_value_matches_when_the_operator_says_so(value, requirement, expected):
    assert specops.match(value, requirement) is expected


@pytest.mark.parametrize(
    ('value', 'requirement'),
    [('abc', '= 1'), ('1', '= abc'), ('0x10', '== 16'), ('a', '<or>')],
)
def test_match_raises_when_values_cannot_be_compared(value, requirement):
    with pytest.raises(ValueError):
        specops.match(value, requirement)


@pytest.mark.parametrize('requirement', ['>= 1', '= 1', '== 1', '!= 1'])
def test_a_value_that_is_no_number_is_told_apart_from_a_bad_requirement(
    requirement,
):
    with pytest.raises(specops.NotComparableError):
        specops.match('many', requirement)
    for value in ('1', 'many'):
        with pytest.raises(ValueError, match='x') as caught:
            specops.match(value, requirement.replace('1', 'x'))
        assert type(caught.value) is ValueError
