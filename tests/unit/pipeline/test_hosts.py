"""One request on one table: order, choice, alternates and the reasons."""

from __future__ import annotations

import random

import pytest

from scheduler_service import errors
from scheduler_service.columns import Overlay
from scheduler_service.filters.hosts import (
    HostFilter,
    OneHostFilter,
    all_filters,
)
from scheduler_service.filters.hosts.affinity_filter import (
    SameHostFilter,
    ServerGroupAntiAffinityFilter,
)
from scheduler_service.filters.hosts.all_hosts_filter import AllHostsFilter
from scheduler_service.model import documents
from scheduler_service.pipeline import HostPipeline, explain
from scheduler_service.pipeline.selection import explanation
from scheduler_service.settings import Settings
from scheduler_service.testing import table
from scheduler_service.weighers import BUILT_IN
from scheduler_service.weighers.load_weigher import IoOpsWeigher, RAMWeigher

FOUR = {
    'hosts': [
        {'host': name, 'memory_mb': memory, 'vcpus': 8, 'local_gb': 100}
        for name, memory in
        [('a', 4000), ('b', 3000), ('c', 2000), ('d', 1000)]
    ]
}  # fmt: skip
FEW = (
    'RetryFilter',
    'AvailabilityZoneFilter',
    'ComputeFilter',
    'RamFilter',
    'CoreFilter',
    'DiskFilter',
)
RATIO = Settings(ram_allocation_ratio=1.0)


def every_filter():
    """Return the filters that these tests run, in order."""
    by_name = {kind.name: kind for kind in all_filters()}
    return [by_name[name] for name in FEW]


def pipeline(*filters, settings=RATIO, weighers=(RAMWeigher,)):
    kinds = filters or every_filter()
    made = [kind() if isinstance(kind, type) else kind for kind in kinds]
    return HostPipeline(made, [kind() for kind in weighers], settings)


def choose(chain, document=FOUR, overlay=None, seed=1, **request):
    asked = {'flavor': {'memory_mb': 100}, **request}
    return chain.select(
        overlay or Overlay(table(document)),
        documents.request(asked).with_ids(),
        random.Random(seed),
    )


def hosts_of(choice):
    return [
        assignment.placement.selected.host for assignment in choice.assignments
    ]


def alternates_of(choice):
    return [
        [other.host for other in assignment.placement.alternates]
        for assignment in choice.assignments
    ]


def test_one_instance_gets_the_best_host_and_two_alternates():
    choice = choose(pipeline())
    assert hosts_of(choice) == ['a']
    assert alternates_of(choice) == [['b', 'c']]


def test_three_instances_see_each_other():
    choice = choose(pipeline(), flavor={'memory_mb': 700}, num_instances=3)
    assert hosts_of(choice) == ['a', 'a', 'b']
    assert alternates_of(choice) == [['c', 'd']] * 3


def test_a_build_is_an_io_operation_within_its_request_alone():
    """As the reference has it; else a batch would be decided otherwise."""
    two = {'hosts': [{'host': 'a', 'memory_mb': 400},
                     {'host': 'b', 'memory_mb': 400}]}  # fmt: skip
    chain = pipeline(weighers=(IoOpsWeigher,))
    overlay = Overlay(table(two))
    together = choose(chain, overlay=overlay, num_instances=3)
    assert hosts_of(together) == ['a', 'b', 'a']
    assert overlay.table.number('num_io_ops').tolist() == [0, 0]
    alone = [choose(chain, overlay=Overlay(table(two))) for _ in range(2)]
    overlay = Overlay(table(two))
    batch = [choose(chain, overlay=overlay) for _ in range(2)]
    assert [hosts_of(one) for one in batch] == [hosts_of(o) for o in alone]


def test_all_or_nothing_gives_back_what_was_taken():
    overlay = Overlay(table(FOUR))
    with pytest.raises(errors.NoValidHost) as caught:
        choose(
            pipeline(),
            overlay=overlay,
            flavor={'memory_mb': 3000},
            num_instances=3,
        )
    assert caught.value.facts['placed'] == 2
    assert '2 of 3 instances' in str(caught.value)
    assert overlay.table.resources['MEMORY_MB'].used.sum() == 0
    assert len(overlay.table.instances) == 0


def test_reasons_are_cut_where_they_quote_what_is_very_long():
    with pytest.raises(errors.NoValidHost) as caught:
        choose(pipeline(), availability_zone='z' * 10**6)
    assert len(str(caught.value)) < 3000
    (cause,) = caught.value.facts['filters']
    assert cause['reason'].startswith('zone zzz')
    assert cause['reason'].endswith('... (998,036 more characters)')


