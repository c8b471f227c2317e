"""require_image_type_support requires the trait of the disk format."""

import pytest

from scheduler_service.request_filters import require_image_type_support
from tests.support.plugins import scope_of

ON = {'query_placement_for_image_type_support': True}


@pytest.mark.parametrize(
    ('request_', 'expected'),
    [
        (
            {'image': {'disk_format': 'qcow2'}},
            {'COMPUTE_IMAGE_TYPE_QCOW2'},
        ),
        (
            {'image': {'disk_format': 'raw-iso'}},
            {'COMPUTE_IMAGE_TYPE_RAW_ISO'},
        ),
        ({'image': {}}, set()),
        # A volume-backed instance has no image.
        ({}, set()),
    ],
)
def test_the_trait_of_the_format_is_required(request_, expected):
    scope = scope_of(require_image_type_support, request_, **ON)
    assert scope.required_traits == expected
