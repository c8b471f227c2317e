"""ImagePropertiesWeigher prefers hosts with images like the requested."""

import pytest

from scheduler_service.weighers.image_properties_weigher import (
    ImagePropertiesWeigher,
)
from tests.support.plugins import instance, inventory, raw_weights


def image_meta(**properties):
    return {'properties': properties}


WINDOWS = image_meta(os_distro='windows', hw_machine_type='q35')
LINUX = image_meta(os_distro='linux', hw_machine_type='q35')
# a has two windows instances, b a linux one, c one without an image.
HOSTS = inventory(
    a={},
    b={},
    c={},
    instances=(
        instance(1, 'a', image_meta=WINDOWS),
        instance(2, 'a', image_meta=WINDOWS),
        instance(3, 'b', image_meta=LINUX),
        instance(4, 'c'),
    ),
)
REQUEST = {'image': WINDOWS}


def weights(request=REQUEST, multiplier=1.0, **settings):
    return raw_weights(
        ImagePropertiesWeigher(),
        HOSTS,
        request,
        image_props_weight_multiplier=multiplier,
        **settings,
    )


def test_equal_properties_of_all_instances_are_counted():
    assert weights() == {'a': 4, 'b': 1, 'c': 0}


def test_with_a_setting_listed_properties_count_by_their_ratio():
    listed = weights(image_props_weight_setting=('os_distro=2.5',))
    assert listed == {'a': 5, 'b': 0, 'c': 0}


def test_properties_that_compute_services_do_not_know_are_ignored():
    assert weights({'image': image_meta(licence_x='1')}) is None


@pytest.mark.parametrize('request_', [{}, {'image': {'properties': {}}}])
def test_it_has_no_opinion_without_properties(request_):
    assert weights(request_) is None


def test_it_is_off_with_the_default_multiplier():
    assert weights(multiplier=0.0) is None
