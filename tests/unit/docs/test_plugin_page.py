"""The examples of the page on plug-ins run as they stand there."""

from __future__ import annotations

import random
import re
import sys
import textwrap
import types

import pytest

from scheduler_service import conf as options
from scheduler_service import plugins
from scheduler_service.columns import Overlay
from scheduler_service.filters.base import AdaptedHostFilter
from scheduler_service.filters.pools import PoolFilter
from scheduler_service.model import Pool, documents
from scheduler_service.pipeline import HostPipeline, PoolPipeline
from scheduler_service.settings import Settings
from scheduler_service.stages import HostRefused, Reservation, ReservingStage
from scheduler_service.testing import (
    check_keys,
    filter_results,
    raw_weights,
    table,
)
from scheduler_service.weighers import Weigher
from tests.rigs.address_service import AddressService
from tests.support.paths import ROOT

PAGE = ROOT / 'doc/source/contributor/plugins.rst'
MODULE = 'my_plugins'
BLOCK = re.compile(r'\.\. code-block:: python\n\n((?:(?: {4}.*)?\n)+)')
BLOCKS = [textwrap.dedent(block) for block in BLOCK.findall(PAGE.read_text())]
CLASSES = [block for block in BLOCKS if MODULE not in block]
TESTS = [block for block in BLOCKS if MODULE in block]
HOSTS = {
    'hosts': [
        {
            'host': name,
            'vcpus': 8,
            'memory_mb': 10_000,
            'local_gb': 100,
            **fields,
        }
        for name, fields in {
            'a': {'traits': ['CUSTOM_GOLD'], 'failed_builds': 1},
            'b': {'traits': ['CUSTOM_GOLD'], 'num_io_ops': 3},
            'c': {'traits': ['CUSTOM_GOLD'], 'memory_mb_used': 8_500},
            'd': {'traits': ['CUSTOM_GOLD'], 'vcpus_used': 2},
            'e': {},
        }.items()
    ],
    'aggregates': [
        {'id': 1, 'hosts': ['b'], 'metadata': {'maintenance': 'yes'}},
    ],
}
GOLDEN = {
    'flavor': {'name': 'gold', 'vcpus': 1, 'memory_mb': 1000, 'root_gb': 1}
}


class Anybody:
    """A caller whom the policy lets do everything."""

    def authorize(self, rule, target):
        """Allow it."""


@pytest.fixture
def page(monkeypatch):
    """Return the module that the examples of the page make."""
    module = types.ModuleType(MODULE)
    for block in CLASSES:
        # Each is complete: it gets no name from the others.
        names = {'__name__': MODULE}
        exec(compile(block, str(PAGE), 'exec'), names)
        vars(module).update(
            (name, value)
            for name, value in names.items()
            if isinstance(value, type) and value.__module__ == MODULE
        )
    monkeypatch.setitem(sys.modules, MODULE, module)
    return module


def paths(names):
    """Return the dotted paths of classes of the page."""
    return [f'{MODULE}.{name}' for name in names]


def pipeline_of(page):
    """Return a pipeline of all filters and weighers of the page."""
    shown = [
        name for name, value in vars(page).items() if isinstance(value, type)
    ]
    weighers = [
        name for name in shown if issubclass(getattr(page, name), Weigher)
    ]
    filters = [
        name
        for name in shown
        if name not in weighers
        and not issubclass(getattr(page, name), PoolFilter | ReservingStage)
    ]
    assert len(filters) == 6
    assert len(weighers) == 2
    return HostPipeline(
        plugins.host_filters(paths(filters), filters),
        plugins.host_weighers(paths(weighers)),
        Settings(),
    )


def passing(page, request):
    hosts = table(HOSTS)
    parsed = documents.request(request).with_ids()
    results = pipeline_of(page).filter_results(hosts, parsed)
    return {
        one.name: [hosts.host_at(row) for row in mask.nonzero()[0]]
        for one, mask in results
        if one.name[0].isupper()
    }


def test_filters_of_all_four_forms(page):
    request = {**GOLDEN, 'scheduler_hints': {'avoid': ['d']}}
    assert passing(page, request) == {
        'GoldenHostsFilter': ['a', 'b', 'c', 'd'],
        'MaintenanceFilter': ['a', 'c', 'd', 'e'],
        'SpareMemoryFilter': ['a', 'b', 'd', 'e'],
        'SpareCoresFilter': ['a', 'b', 'c', 'd', 'e'],
        'AvoidedHostsFilter': ['a', 'b', 'c', 'e'],
        'QuietHostsFilter': ['a', 'c', 'd', 'e'],
    }


def test_filters_without_an_opinion_pass_every_host(page):
    assert passing(page, {'flavor': {'name': 'm1'}}) == {
        'GoldenHostsFilter': ['a', 'b', 'c', 'd', 'e'],
        'MaintenanceFilter': ['a', 'c', 'd', 'e'],
        'SpareMemoryFilter': ['a', 'b', 'c', 'd', 'e'],
        'SpareCoresFilter': ['a', 'b', 'c', 'd', 'e'],
        'AvoidedHostsFilter': ['a', 'b', 'c', 'd', 'e'],
        'QuietHostsFilter': ['a', 'c', 'd', 'e'],
    }


