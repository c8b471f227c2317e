"""What each request filter requires and forbids."""

import pytest

from scheduler_service import errors
from scheduler_service.request_filters import (
    compute_status_filter,
    devices_filter,
    isolate_aggregates,
    map_az_to_placement_aggregate,
    require_image_type_support,
    require_tenant_aggregate,
    transform_image_metadata,
)
from tests.support.plugins import scope_of

UUIDS = [f'44444444-0000-4000-8000-00000000000{n}' for n in range(3)]
ENCRYPTION = 'COMPUTE_EPHEMERAL_ENCRYPTION'
TENANTS = {'limit_tenants_to_placement_aggregate': True}
ZONES = {'query_placement_for_availability_zone': True}
ISOLATED = {'enable_isolated_aggregate_filtering': True}
IMAGES = {'query_placement_for_image_type_support': True}
METADATA = {'image_metadata_prefilter': True}


def aggregates(*metadata):
    return [
        {'uuid': uuid, 'metadata': pairs}
        for uuid, pairs in zip(UUIDS, metadata, strict=False)
    ]


def flavor(**specs):
    return {'flavor': {'extra_specs': specs}}


def image(**properties):
    return {'image': {'properties': properties}}


def test_the_trait_of_disabled_hosts_is_forbidden_for_every_request():
    scope = scope_of(compute_status_filter)
    assert scope.query() == 'required=!COMPUTE_STATUS_DISABLED'


@pytest.mark.parametrize(
    ('metadata', 'matches'),
    [
        ({'filter_tenant_id': 'p'}, True),
        ({'filter_tenant_id2': 'p'}, True),
        ({'filter_tenant_id': 'q'}, False),
        # The whole value counts: lists with commas are not split here.
        ({'filter_tenant_id': 'p,q'}, False),
        # Key and value belong to one entry.
        ({'filter_tenant_id': 'q', 'owner': 'p'}, False),
        ({'owner': 'p'}, False),
    ],
)
def test_any_aggregate_of_the_project_is_required(metadata, matches):
    scope = scope_of(
        require_tenant_aggregate,
        {'project_id': 'p'},
        *aggregates(metadata, {}, metadata),
        **TENANTS,
    )
    expected = [frozenset([UUIDS[0], UUIDS[2]])] if matches else []
    assert scope.required_aggregates == expected


def test_a_project_without_an_aggregate_may_be_refused():
    switches = {**TENANTS, 'placement_aggregate_required_for_tenants': True}
    with pytest.raises(errors.RequestFilterFailed, match='tenant') as caught:
        scope_of(require_tenant_aggregate, {'project_id': 'p'}, **switches)
    assert caught.value.facts == {
        'project_id': 'p',
        'filter': 'require_tenant_aggregate',
    }


@pytest.mark.parametrize(
    ('zone', 'expected'),
    [
        ('z1', [frozenset(UUIDS[:2])]),
        # The whole value counts: lists with commas are not split here.
        ('z2', []),
        ('z2,z3', [frozenset(UUIDS[2:])]),
        # A zone that no aggregate has restricts nothing.
        ('nova', []),
        ('', []),
        (None, []),
    ],
)
def test_one_of_the_aggregates_of_the_zone_is_required(zone, expected):
    zones = [{'availability_zone': name} for name in ('z1', 'z1', 'z2,z3')]
    scope = scope_of(
        map_az_to_placement_aggregate,
        {'availability_zone': zone},
        *aggregates(*zones),
        **ZONES,
    )
    assert scope.required_aggregates == expected


def is_forbidden(metadata, request):
    scope = scope_of(
        isolate_aggregates, request, *aggregates(metadata), **ISOLATED
    )
    return scope.forbidden_aggregates == {UUIDS[0]}


def requiring(*traits):
    return flavor(**{f'trait:{trait}': 'required' for trait in traits})


A_AND_B = {'trait:A': 'required', 'trait:B': 'required'}
TRAITS = [(), ('A',), ('B',), ('A', 'B'), ('A', 'Z')]


@pytest.mark.parametrize(
    ('metadata', 'forbidden_for'),
    [
        ({}, []),
        ({'other': 'required'}, []),
        ({'trait:A': 'forbidden'}, []),
        ({'trait1:A': 'required'}, []),
        ({'trait:A': 'required'}, [(), ('B',)]),
        # All of several traits have to be required.
        (A_AND_B, [(), ('A',), ('B',), ('A', 'Z')]),
        ({'trait:A': 'required', 'trait:C': 'forbidden'}, [(), ('B',)]),
        # Nobody can require the trait without a name.
        ({'trait:': 'required'}, TRAITS),
    ],
)
def test_an_aggregate_is_open_to_those_who_require_its_traits(
    metadata, forbidden_for
):
    found = [t for t in TRAITS if is_forbidden(metadata, requiring(*t))]
    assert found == forbidden_for


