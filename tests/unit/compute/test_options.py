"""Options of the compute service that cannot be used are refused."""

from __future__ import annotations

import pytest

from scheduler_service import errors
from scheduler_service.compute import options
from tests.support.services import new_conf


def test_aggregates_of_routed_networks_are_refused_at_the_start():
    name = 'query_placement_for_routed_network_aggregates'
    options.check(new_conf(scheduler__topic='t'))
    with pytest.raises(errors.ConfigurationError, match=name):
        options.check(
            new_conf(scheduler__topic='t', **{f'scheduler__{name}': True})
        )


@pytest.mark.parametrize(
    'more',
    [{}, {'use_placement': True, 'enabled': True}],
    ids=['without placement', 'beside the interface'],
)
def test_a_shadow_is_refused_where_it_could_not_compare_or_would_serve(
    more,
):
    values = {'api_database': 'sqlite://', 'shadow': True}
    conf = new_conf(
        scheduler__topic='t',
        **{f'compute__{name}': v for name, v in (values | more).items()},
    )
    with pytest.raises(errors.ConfigurationError, match='shadow needs'):
        options.check(conf)
