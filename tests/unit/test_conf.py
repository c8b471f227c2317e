"""Options by the names that operators know."""

import pytest

from scheduler_service import conf as options
from scheduler_service.cmd import adapters
from scheduler_service.settings import Settings


def parsed(tmp_path, text):
    path = tmp_path / 'a.conf'
    path.write_text(text)
    conf = adapters.new_config()
    options.parse(conf, [f'--config-file={path}'])
    return conf


def test_defaults_are_those_of_the_settings(tmp_path):
    assert options.settings(parsed(tmp_path, '')) == Settings()


def test_older_names_are_read(tmp_path):
    conf = parsed(
        tmp_path,
        """
[DEFAULT]
scheduler_available_filters = nova.scheduler.filters.all_filters
scheduler_available_filters = my.Filter
scheduler_default_filters = AvailabilityZoneFilter,RamFilter,ComputeFilter
cpu_allocation_ratio = 1.0
scheduler_host_subset_size = 3
scheduler_max_attempts = 5
ram_weight_multiplier = -2
[service:central]
scheduler_filters = attribute, random
default_pool_id = 11111111-0000-4000-8000-000000000001
""",
    )
    assert conf.filter_scheduler.available_filters == [
        'nova.scheduler.filters.all_filters',
        'my.Filter',
    ]
    assert conf.filter_scheduler.enabled_filters == [
        'AvailabilityZoneFilter',
        'RamFilter',
        'ComputeFilter',
    ]
    settings = options.settings(conf)
    assert settings.cpu_allocation_ratio == 1.0
    assert settings.host_subset_size == 3
    assert settings.max_attempts == 5
    assert settings.ram_weight_multiplier == -2.0
    assert settings.scheduler_filters == ('attribute', 'random')
    assert settings.default_pool_id == '11111111-0000-4000-8000-000000000001'


@pytest.mark.parametrize(
    'line', ['host_subset_size = 0', 'host_subset_size = x']
)
def test_bounds_are_in_the_options(tmp_path, line):
    conf = parsed(tmp_path, f'[filter_scheduler]\n{line}\n')
    with pytest.raises(options.FAULTS):
        options.settings(conf)
