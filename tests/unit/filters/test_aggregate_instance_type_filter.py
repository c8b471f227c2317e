"""AggregateInstanceTypeFilter: sentinels in extra specs and metadata.

The use cases are those of the document that describes the filter.
"""

import pytest

from scheduler_service import errors
from scheduler_service.filters.hosts.aggregate_instance_type_filter import (
    AggregateInstanceTypeFilter,
)
from tests.support.plugins import (
    aggregate,
    inventory,
    passing,
    plain_hosts,
    reason,
)

FORCE = {'force_metadata_check': 'True'}
NO_FORCE = {'force_metadata_check': 'False'}


def passes(extra_specs, *metadata):
    """Say whether a host with one aggregate for each metadata passes."""
    document = inventory(
        a={}, aggregates=tuple(aggregate('a', **pairs) for pairs in metadata)
    )
    request = {'flavor': {'extra_specs': extra_specs}}
    return passing(AggregateInstanceTypeFilter(), document, request) == ['a']


@pytest.mark.parametrize(
    ('requirement', 'present', 'absent'),
    [
        ('*', True, False),
        ('~', False, True),
        ('!', False, True),
        ('1', True, False),
        ('2', False, False),
        ('<or> * <or> ~', True, True),
        ('<or> 1 <or> ~', True, True),
        ('<or> 2 <or> ~', False, True),
        ('<or> ! <or> *', False, False),
    ],
)
def test_sentinels_of_an_extra_spec(requirement, present, absent):
    assert passes({'key': requirement}, {'key': '1'}) is present
    assert passes({'key': requirement}, {'other': '1'}) is absent
    assert passes({'key': requirement}) is absent


def test_a_flavor_without_extra_specs_passes_everywhere():
    assert passes({}, {'key': '1'})
    assert passes({}, {'key': '1', **NO_FORCE})
    assert passes({})


@pytest.mark.parametrize('metadata', ['*', '<or> 1 <or> 2'])
def test_metadata_is_literal_unless_it_is_forced(metadata):
    assert not passes({'key': '1'}, {'key': metadata})
    assert not passes({'key': '1'}, {'key': metadata, **NO_FORCE})
    assert passes({'key': '1'}, {'key': metadata, **FORCE})


@pytest.mark.parametrize(
    ('metadata', 'same', 'other', 'absent'),
    [
        ('1', True, False, False),
        ('*', True, True, False),
        ('!', False, False, True),
        ('~', False, False, True),
        ('<or> 1 <or> 3', True, False, False),
    ],
)
def test_forced_metadata_is_a_requirement_on_the_flavor(
    metadata, same, other, absent
):
    forced = {'key': metadata, **FORCE}
    assert passes({'key': '1'}, forced) is same
    assert passes({'key': '2'}, forced) is other
    assert passes({}, forced) is absent


def test_alternatives_on_both_sides_have_to_share_a_value():
    forced = {'key': '<or> 1 <or> 2', **FORCE}
    assert passes({'key': '<or> 2 <or> 3'}, forced)
    assert not passes({'key': '<or> 3 <or> 4'}, forced)


@pytest.mark.parametrize(
    ('metadata', 'expected'),
    [
        ({'hw:cpu_policy': 'shared'}, True),
        ({'hw:cpu_policy': 'dedicated'}, False),
        ({}, True),
    ],
)
def test_a_spec_of_another_scope_counts_where_metadata_has_it(
    metadata, expected
):
    assert passes({'hw:cpu_policy': 'shared'}, metadata) is expected


@pytest.mark.parametrize(
    ('requirement', 'expected'),
    [('shared', True), ('*', False), ('<or> * <or> ~', True)],
)
def test_a_spec_of_another_scope_may_require_the_key(requirement, expected):
    assert passes({'hw:cpu_policy': requirement}) is expected


def test_forced_metadata_of_another_scope_is_required_of_the_flavor():
    forced = {'hw:cpu_policy': 'shared', **FORCE}
    assert not passes({}, forced)
    assert passes({'hw:cpu_policy': 'shared'}, forced)


def test_the_scope_of_the_filter_is_removed():
    specs = {'aggregate_instance_extra_specs:key': '1'}
    assert passes(specs, {'key': '1'})
    assert passes(specs, {'key': '1', **FORCE})


def test_one_aggregate_forces_the_metadata_of_all():
    assert not passes({}, {'key': '1'}, FORCE)


@pytest.mark.parametrize('key', ['availability_zone', 'filter_tenant_id2'])
def test_keys_that_other_filters_read_are_exempt(key):
    assert passes({}, {key: 'x', **FORCE})


@pytest.mark.parametrize('value', ['true', 'TRUE', '1', ''])
def test_only_the_exact_value_forces(value):
    assert passes({}, {'key': '1', 'force_metadata_check': value})


@pytest.mark.parametrize('metadata', ['5', '>= 3', '>= x'])
def test_request_is_refused_when_an_extra_spec_is_no_requirement(metadata):
    with pytest.raises(errors.InvalidRequest) as caught:
        passes({'key': '>= y'}, {'key': metadata, **FORCE})
    assert caught.value.facts['at'] == 'flavor.extra_specs.key'


@pytest.mark.parametrize(
    ('extra_specs', 'metadata', 'expected'),
    [
        (
            {'key': '4'},
            {'key': '>= x', **FORCE},
            'the host cannot be evaluated: aggregate metadata: key: expected '
            'a value, or an operator with a value, such as ">= 4", got ">= x"',
        ),
        (
            {'key': '2'},
            {'key': '1'},
            'key: the flavor has 2, aggregate metadata has 1',
        ),
        (
            {'key': '*'},
            {},
            'key: the flavor has *, aggregate metadata has no value',
        ),
        (
            {},
            {'key': '1', **FORCE},
            'key: the flavor has no value, aggregate metadata has 1',
        ),
    ],
)
def test_the_reason_names_the_key_and_both_sides(
    extra_specs, metadata, expected
):
    document = plain_hosts('a', aggregate('a', **metadata))
    request = {'flavor': {'extra_specs': extra_specs}}
    sentence = reason(AggregateInstanceTypeFilter(), document, request)
    assert sentence == expected
