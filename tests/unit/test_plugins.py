"""From configured names to plug-ins."""

import pytest

from scheduler_service import errors, plugins
from scheduler_service.filters.hosts import HostFilter, OneHostFilter

OURS = ['scheduler_service.filters.hosts.all_filters']


class Mine(HostFilter):
    """A custom filter by dotted path."""


class Foreign:
    """A filter of another make: it only has ``host_passes``."""

    def host_passes(self, host_state, spec):
        return host_state.host == 'a'


def test_filters_come_in_the_order_in_which_they_are_named():
    found = plugins.host_filters(OURS, ['RamFilter', 'ComputeFilter'])
    assert [one.name for one in found] == ['RamFilter', 'ComputeFilter']


def test_class_is_found_when_a_dotted_path_names_it():
    here = f'{__name__}.Mine'
    older = ['nova.scheduler.filters.all_filters', here]
    found = plugins.host_filters(older, ['Mine', 'RamFilter'])
    assert [type(one).__name__ for one in found] == ['Mine', 'RamFilter']


def test_filter_is_adapted_when_it_has_only_host_passes():
    found = plugins.host_filters([f'{__name__}.Foreign'], ['Foreign'])
    assert isinstance(found[0], OneHostFilter)
    assert found[0].name == 'Foreign'


def test_all_unknown_names_are_reported_when_filters_are_missing():
    with pytest.raises(errors.FilterNotFound) as caught:
        plugins.host_filters(OURS, ['RamFiltre', 'RamFilter', 'Nonsense'])
    assert caught.value.facts['names'] == ['RamFiltre', 'Nonsense']
    assert 'did you mean RamFilter?' in str(caught.value)
    assert 'ComputeFilter' in str(caught.value)


@pytest.mark.parametrize(
    'path', ['nowhere.at.all', 'scheduler_service.nothing', 'x', 'os.path']
)
def test_error_is_raised_when_a_path_does_not_load(path):
    with pytest.raises((errors.FilterNotFound, TypeError)):
        plugins.host_filters([path], ['RamFilter'])


def test_pool_filters_are_found_when_named():
    found = plugins.pool_filters(['attribute', 'random'])
    assert [kind.name for kind in found] == ['attribute', 'random']
    with pytest.raises(errors.FilterNotFound, match='did you mean fallback'):
        plugins.pool_filters(['falback'])
    with pytest.raises(errors.NoFiltersConfigured):
        plugins.pool_filters([])


def test_weighers_come_once_when_named_twice():
    both = ['scheduler_service.weighers.all_weighers', 'RAMWeigher']
    found = plugins.host_weighers(both)
    names = [one.name for one in found]
    assert len(names) == len(set(names))
    assert 'RAMWeigher' in names