def test_reasons_are_sentences(page):
    hosts = table(HOSTS)
    request = documents.request(GOLDEN).with_ids()
    reasons = {
        one.name: one.reason(hosts, 2, request, Settings())
        for one in pipeline_of(page).filters
        if not isinstance(one, AdaptedHostFilter)
    }
    assert reasons == {
        'GoldenHostsFilter': 'the flavor gold is golden, and the host lacks '
        'the trait CUSTOM_GOLD',
        'MaintenanceFilter': 'an aggregate of the host is in maintenance',
        'SpareCoresFilter': '0 vCPUs have to stay unused',
        'SpareMemoryFilter': '1000 MB requested, and a tenth of 10000 MB has '
        'to stay free (8500 MB used)',
        'AvoidedHostsFilter': 'the hint avoid lists the host',
    }


def test_a_request_is_placed_with_the_filters_and_weighers(page):
    request = documents.request({**GOLDEN, 'num_instances': 2}).with_ids()
    result = pipeline_of(page).select(
        Overlay(table(HOSTS)), request, random.Random(1)
    )
    # a has more vCPUs unused, and d fewer failed builds, which count twice.
    assert [assignment.placed.host for assignment in result.assignments] == [
        'd',
        'd',
    ]
    names = [name for name, _, _ in result.reasons['funnel']]
    assert names[-1] == 'QuietHostsFilter'


def test_a_plug_in_reads_an_option_of_its_own(page, tmp_path):
    path = tmp_path / 'a.conf'
    path.write_text('[filter_scheduler]\nplugin_options = spare_vcpus:7\n')
    conf = options.new_config()
    options.parse(conf, ['--config-file', str(path)])
    results = filter_results(
        page.SpareCoresFilter(), HOSTS, GOLDEN, options.settings(conf)
    )
    assert [host for host, passes in results.items() if not passes] == ['d']


def test_weights(page):
    failed = raw_weights(page.FailedBuildsWeigher(), HOSTS, GOLDEN)
    assert failed == {'a': -1.0, 'b': 0.0, 'c': 0.0, 'd': 0.0, 'e': 0.0}
    unused = raw_weights(page.UnusedCoresWeigher(), HOSTS, GOLDEN)
    assert unused == {'a': 8.0, 'b': 8.0, 'c': 8.0, 'd': 6.0, 'e': 8.0}


def test_keys(page):
    requests = [{}, GOLDEN, {'flavor': {'name': 'gold-2'}}]
    for plugin in (*pipeline_of(page).filters, page.FailedBuildsWeigher()):
        check_keys(plugin, HOSTS, requests)


def test_the_pool_filter(page):
    ids = [f'11111111-0000-4000-8000-00000000000{n}' for n in (1, 2)]
    pools = {
        pool_id: Pool(id=pool_id, name=name, attributes={'pops': name})
        for pool_id, name in zip(ids, ('eu', 'us'), strict=True)
    }
    pipeline = PoolPipeline([page.EuropeFilter], Settings())
    zone = documents.zone({'name': 'a.'}).with_ids()
    choice = pipeline.choose(Anybody(), pools, zone, random.Random(1))
    assert choice.pool.name == 'eu'


def test_the_stage_reserves_an_address_and_gives_it_back(page):
    (found,) = plugins.stages([f'{MODULE}.AddressStage after=claim'])
    stage = found.kind(*found[:2], Settings(), None, None)
    service = AddressService()
    settings = Settings(plugin_options={'address_url': service.url})
    wanted = Reservation('vm', 'a', 'a', {'project_id': 'p'})
    with service.running():
        for _ in range(2):
            stage.make(wanted, settings)
        assert service.addresses.keys() == {('a', 'vm')}
        for _ in range(2):
            stage.undo(wanted, settings)
        assert not service.addresses
        service.full.add('a')
        with pytest.raises(HostRefused):
            stage.make(wanted, settings)
    stage.stop()


def test_the_package_has_the_stage_of_the_page():
    package = ROOT / 'tests/packages/thirdparty/src/thirdparty/stages.py'
    (block,) = (each for each in BLOCKS if 'ReservingStage' in each)
    assert package.read_text().endswith(f'"""\n\n{block.strip()}\n')


def test_the_tests_of_the_page_pass(page):
    (block,) = TESTS
    names = {}
    exec(compile(block, str(PAGE), 'exec'), names)
    tests = [name for name in names if name.startswith('test_')]
    assert len(tests) == 3
    for name in tests:
        names[name]()


def test_the_page_shows_no_other_code():
    text = PAGE.read_text()
    assert '::\n\n    ' not in re.sub(r'\.\. code-block:: \w+\n', '', text)
    assert len(BLOCKS) == text.count('code-block:: python') == 11