def test_max_attempts_bounds_the_alternates():
    one = Settings(ram_allocation_ratio=1.0, max_attempts=1)
    assert alternates_of(choose(pipeline(settings=one))) == [[]]


def test_alternates_are_of_the_same_cell():
    document = {
        'hosts': [
            {**host, 'cell_uuid': cell}
            for host, cell in zip(FOUR['hosts'], '1212', strict=True)
        ]
    }
    assert alternates_of(choose(pipeline(), document)) == [['c']]


def test_ignore_wins_over_force_and_case_matters_for_nodes_alone():
    assert hosts_of(choose(pipeline(), ignore_hosts=['A'])) == ['b']
    assert hosts_of(choose(pipeline(), force_hosts=['C', 'd'])) == ['c']
    assert hosts_of(choose(pipeline(), force_nodes=['d'])) == ['d']
    with pytest.raises(errors.NoValidHost):
        choose(pipeline(), force_nodes=['D'])
    with pytest.raises(errors.NoValidHost):
        choose(pipeline(), force_hosts=['a'], ignore_hosts=['a'])


def test_forced_hosts_skip_the_filters_but_not_the_room_for_a_claim():
    document = {'hosts': [{**FOUR['hosts'][3], 'state': 'down'}]}
    assert hosts_of(choose(pipeline(), document, force_hosts=['d'])) == ['d']
    with pytest.raises(errors.NoValidHost):
        choose(
            pipeline(), document, force_hosts=['d'], flavor={'memory_mb': 5000}
        )


FORCED = [{'force_hosts': ['d']}, {'force_nodes': ['d']}]


@pytest.mark.parametrize('forced', FORCED)
@pytest.mark.parametrize('state', ['up', 'down'])
def test_a_disabled_host_cannot_be_forced(forced, state):
    """As with the trait COMPUTE_STATUS_DISABLED, by itself or beside it."""
    host = {**FOUR['hosts'][3], 'state': state}
    reason = {'status': 'disabled', 'disabled_reason': 'broken fan'}
    trait = {'traits': ['COMPUTE_STATUS_DISABLED']}
    for stored, why in (
        (reason, r'the host is disabled \(broken fan\)'),
        (trait, 'COMPUTE_STATUS_DISABLED'),
        ({**reason, **trait}, 'COMPUTE_STATUS_DISABLED'),
    ):
        with pytest.raises(errors.NoValidHost, match=why):
            choose(pipeline(), {'hosts': [{**host, **stored}]}, **forced)
    assert hosts_of(choose(pipeline(), {'hosts': [host]}, **forced)) == ['d']


def test_requested_destination_is_exact():
    choice = choose(pipeline(), requested_destination={'host': 'c'})
    assert hosts_of(choice) == ['c']
    with pytest.raises(errors.NoValidHost):
        choose(pipeline(), requested_destination={'host': 'C'})


def test_traits_and_custom_resources():
    document = {
        'hosts': [
            *FOUR['hosts'],
            {'host': 'f', 'memory_mb': 500, 'traits': ['CUSTOM_F'],
             'resources': {'CUSTOM_FPGA': {'total': 4, 'used': 1,
                                           'step_size': 2}}},
        ]
    }  # fmt: skip
    extra = {'trait:CUSTOM_F': 'required', 'resources:CUSTOM_FPGA': '2'}
    wanted = {'memory_mb': 1, 'extra_specs': extra}
    chosen = choose(pipeline(), document, flavor=wanted)
    assert hosts_of(chosen) == ['f']
    assert chosen.assignments[0].amounts == {'MEMORY_MB': 1, 'CUSTOM_FPGA': 2}
    for count in ('1', '4'):
        bad = {**wanted, 'extra_specs': {'resources:CUSTOM_FPGA': count}}
        with pytest.raises(errors.NoValidHost, match='CUSTOM_FPGA'):
            choose(pipeline(), document, flavor=bad)


@pytest.mark.parametrize('filters', [[], [AllHostsFilter]])
@pytest.mark.parametrize(
    ('units', 'asked', 'fits'),
    [
        ({'VCPU': {'max_unit': 4}}, {'vcpus': 5}, False),
        ({'VCPU': {'min_unit': 2}}, {'vcpus': 1}, False),
        ({'MEMORY_MB': {'step_size': 256}}, {'memory_mb': 500}, False),
        ({'DISK_GB': {'max_unit': 5}}, {'root_gb': 6}, False),
        ({'DISK_GB': {'max_unit': 5}}, {'vcpus': 6}, True),
    ],
)
def test_a_host_may_bound_what_one_instance_takes(filters, units, asked, fits):
    bounded = {
        'host': 'a', 'vcpus': 64, 'memory_mb': 9999, 'local_gb': 99,
        'units': units,
    }  # fmt: skip
    document = {'hosts': [bounded]}
    if fits:
        chosen = choose(pipeline(*filters), document, flavor=asked)
        assert hosts_of(chosen) == ['a']
    else:
        with pytest.raises(errors.NoValidHost):
            choose(pipeline(*filters), document, flavor=asked)


