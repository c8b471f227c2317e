"""Which classes extended resources are."""

import pytest

from scheduler_service.model.inventory import class_of


@pytest.mark.parametrize(
    ('name', 'expected'),
    [
        ('d.example/CUSTOM_FPGA', 'CUSTOM_FPGA'),
        ('d.example/VGPU', 'VGPU'),
        ('d.example/odd-name', 'CUSTOM_D_EXAMPLE_ODD_NAME'),
        ('d.example/VCPU', 'CUSTOM_D_EXAMPLE_VCPU'),
        ('example.com/fpga', 'CUSTOM_EXAMPLE_COM_FPGA'),
        ('nvidia.com/gpu', 'CUSTOM_NVIDIA_COM_GPU'),
        ('cpu', None),
        ('hugepages-2Mi', None),
        ('attachable-volumes-x', None),
        ('kubernetes.io/batch', None),
        ('requests.example.com/fpga', None),
    ],
)
def test_class_follows_from_the_name_of_a_resource(name, expected):
    assert class_of(name, 'd.example') == expected


def test_class_is_no_longer_than_a_class_may_be():
    made = class_of(f'{"a" * 250}/{"b" * 63}', 'd.example')
    assert made is not None
    assert len(made) == 255
