"""AggregateInstanceExtraSpecsFilter matches specs with metadata."""

import pytest

from scheduler_service import errors
from scheduler_service.filters.hosts.aggregate_filter import (
    AggregateInstanceExtraSpecsFilter,
)
from tests.support.plugins import (
    aggregate,
    has_opinion,
    inventory,
    passing,
    reason,
)


def host(*metadata):
    """Return host a with one aggregate for each of several metadata."""
    return inventory(
        a={}, aggregates=tuple(aggregate('a', **pairs) for pairs in metadata)
    )


def flavor(**extra_specs):
    return {'flavor': {'extra_specs': extra_specs}}


SCOPED = 'aggregate_instance_extra_specs:ssd'


@pytest.mark.parametrize(
    ('extra_specs', 'metadata', 'passes'),
    [
        ({'ssd': 'true'}, [{'ssd': 'true'}], True),
        ({'ssd': 'true'}, [{'ssd': 'false'}], False),
        ({'ssd': 'true'}, [], False),
        # Any of several values suffices: of aggregates, or with commas.
        ({'ssd': 'true'}, [{'ssd': 'false'}, {'ssd': 'true'}], True),
        ({'ssd': 'true'}, [{'ssd': 'false, true'}], True),
        # Each spec may be satisfied by another aggregate.
        ({'ssd': 'true', 'gpu': '1'}, [{'ssd': 'true'}, {'gpu': '1'}], True),
        ({'ssd': 'true', 'gpu': '1'}, [{'ssd': 'true'}], False),
        ({'Ssd': 'true'}, [{'ssd': 'true'}], False),
        ({'k': ''}, [{'k': ''}], True),
        # The values are split at commas, the requirement is not.
        ({'k': 'a,b'}, [{'k': 'a,b'}], False),
    ],
)
def test_each_extra_spec_has_to_match_one_value(extra_specs, metadata, passes):
    hosts = passing(
        AggregateInstanceExtraSpecsFilter(),
        host(*metadata),
        flavor(**extra_specs),
    )
    assert hosts == (['a'] if passes else [])


@pytest.mark.parametrize(
    ('requirement', 'metadata', 'passes'),
    [
        ('>= 5', [{'n': '7'}], True),
        ('= 5', [{'n': '7'}], True),
        ('== 5', [{'n': '7'}], False),
        ('<or> 5 <or> 7', [{'n': '7'}], True),
        # Some value differs, which suffices; a missing key does not.
        ('s!= 7', [{'n': '7'}, {'n': '8'}], True),
        ('s!= 7', [], False),
        # Each value is compared alone.
        ('<all-in> a b', [{'n': 'a,b'}], False),
        ('<all-in> a b', [{'n': 'a b'}], True),
    ],
)
def test_requirements_use_the_operators_of_extra_specs(
    requirement, metadata, passes
):
    hosts = passing(
        AggregateInstanceExtraSpecsFilter(),
        host(*metadata),
        flavor(n=requirement),
    )
    assert hosts == (['a'] if passes else [])


@pytest.mark.parametrize(
    ('key', 'metadata', 'passes'),
    [
        (SCOPED, {'ssd': 'true'}, True),
        (SCOPED, {}, False),
        # The scope is removed from the spec, not from the metadata.
        (SCOPED, {SCOPED: 'true'}, False),
        # Only the first colon separates a scope.
        ('aggregate_instance_extra_specs:a:b', {'a:b': 'true'}, True),
        ('capabilities:ssd', {}, True),
    ],
)
def test_only_the_scope_of_the_filter_counts(key, metadata, passes):
    hosts = passing(
        AggregateInstanceExtraSpecsFilter(),
        host(metadata),
        flavor(**{key: 'true'}),
    )
    assert hosts == (['a'] if passes else [])


@pytest.mark.parametrize('extra_specs', [{}, {'hw:cpu_policy': 'shared'}])
def test_it_has_no_opinion_without_extra_specs_of_its_own(extra_specs):
    request = flavor(**extra_specs)
    assert not has_opinion(
        AggregateInstanceExtraSpecsFilter(), host(), request
    )


def test_a_requirement_that_cannot_be_compared_fails_the_request():
    with pytest.raises(errors.InvalidRequest):
        passing(
            AggregateInstanceExtraSpecsFilter(),
            host({'n': '5'}),
            flavor(n='>= x'),
        )


def test_a_value_that_cannot_be_compared_does_not_matter_where_one_matches():
    document = host({'n': 'x'}, {'n': '7'})
    request = flavor(n='>= 5')
    hosts = passing(AggregateInstanceExtraSpecsFilter(), document, request)
    assert hosts == ['a']


@pytest.mark.parametrize(
    ('metadata', 'expected'),
    [
        (
            {},
            'the flavor requires ssd=true, no aggregate of the host has the '
            'metadata key',
        ),
        (
            {'ssd': 'no,false'},
            'the flavor requires ssd=true, aggregate metadata has '
            'ssd=false,no',
        ),
    ],
)
def test_the_reason_names_the_extra_spec_and_the_values(metadata, expected):
    sentence = reason(
        AggregateInstanceExtraSpecsFilter(), host(metadata), flavor(ssd='true')
    )
    assert sentence == expected
