"""Numbers in metadata that plug-ins read have a limit."""

from scheduler_service import weighers
from scheduler_service.filters import hosts
from scheduler_service.filters.capacity import CapacityFilter, CountFilter
from scheduler_service.model.limits import MAX_RATIO, metadata_limit


def test_every_number_that_a_plug_in_reads_has_a_limit():
    keys = {
        kind.ratio_key
        for kind in hosts.BUILT_IN
        if issubclass(kind, CapacityFilter) and kind.ratio_key
    }
    assert {metadata_limit(key) for key in keys} == {MAX_RATIO}
    keys = {
        kind.option
        for kind in hosts.BUILT_IN
        if issubclass(kind, CountFilter) and kind.by_aggregate
    } | {kind.multiplier_option for kind in weighers.BUILT_IN}
    assert len(keys) > 10
    assert all(metadata_limit(key) for key in keys)


def test_other_metadata_has_none():
    assert metadata_limit('availability_zone') is None
