"""Quantities as the real library reads them."""

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
