"""AggregateImagePropertiesIsolation keeps other images off aggregates."""

import pytest

from scheduler_service.filters.hosts.aggregate_filter import (
    AggregateImagePropertiesIsolation,
)
from tests.support.plugins import (
    aggregate,
    has_opinion,
    passing,
    plain_hosts,
    reason,
)

# a is for windows, b for windows and linux, c for all images.
HOSTS = plain_hosts(
    'abc',
    aggregate('a', os_distro='windows'),
    aggregate('b', os_distro='windows, linux'),
)


def image(**properties):
    return {'image': {'properties': properties}}


@pytest.mark.parametrize(
    ('os_distro', 'expected'),
    [
        ('windows', ['a', 'b', 'c']),
        ('linux', ['b', 'c']),
        ('bsd', ['c']),
        # The value of an image is not split at commas.
        ('windows,linux', ['c']),
    ],
)
def test_the_value_of_the_image_has_to_be_among_the_values(
    os_distro, expected
):
    request = image(os_distro=os_distro)
    hosts = passing(AggregateImagePropertiesIsolation(), HOSTS, request)
    assert hosts == expected


def test_values_of_several_aggregates_are_alternatives():
    document = plain_hosts(
        'a',
        aggregate('a', os_distro='windows'),
        aggregate('a', os_distro='linux'),
    )
    request = image(os_distro='linux')
    hosts = passing(AggregateImagePropertiesIsolation(), document, request)
    assert hosts == ['a']


@pytest.mark.parametrize('properties', [{}, {'os_distro': ''}])
def test_an_image_without_the_property_goes_anywhere(properties):
    request = image(**properties)
    assert not has_opinion(AggregateImagePropertiesIsolation(), HOSTS, request)
    hosts = passing(AggregateImagePropertiesIsolation(), HOSTS, request)
    assert hosts == ['a', 'b', 'c']


def test_a_property_that_compute_services_do_not_know_is_ignored():
    document = plain_hosts('a', aggregate('a', licence_x='1'))
    request = image(licence_x='2')
    hosts = passing(AggregateImagePropertiesIsolation(), document, request)
    assert hosts == ['a']


@pytest.mark.parametrize(
    ('value', 'metadata', 'passes'),
    [
        (2, '2', True),
        # True is written "True" and a false value is not compared.
        (True, 'true', False),
        (True, 'True', True),
        (False, 'true', True),
    ],
)
def test_values_are_compared_as_text(value, metadata, passes):
    document = plain_hosts('a', aggregate('a', hw_boot_menu=metadata))
    request = image(hw_boot_menu=value)
    hosts = passing(AggregateImagePropertiesIsolation(), document, request)
    assert hosts == (['a'] if passes else [])


def test_with_a_namespace_only_its_properties_are_compared():
    document = plain_hosts(
        'ab',
        aggregate('a', os_distro='windows'),
        aggregate('b', hw_disk_bus='scsi'),
    )
    hosts = passing(
        AggregateImagePropertiesIsolation(),
        document,
        image(os_distro='linux', hw_disk_bus='virtio'),
        aggregate_image_properties_isolation_namespace='hw',
        aggregate_image_properties_isolation_separator='_',
    )
    assert hosts == ['a']


def test_the_reason_gives_the_value_and_the_allowed_values():
    sentence = reason(
        AggregateImagePropertiesIsolation(),
        HOSTS,
        image(os_distro='bsd'),
        host='b',
    )
    assert sentence == (
        'the image has os_distro=bsd, aggregate metadata allows '
        'os_distro=linux,windows'
    )