def test_a_host_without_figures_of_its_vcpus_is_not_full():
    document = {'hosts': [{'host': 'a', 'memory_mb': 1000}]}
    choice = choose(
        pipeline(), document, flavor={'vcpus': 4, 'memory_mb': 100}
    )
    assert hosts_of(choice) == ['a']
    assert 'vcpu' not in choice.assignments[0].placement.selected.limits


def test_limits_are_what_the_filters_allow_in_all():
    choice = choose(pipeline(), flavor={'memory_mb': 1, 'vcpus': 1})
    assert choice.assignments[0].placement.selected.limits == {
        'memory_mb': 4000,
        'vcpu': 128,
        'disk_gb': 100,
    }


def test_host_subset_picks_among_the_best():
    settings = Settings(ram_allocation_ratio=1.0, host_subset_size=2)
    seen = {
        hosts_of(choose(pipeline(settings=settings), seed=seed))[0]
        for seed in range(30)
    }
    assert seen == {'a', 'b'}


def test_shuffle_picks_among_equals():
    document = {'hosts': [{'host': n, 'memory_mb': 900} for n in 'abc']}
    settings = Settings(shuffle_best_same_weighed_hosts=True)
    seen = {
        hosts_of(choose(pipeline(settings=settings), document, seed=seed))[0]
        for seed in range(40)
    }
    assert seen == {'a', 'b', 'c'}


def test_refusal_counts_names_and_measures():
    document = {
        'hosts': [
            *FOUR['hosts'],
            {'host': 'big', 'memory_mb': 9000, 'status': 'disabled',
             'disabled_reason': 'broken'},
        ]
    }  # fmt: skip
    with pytest.raises(errors.NoValidHost) as caught:
        choose(pipeline(), document, flavor={'memory_mb': 4512})
    facts = caught.value.facts
    by_name = {cause['filter']: cause for cause in facts['filters']}
    assert facts['hosts'] == 5
    assert by_name['RamFilter']['out'] == by_name['RamFilter']['alone'] == 4
    assert by_name['RamFilter']['closest'] == {
        'host': 'a', 'node': 'a', 'lacks': 512.0, 'unit': 'MB',
    }  # fmt: skip
    assert by_name['ComputeFilter']['alone'] == 1
    assert by_name['ComputeFilter']['reason'] == (
        'the host is disabled (broken)'
    )
    assert 'resources' not in by_name
    assert str(caught.value) == (
        'No valid host was found. 5 hosts: ComputeFilter left 4 of 5, '
        'RamFilter left 0 of 4; ComputeFilter alone keeps out 1 (the host '
        'is disabled (broken)); RamFilter alone keeps out 4 (closest: a '
        'lacks 512 MB)'
    )


def refusal(document, **request):
    with pytest.raises(errors.NoValidHost) as caught:
        choose(pipeline(), document, **request)
    return caught.value


