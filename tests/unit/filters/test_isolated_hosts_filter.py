"""IsolatedHostsFilter keeps isolated images and hosts together."""

import pytest

from scheduler_service.filters.hosts.isolated_hosts_filter import (
    IsolatedHostsFilter,
)
from tests.support.plugins import inventory, passing, reason

HOSTS = inventory(isolated={}, other={})
ALL = ['isolated', 'other']
ISOLATED_IMAGE = {'image': {'id': 'image-1'}}
OTHER_IMAGE = {'image': {'id': 'image-2'}}
# A volume-backed instance has no image.
NO_IMAGE = {}


@pytest.mark.parametrize(
    ('images', 'hosts', 'restrict', 'isolated_image', 'other_image'),
    [
        (('image-1',), ('isolated',), True, ['isolated'], ['other']),
        (('image-1',), ('isolated',), False, ['isolated'], ALL),
        ((), ('isolated',), True, ['other'], ['other']),
        ((), ('isolated',), False, ALL, ALL),
        # Isolated images have nowhere to go without isolated hosts.
        (('image-1',), (), True, [], ALL),
        ((), (), True, ALL, ALL),
    ],
)
def test_images_pass_the_hosts_they_may_use(
    images, hosts, restrict, isolated_image, other_image
):
    settings = {
        'isolated_images': images,
        'isolated_hosts': hosts,
        'restrict_isolated_hosts_to_isolated_images': restrict,
    }
    for request, expected in (
        (ISOLATED_IMAGE, isolated_image),
        (OTHER_IMAGE, other_image),
        (NO_IMAGE, other_image),
    ):
        passed = passing(IsolatedHostsFilter(), HOSTS, request, **settings)
        assert passed == expected


def test_names_of_hosts_are_compared_exactly():
    passed = passing(
        IsolatedHostsFilter(), HOSTS, OTHER_IMAGE, isolated_hosts=('ISOLATED',)
    )
    assert passed == ALL


def test_the_reason_says_which_of_the_two_is_isolated():
    settings = {
        'isolated_images': ('image-1',),
        'isolated_hosts': ('isolated',),
    }
    assert (
        reason(
            IsolatedHostsFilter(),
            HOSTS,
            OTHER_IMAGE,
            host='isolated',
            **settings,
        )
        == 'the host is isolated, the image is not'
    )
    assert (
        reason(
            IsolatedHostsFilter(),
            HOSTS,
            ISOLATED_IMAGE,
            host='other',
            **settings,
        )
        == 'the image is isolated, the host is not'
    )
