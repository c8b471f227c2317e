"""The fold of pool filters down to one pool."""

import random

import pytest

from scheduler_service import errors, plugins
from scheduler_service.filters.pools import PoolFilter
from scheduler_service.model import Pool, documents
from scheduler_service.pipeline import PoolPipeline
from scheduler_service.settings import Settings

GOLD = '11111111-0000-4000-8000-000000000001'
SILVER = '11111111-0000-4000-8000-000000000002'
BARE = '11111111-0000-4000-8000-0000000000bb'
POOLS = {
    GOLD: Pool(id=GOLD, name='gold', attributes={'level': 'gold'}),
    SILVER: Pool(id=SILVER, name='silver', attributes={'level': 'silver'}),
}


class Anybody:
    """A caller whom the policy lets do everything."""

    def authorize(self, rule, target):
        """Say nothing."""


def choose(names, pools=POOLS, settings=None, **zone):
    kinds = [
        kind
        for name in names
        for kind in (
            [name] if isinstance(name, type) else plugins.pool_filters([name])
        )
    ]
    pipeline = PoolPipeline(kinds, settings or Settings())
    asked = documents.zone({'name': 'a.', **zone}).with_ids()
    return pipeline.choose(Anybody(), pools, asked, random.Random(1))


def test_choice_tells_what_each_filter_left():
    choice = choose(['attribute', 'random'], attributes={'level': 'gold'})
    assert choice.pool.id == GOLD
    assert choice.explanation == {
        'pools': 2,
        'funnel': [
            {'filter': 'attribute', 'left': 1, 'pools': ['gold']},
            {'filter': 'random', 'left': 1, 'pools': ['gold']},
        ],
    }


def test_several_left_is_an_error_that_tells_how_many():
    with pytest.raises(errors.MultiplePoolsFound, match='attribute left 2'):
        choose(['attribute'])


def test_none_left_is_an_error_that_tells_the_fold():
    with pytest.raises(errors.NoValidPoolFound) as caught:
        choose(['attribute'], attributes={'level': 'bronze'})
    assert caught.value.facts['funnel'][0]['left'] == 0
    assert 'without attributes' not in str(caught.value)


def test_a_refusal_says_what_the_nearest_pool_lacks():
    near = Pool(id=BARE, name='near', attributes={'level': 'bronze', 'b': '1'})
    with pytest.raises(errors.NoValidPoolFound) as caught:
        choose(
            ['attribute', 'random'],
            {**POOLS, BARE: near},
            attributes={'level': 'bronze', 'a': 'yes', 'b': 'true'},
        )
    reason = 'a yes is requested, it has none'
    assert caught.value.facts['filters'] == [
        {
            'filter': 'attribute',
            'out': 3,
            'alone': 3,
            'closest': {'pool': 'near', 'lacks': 1, 'unit': 'requirements'},
            'reason': reason,
            'sentence': f'attribute: 3 of 3: {reason}',
        }
    ]
    assert str(caught.value).endswith(
        f'attribute left 0, random left 0; attribute alone keeps out 3 '
        f'(near: {reason})'
    )


def test_a_pool_that_differs_in_case_alone_is_the_nearest():
    other = Pool(id=BARE, name='other', attributes={'level': 'Bronze'})
    with pytest.raises(errors.NoValidPoolFound) as caught:
        choose(
            ['attribute'], {**POOLS, BARE: other},
            attributes={'level': 'bronze'},
        )  # fmt: skip
    (cause,) = caught.value.facts['filters']
    assert cause['closest']['pool'] == 'other'


def test_pools_that_several_filters_leave_out_are_no_ones_alone():
    class Foreign:
        """A filter of another base."""

        name = 'foreign'

        def __init__(self, storage):
            """Need no storage."""

        def filter(self, context, pools, zone):
            return [pool for pool in pools if pool.name == 'gold']

    with pytest.raises(errors.NoValidPoolFound) as caught:
        choose(['attribute', Foreign], attributes={'level': 'silver'})
    assert [
        (cause['filter'], cause['out'], cause['alone'], cause['reason'])
        for cause in caught.value.facts['filters']
    ] == [
        ('attribute', 1, 1, 'level silver is requested, it has gold'),
        ('foreign', 1, 1, 'the filter leaves it out'),
    ]


@pytest.mark.parametrize('attributes', [{}, {'pool_id': BARE}])
def test_a_bare_pool_is_kept_where_the_option_says_so(attributes):
    pools = {BARE: Pool(id=BARE, name='bare', attributes=attributes)}
    with pytest.raises(errors.NoValidPoolFound) as caught:
        choose(['attribute'], pools, attributes={'level': 'gold'})
    assert str(caught.value).endswith(
        '; 1 of the pools without attributes, which [pool_scheduler] '
        'keep_pools_without_attributes would keep'
    )
    keeping = Settings(keep_pools_without_attributes=True)
    found = choose(['attribute'], pools, keeping, attributes={'level': 'gold'})
    assert found.pool.id == BARE
    # One whose attributes differ is dropped as ever.
    found = choose(
        ['attribute'], {**POOLS, **pools}, keeping,
        attributes={'level': 'bronze'},
    )  # fmt: skip
    assert found.pool.id == BARE


def test_a_forced_pool_that_was_filtered_out_names_the_filter():
    with pytest.raises(errors.ForcedPoolFilteredOut) as caught:
        choose(
            ['attribute', 'pool_id_attribute', 'fallback'],
            attributes={'level': 'gold', 'pool_id': SILVER},
        )
    assert caught.value.facts == {
        'pool_id': SILVER,
        'filter': 'attribute',
        'reason': 'level gold is requested, it has silver',
    }


def test_no_later_filter_hides_that_the_forced_pool_is_unknown():
    with pytest.raises(errors.PoolNotFound):
        choose(
            ['pool_id_attribute', 'fallback'],
            attributes={'pool_id': '11111111-0000-4000-8000-00000000000f'},
        )


def test_a_filter_that_raises_is_named():
    class Broken(PoolFilter):
        name = 'broken'

        def filter(self, context, pools, zone):
            raise RuntimeError('no')

    with pytest.raises(errors.FilterFault, match='broken failed'):
        choose([Broken])


def test_a_custom_filter_sees_storage_pools_and_zone():
    class Custom(PoolFilter):
        name = 'custom'

        def filter(self, context, pools, zone):
            assert len(self.storage.find_pools(context)) == 2
            wanted = zone.attributes.to_dict()['want']
            return [p for p in pools if p.attributes.get('level') == wanted]

    assert choose([Custom], attributes={'want': 'silver'}).pool.id == SILVER