INSTANCE = '11111111-0000-4000-8000-000000000001'
IN_ZONES = {
    'hosts': [
        {'host': 'near', 'memory_mb': 500, 'memory_mb_used': 400},
        {'host': 'full', 'memory_mb': 500, 'memory_mb_used': 500},
        {'host': 'far', 'memory_mb': 900, 'memory_mb_used': 101},
    ],
    'aggregates': [
        {'id': 1, 'hosts': ['near', 'full'],
         'metadata': {'availability_zone': 'north'}},
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    'named',
    [
        {'availability_zone': 'north'},
        {'force_nodes': ['near', 'full']},
        {'ignore_hosts': ['far']},
        {'scheduler_hints': {'same_host': [INSTANCE]}},
    ],
)
def test_the_nearest_miss_is_a_host_as_the_request_names_it(named):
    """One elsewhere lacks less, and is of no use."""
    hosts = [
        {**host, 'status': 'enabled' if host['host'] == 'far' else 'disabled'}
        for host in IN_ZONES['hosts']
    ]
    document = {
        **IN_ZONES, 'hosts': hosts,
        'instances': [{'uuid': INSTANCE, 'host': 'near'}],
    }  # fmt: skip
    chain = HostPipeline(
        [*[kind() for kind in every_filter()], SameHostFilter()],
        [RAMWeigher()],
        RATIO,
    )
    with pytest.raises(errors.NoValidHost) as caught:
        choose(chain, document, flavor={'memory_mb': 800}, **named)
    by_name = {c['filter']: c for c in caught.value.facts['filters']}
    miss = by_name.get('RamFilter') or by_name['resources']
    assert miss['closest']['host'] == 'near'
    assert 'keeps out 0' not in str(caught.value)
    assert 'closest: near lacks' in str(caught.value)


def test_a_refusal_says_that_a_request_is_larger_than_every_host():
    largest = max(host['memory_mb'] for host in FOUR['hosts'])
    for memory_mb in (largest, largest + 1):
        # A host takes the first one when it is empty.
        refused = refusal(
            {
                'hosts': [
                    {**host, 'memory_mb_used': 9} for host in FOUR['hosts']
                ]
            },
            flavor={'memory_mb': memory_mb},
        )
        (cause,) = [
            cause for cause in refused.facts['filters']
            if cause['filter'] == 'RamFilter'
        ]  # fmt: skip
        never = f'can never fit: no host takes more than {largest:,} MB'
        for text in (str(refused), cause['reason']):
            assert (never in text) == (memory_mb > largest)


def test_no_miss_is_near_where_no_host_is_as_the_request_names_it():
    refused = refusal(
        IN_ZONES, flavor={'memory_mb': 800}, availability_zone='west'
    )
    causes = refused.facts['filters']
    assert not any('closest' in cause for cause in causes)
    assert 'closest' not in str(refused)


@pytest.mark.parametrize(
    ('name', 'hint'),
    [('CUSTOM_GPU_A10', '; is CUSTOM_GPU_A100 meant?'), ('IPV4_ADDRESS', '')],
)
def test_a_class_that_nobody_offers_gets_the_nearest_name(name, hint):
    resources = {'CUSTOM_GPU_A100': {'total': 1}}
    document = {'hosts': [{'host': 'a', 'resources': resources}]}
    specs = {f'resources:{name}': '1'}
    refused = refusal(document, flavor={'vcpus': 0, 'extra_specs': specs})
    assert f'1 {name} asked, no host offers {name}{hint})' in str(refused)


def test_no_hosts_at_all_is_said():
    with pytest.raises(errors.NoValidHost, match='There are no hosts'):
        choose(pipeline(), {'hosts': []})


def test_host_report_gives_every_verdict():
    chain = pipeline()
    hosts = table(FOUR)
    request = documents.request({'flavor': {'memory_mb': 1500}}).with_ids()
    view = explain.Subject(hosts, request, RATIO)
    verdicts = chain.filter_results(hosts, request)
    report = explain.host_report(verdicts, view, 'd')
    wrong = [one for one in report[0]['filters'] if not one['passes']]
    assert wrong == [
        {
            'filter': 'RamFilter',
            'passes': False,
            'reason': '1,500 MB requested, 1,000 free (limit 1,000, 0 used)',
            'lacks': 500.0,
            'unit': 'MB',
        }
    ]
    with pytest.raises(errors.HostNotFound):
        explain.host_report(verdicts, view, 'nobody')


def test_a_filter_that_raises_fails_the_request_by_name():
    class Broken(HostFilter):
        def mask(self, table, request, settings):
            raise KeyError('gone')

    with pytest.raises(errors.FilterFault) as caught:
        choose(pipeline(Broken))
    assert caught.value.facts == {'filter': 'Broken', 'fault': 'KeyError'}


def test_a_filter_that_says_nothing_is_counted_however_it_is_named():
    class Quiet(HostFilter):
        name = 'my_filter'

        def mask(self, table, request, settings):
            return None

    funnel = explanation(choose(pipeline(Quiet)).reasons)['funnel']
    assert 'my_filter' in [step['filter'] for step in funnel]
    assert 'ignore_hosts' not in [step['filter'] for step in funnel]


def test_a_filter_for_one_host_runs_last_over_those_still_in():
    seen = []

    class Looks(OneHostFilter):
        def host_passes(self, host_state, request):
            seen.append(
                (host_state.host, host_state.free_ram_mb,
                 host_state.total_usable_ram_mb, host_state.nodename)
            )  # fmt: skip
            return host_state.host != 'a'

    ram = next(kind for kind in every_filter() if kind.name == 'RamFilter')
    choice = choose(pipeline(Looks, ram), flavor={'memory_mb': 2500})
    assert hosts_of(choice) == ['b']
    assert seen[:2] == [('a', 4000, 4000, 'a'), ('b', 3000, 3000, 'b')]
    assert {name for name, *_ in seen} == {'a', 'b'}


def test_once_filters_do_not_run_again_in_a_request():
    calls = []

    class Once(HostFilter):
        once = True

        def mask(self, table, request, settings):
            calls.append(1)

    choose(pipeline(Once), num_instances=3)
    assert len(calls) == 1


def test_rebuild_runs_only_filters_that_ask_for_it():
    hints = {'_nova_check_type': ['rebuild']}
    document = {'hosts': [{'host': 'a', 'status': 'disabled'}]}
    choice = choose(pipeline(), document, flavor={}, scheduler_hints=hints)
    assert hosts_of(choice) == ['a']


def test_weights_of_finalists_are_in_the_explanation():
    chain = pipeline(weighers=BUILT_IN)
    overlay = Overlay(table(FOUR))
    explained = explanation(choose(chain, overlay=overlay).reasons)
    best = explained['finalists'][0]
    assert best['host'] == 'a'
    assert best['weights']['RAMWeigher'] == 1.0
    assert best['weight'] == pytest.approx(sum(best['weights'].values()))
    assert (
        best['raw']['RAMWeigher']
        == overlay.table.resources['MEMORY_MB'].total.max()
    )
    assert best['multipliers']['RAMWeigher'] == 1.0
    assert best['chosen'] is True
    assert not any('chosen' in each for each in explained['finalists'][1:])
    assert 'drawn_from' not in explained


def test_finalists_have_their_nodes():
    document = {
        'hosts': [
            {'host': 'a', 'memory_mb': 300},
            {'host': 'b', 'hypervisor_hostname': 'b1', 'memory_mb': 200},
        ]
    }
    chain = pipeline(weighers=BUILT_IN)
    for hosts in (1, 2):
        made = table({'hosts': document['hosts'][:hosts]})
        explained = explanation(choose(chain, overlay=Overlay(made)).reasons)
        found = [(e['host'], e['node']) for e in explained['finalists']]
        assert found == [('a', 'a'), ('b', 'b1')][:hosts]


def test_a_multiplier_of_an_aggregate_is_in_the_explanation():
    document = {
        'hosts': [{'host': name, 'memory_mb': mb}
                  for name, mb in (('a', 4096), ('b', 1024))],
        'aggregates': [{'id': 1, 'name': 'x', 'hosts': ['b'],
                        'metadata': {'ram_weight_multiplier': '7'}}],
    }  # fmt: skip
    chain = pipeline(weighers=BUILT_IN)
    chosen = choose(chain, overlay=Overlay(table(document)))
    found = {
        each['host']: (
            each['multipliers']['RAMWeigher'],
            each['raw']['RAMWeigher'],
        )
        for each in explanation(chosen.reasons)['finalists']
    }
    assert found == {'a': (1.0, 4096), 'b': (7.0, 1024)}


@pytest.mark.parametrize('subset', [2, 12])
def test_a_host_drawn_from_a_subset_is_marked(subset):
    document = {
        'hosts': [
            {'host': f'h{at:02}', 'memory_mb': 9000 - at} for at in range(20)
        ]
    }
    drawn = set()
    for seed in range(60):
        chain = pipeline(
            weighers=BUILT_IN, settings=Settings(host_subset_size=subset)
        )
        chosen = choose(chain, overlay=Overlay(table(document)), seed=seed)
        explained = explanation(chosen.reasons)
        assert explained['drawn_from'] == subset
        (marked,) = (
            each['host']
            for each in explained['finalists']
            if each.get('chosen')
        )
        assert [marked] == hosts_of(chosen)
        assert len(explained['finalists']) in (5, 6)
        drawn.add(marked)
    assert len(drawn) == subset


def test_instances_of_one_request_keep_apart_when_the_group_is_strict():
    """However much better one host is than the others."""
    group = '11111111-1111-4111-8111-111111111111'
    hosts = table(
        {
            'hosts': [
                {'host': 'large', 'memory_mb': 100_000},
                {'host': 'small', 'memory_mb': 1000},
            ],
            'server_groups': [
                {
                    'uuid': group,
                    'name': 'g',
                    'project_id': 'p',
                    'policy': 'anti-affinity',
                }
            ],
        }
    )
    chain = HostPipeline(
        [ServerGroupAntiAffinityFilter()], [RAMWeigher()], Settings()
    )
    request = documents.request(
        {
            'num_instances': 2,
            'flavor': {'memory_mb': 1},
            'instance_group': group,
        }
    ).with_ids()
    result = chain.select(Overlay(hosts), request, random.Random(1))
    assert sorted(
        assignment.placement.selected.host for assignment in result.assignments
    ) == ['large', 'small']
