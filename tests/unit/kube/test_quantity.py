"""Quantities as the real library reads them, and classes of resources."""

import json

import pytest

from scheduler_service.kube import quantity
from tests.support.paths import recorded


@pytest.mark.parametrize(
    'case', recorded('quantities.json'), ids=lambda case: case['json']
)
def test_quantity_is_read_or_refused_when_recorded(case):
    """As the real library reads them; what does not fit is refused."""
    try:
        value = json.loads(case['json'], parse_float=str, parse_int=str)
    except json.JSONDecodeError:
        assert 'error' in case
        return
    if 'error' in case:
        with pytest.raises(quantity.BadQuantity):
            quantity.parse(value)
        return
    for read, key in ((quantity.whole, 'value'),
                      (quantity.thousandths, 'milli_value')):  # fmt: skip
        scale = 1000 if key == 'milli_value' else 1
        if abs(quantity.parse(value) * scale) > 2**63 - 1:
            with pytest.raises(quantity.BadQuantity):
                read(value)
        else:
            assert str(read(value)) == case[key]


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
    assert quantity.class_of(name, 'd.example') == expected


def test_class_is_no_longer_than_a_class_may_be():
    made = quantity.class_of(f'{"a" * 250}/{"b" * 63}', 'd.example')
    assert made is not None
    assert len(made) == 255