@pytest.mark.parametrize(
    ('request_', 'forbidden'),
    [
        (flavor(**{'trait1:A': 'required'}), False),
        (flavor(**{'trait_x:A': 'required'}), False),
        (flavor(**{'trait:A': 'preferred'}), True),
        (flavor(**{'trait:A': 'Required'}), True),
        (image(**{'trait:A': 'required'}), False),
        (image(**{'trait1:A': 'required'}), True),
    ],
)
def test_the_flavor_or_the_image_may_require_the_trait(request_, forbidden):
    assert is_forbidden({'trait:A': 'required'}, request_) is forbidden


def test_flavor_and_image_together_may_require_all_traits():
    request = {**requiring('A'), **image(**{'trait:B': 'required'})}
    assert not is_forbidden(A_AND_B, request)


@pytest.mark.parametrize(
    ('request_', 'expected'),
    [
        ({'image': {'disk_format': 'qcow2'}}, {'COMPUTE_IMAGE_TYPE_QCOW2'}),
        # There is no such trait.
        ({'image': {'disk_format': 'gpt'}}, set()),
        ({'image': {}}, set()),
        # A volume-backed instance has no image.
        ({}, set()),
    ],
)
def test_the_trait_of_the_format_is_required(request_, expected):
    scope = scope_of(require_image_type_support, request_, **IMAGES)
    assert scope.required_traits == expected


@pytest.mark.parametrize(
    ('properties', 'traits'),
    [
        ({'hw_cdrom_bus': 'sata'}, {'COMPUTE_STORAGE_BUS_SATA'}),
        ({'hw_disk_bus': 'virtio'}, {'COMPUTE_STORAGE_BUS_VIRTIO'}),
        ({'hw_video_model': 'qxl'}, {'COMPUTE_GRAPHICS_MODEL_QXL'}),
        (
            {'hw_vif_model': 'e1000-82540em'},
            {'COMPUTE_NET_VIF_MODEL_E1000_82540EM'},
        ),
        ({'hw_architecture': 'x86_64'}, {'HW_ARCH_X86_64'}),
        ({'hw_emulation_architecture': 'aarch64'}, {'COMPUTE_ARCH_AARCH64'}),
        ({'hw_architecture': 'amd64'}, {'HW_ARCH_X86_64'}),
        ({'architecture': 'i386'}, {'HW_ARCH_I686'}),
        # Of several, none where one has no trait.
        ({'hw_disk_bus': 'scsi', 'hw_viommu_model': 'intel'}, set()),
        ({'hw_disk_bus': 'scsi', 'hw_architecture': 'armv7l'}, set()),
        ({'hw_disk_bus': 'scsi', 'hw_emulation_architecture': 'ia64'}, set()),
        (
            {'hw_disk_bus': 'virtio', 'hw_cdrom_bus': 'sata'},
            {'COMPUTE_STORAGE_BUS_SATA', 'COMPUTE_STORAGE_BUS_VIRTIO'},
        ),
        ({'os_distro': 'linux'}, set()),
        ({'hw_disk_bus': ''}, set()),
        ({}, set()),
    ],
)
def test_a_property_stands_for_a_trait(properties, traits):
    scope = scope_of(transform_image_metadata, image(**properties), **METADATA)
    assert scope.required_traits == traits


@pytest.mark.parametrize(
    ('request_', 'expected'),
    [
        ({}, set()),
        (flavor(**{'accel:device_profile': 'gpu'}), {'COMPUTE_ACCELERATORS'}),
        (flavor(**{'accel:device_profile': ''}), set()),
        (
            flavor(**{'hw:virtio_packed_ring': 'true'}),
            {'COMPUTE_NET_VIRTIO_PACKED'},
        ),
        (flavor(**{'hw:virtio_packed_ring': 'no'}), set()),
        (
            flavor(**{'hw:sound_model': 'virtio'}),
            {'COMPUTE_SOUND_MODEL_VIRTIO'},
        ),
        (flavor(**{'hw:sound_model': 'ich9'}), set()),
        (flavor(**{'hw:ephemeral_encryption': 'Yes'}), {ENCRYPTION}),
        (
            flavor(
                **{
                    'hw:ephemeral_encryption': 'true',
                    'hw:ephemeral_encryption_format': 'luks',
                }
            ),
            {ENCRYPTION, f'{ENCRYPTION}_LUKS'},
        ),
        # A format alone does not encrypt anything.
        (flavor(**{'hw:ephemeral_encryption_format': 'luks'}), set()),
        (image(hw_virtio_packed_ring=True), {'COMPUTE_NET_VIRTIO_PACKED'}),
        (image(hw_sound_model='virtio'), {'COMPUTE_SOUND_MODEL_VIRTIO'}),
        (image(hw_ephemeral_encryption='true'), {ENCRYPTION}),
        (image(**{'accel:device_profile': 'gpu'}), set()),
        # The flavor counts where both state it.
        (
            {
                **flavor(**{'hw:virtio_packed_ring': 'false'}),
                **image(hw_virtio_packed_ring='true'),
            },
            set(),
        ),
    ],
)
def test_devices_and_features_stand_for_traits(request_, expected):
    assert scope_of(devices_filter, request_).required_traits == expected
