"""From configured names to plug-ins."""

import sys
from importlib import metadata

import pytest

from scheduler_service import errors, plugins
from scheduler_service.filters.hosts import HostFilter, OneHostFilter
from scheduler_service.filters.hosts.compute_filter import ComputeFilter
from scheduler_service.weighers.load_weigher import RAMWeigher

OURS = ['scheduler_service.filters.hosts.all_filters']

# A compute service with two filters and two weighers, one of each its own.
INSTALLED = """
class {ours}:
    pass


class {theirs}:
    def host_passes(self, host_state, spec):
        return True


def {function}():
    return [{ours}, {theirs}]
"""


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


@pytest.fixture(params=['installed', 'absent'])
def compute_service(request, tmp_path, monkeypatch):
    """A compute service that is installed, or is not: the parameter."""
    if request.param == 'installed':
        for folder, ours, theirs, function in (
            ('filters', 'ComputeFilter', 'RackFilter', 'all_filters'),
            ('weights', 'RAMWeigher', 'RackWeigher', 'all_weighers'),
        ):
            package = tmp_path / 'nova' / 'scheduler' / folder
            package.mkdir(parents=True)
            (package / '__init__.py').write_text(
                INSTALLED.format(ours=ours, theirs=theirs, function=function)
            )
    monkeypatch.syspath_prepend(tmp_path)
    yield request.param
    for name in [name for name in sys.modules if name.startswith('nova.')]:
        del sys.modules[name]
    sys.modules.pop('nova', None)


def test_paths_of_a_compute_service_stand_for_our_plug_ins(compute_service):
    filters = 'nova.scheduler.filters'
    found = plugins.host_filters(
        [f'{filters}.all_filters'],
        [f'{filters}.compute_filter.ComputeFilter', 'RamFilter'],
    )
    assert [type(one).__name__ for one in found] == [
        'ComputeFilter',
        'RamFilter',
    ]
    assert type(found[0]) is ComputeFilter
    weights = 'nova.scheduler.weights'
    found = plugins.host_weighers(
        [f'{weights}.ram.RAMWeigher', f'{weights}.cpu.CPUWeigher']
    )
    assert [one.name for one in found] == ['RAMWeigher', 'CPUWeigher']
    assert type(found[0]) is RAMWeigher
    assert plugins.host_weighers([f'{weights}.all_weighers'])


def test_own_classes_of_a_compute_service_are_loaded_or_refused(
    compute_service,
):
    here = 'nova.scheduler.filters.RackFilter'
    weigher = 'nova.scheduler.weights.RackWeigher'
    if compute_service == 'absent':
        with pytest.raises(errors.FilterNotFound, match='cannot be loaded'):
            plugins.host_filters(OURS, [here])
        return
    (found,) = plugins.host_filters(OURS, [here])
    assert isinstance(found, OneHostFilter)
    with pytest.raises(errors.FilterNotFound, match='is not a weigher'):
        plugins.host_weighers([weigher])


def test_classes_of_a_function_are_ours_where_we_have_them(
    compute_service, tmp_path
):
    if compute_service == 'absent':
        (tmp_path / 'own_filters.py').write_text('def all(): return []\n')
        wanted = [*OURS, 'own_filters.all']
    else:
        (tmp_path / 'own_filters.py').write_text(
            'from nova.scheduler import filters\n'
            'def all(): return filters.all_filters()\n'
        )
        wanted = ['own_filters.all']
    try:
        (found,) = plugins.host_filters(wanted, ['ComputeFilter'])
    finally:
        del sys.modules['own_filters']
    assert type(found) is ComputeFilter


@pytest.mark.parametrize(
    'path',
    [
        'nova.scheduler.filters.compute_filter.ComputeFilter',
        'scheduler_service.filters.hosts.compute_filter.ComputeFilter',
    ],
)
def test_log_says_that_a_filter_is_built_in(path, caplog):
    found = plugins.host_filters([*OURS, path], ['ComputeFilter'])
    assert type(found[0]) is ComputeFilter
    assert f'{path} is built in' in caplog.text
    with pytest.raises(
        errors.FilterNotFound, match=r'RamFilter \(it is built'
    ):
        plugins.host_filters([path], ['RamFilter'])


STAGE = 'tests.packages.thirdparty.src.thirdparty.stages.AddressStage'


@pytest.fixture
def second(monkeypatch):
    """Another stage, found by its entry point."""
    point = metadata.EntryPoint('second', STAGE.replace('.A', ':A'), '')
    monkeypatch.setattr(
        plugins, '_entry_points', lambda namespace: {'second': point}
    )


def test_stages_come_with_the_stage_that_each_follows(second):
    found = plugins.stages(
        [f'{STAGE} after=claim', 'second  after=AddressStage']
    )
    assert [each[:2] for each in found] == [
        ('AddressStage', 'claim'),
        ('second', 'AddressStage'),
    ]


@pytest.mark.parametrize(
    ('configured', 'text'),
    [
        (['second'], 'NAME after=PLACE'),
        (['second before=claim'], 'NAME after=PLACE'),
        (['second after=select'], 'after claim, complete, bind'),
        (['second after=third'], 'after claim, complete, bind'),
        (['second after=second'], 'after claim, complete, bind'),
        (['second after=claim', 'second after=bind'], 'two stages second'),
        (['secnd after=claim'], 'did you mean second'),
        ([f'{STAGE}s after=claim'], 'cannot be loaded'),
        (['logging.Logger after=claim'], 'is not a stage'),
        (
            ['scheduler_service.stages.ReservingStage after=claim'],
            'lacks one of document, make and undo',
        ),
    ],
)
def test_a_stage_that_cannot_be_used_is_an_error(second, configured, text):
    with pytest.raises(errors.ConfigurationError, match=text):
        plugins.stages(configured)
