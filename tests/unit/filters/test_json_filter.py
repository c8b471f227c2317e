"""JsonFilter passes hosts for which the query of the hint is true."""

import json

import pytest

from scheduler_service import errors
from scheduler_service.filters.hosts import json_filter
from scheduler_service.filters.hosts.json_filter import JsonFilter
from tests.support.plugins import has_opinion, inventory, passing, reason

# 1024 MB free, no vCPU used, nothing else reported.
HOSTS = inventory(a={'memory_mb': 1024, 'stats': {'a': 'x'}})


def hint(query):
    """Return a request; what is not a text becomes JSON."""
    text = query if isinstance(query, str) else json.dumps(query)
    return {'scheduler_hints': {'query': text}}


def is_true(query):
    return passing(JsonFilter(), HOSTS, hint(query)) == ['a']


def test_a_query_chooses_among_hosts():
    document = inventory(
        a={'memory_mb': 2048, 'vcpus': 4},
        b={'memory_mb': 512, 'vcpus': 4},
        c={'memory_mb': 2048, 'vcpus': 2},
    )
    query = ['and', ['>=', '$free_ram_mb', 1024], ['>', '$vcpus_total', 2]]
    assert passing(JsonFilter(), document, hint(query)) == ['a']


def test_a_query_reads_the_service_of_a_host():
    document = inventory(
        a={},
        b={'status': 'disabled', 'disabled_reason': 'memory'},
        c={'status': 'disabled', 'disabled_reason': 'disk'},
    )
    for query, expected in (
        (['=', '$service.disabled', False], ['a']),
        (['=', '$service.disabled', True], ['b', 'c']),
        (['=', '$service.disabled_reason', 'disk'], ['c']),
    ):
        assert passing(JsonFilter(), document, hint(query)) == expected


@pytest.mark.parametrize('hints', [{}, {'query': ''}, {'query': None}])
def test_it_has_no_opinion_without_a_query(hints):
    request = {'scheduler_hints': hints}
    assert not has_opinion(JsonFilter(), HOSTS, request)


def test_a_host_fails_when_any_part_cannot_be_read():
    document = inventory(
        a={'stats': {'x': 'text', 'y': 3}},
        b={'stats': {'x': 3, 'y': 'text'}},
        c={'stats': {'x': 3, 'y': 3}},
    )
    query = ['or', ['<', '$stats.x', 9], ['<', '$stats.y', 9]]
    assert passing(JsonFilter(), document, hint(query)) == ['c']


@pytest.mark.parametrize(
    ('query', 'expected'),
    [
        (['>=', '$free_ram_mb', 1024], True),
        (['=', '$vcpus_used', 0], True),
        # The first argument is compared with each of the others.
        (['<', 1, 2, 3], True),
        (['<', 1, 3, 1], False),
        (['=', 1, 1, 2], False),
        (['in', '$free_ram_mb', 512, 1024], True),
        (['in', '$free_ram_mb'], False),
        # Types are not converted.
        (['=', '$free_ram_mb', '1024'], False),
        (['=', '$stats.a', 'x'], True),
        (['=', '$host', '$nodename'], True),
        (['and'], True),
        (['or'], False),
    ],
)
def test_comparisons(query, expected):
    assert is_true(query) is expected


@pytest.mark.parametrize(
    ('query', 'expected'),
    [
        # One argument is left, and a comparison needs two.
        (['>=', '$unknown', 1], False),
        (['not', ['>=', '$unknown', 1]], True),
        (['<', '$free_ram_mb', None, 2000], True),
        (['not', '$unknown'], False),
    ],
)
def test_arguments_without_a_value_are_left_out(query, expected):
    assert is_true(query) is expected


@pytest.mark.parametrize(
    ('query', 'expected'),
    [
        (['not', ['=', 1, 1]], False),
        (['not', ['=', 1, 1], ['=', 1, 2]], True),
        (['not'], False),
        # As an argument the list [false] is true, since it is not empty.
        (['and', ['not', ['=', 1, 1]]], True),
    ],
)
def test_not_gives_a_list(query, expected):
    assert is_true(query) is expected


@pytest.mark.parametrize(
    'query', ['[]', '{}', '0', 'null', ['or', [], ['=', 1, 2]], ['and', []]]
)
def test_an_empty_query_is_true(query):
    assert is_true(query)


@pytest.mark.parametrize(
    'query',
    [
        pytest.param(['<', '$free_ram_mb', '2000'], id='number with text'),
        pytest.param(['xor', 1], id='unknown operator'),
        pytest.param(['and', ['xor', 1]], id='unknown operator inside'),
        pytest.param(['or', ['=', 1, 1], ['xor', 1]], id='one not needed'),
        pytest.param(['!=', 1, 2], id='no operator for unequal'),
        pytest.param([['=', 1, 1]], id='no operator'),
        pytest.param(['in', '$free_ram_mb', [512]], id='list is a query'),
        pytest.param(['=', '$free_ram_mb.x', 1], id='key of a number'),
        pytest.param('1', id='number'),
        pytest.param('"abc"', id='text'),
        pytest.param('["=",1,1', id='not JSON'),
        pytest.param(['or', *([['=', 1, 2]] * 3000)], id='too many parts'),
        pytest.param('[' * 5000 + ']' * 5000, id='nested too deeply'),
        pytest.param(' ' * 20_000, id='too long'),
    ],
)
def test_an_invalid_query_fails_the_request(query):
    with pytest.raises(
        errors.InvalidRequest, match=r'^scheduler_hints\.query'
    ):
        is_true(query)


def test_two_queries_fail_the_request():
    request = {'scheduler_hints': {'query': ['["=", 1, 1]', '["=", 1, 1]']}}
    with pytest.raises(errors.InvalidRequest):
        passing(JsonFilter(), HOSTS, request)


@pytest.mark.parametrize(
    ('query', 'expected'),
    [
        (['=', 1, 2], 'the query is false'),
        (
            ['=', '$free_ram_mb', 512],
            'the query is false, as $free_ram_mb is 1024',
        ),
        (
            ['and', ['=', '$vcpus_used', 1], ['<', '$free_ram_mb', 1]],
            'the query is false, as $vcpus_used is 0, $free_ram_mb is 1024',
        ),
    ],
)
def test_the_reason_gives_the_values_of_the_variables(query, expected):
    assert reason(JsonFilter(), HOSTS, hint(query)) == expected


@pytest.mark.parametrize(
    ('length', 'shown'), [(200, 'x' * 200), (201, f'{"x" * 200}...')]
)
def test_the_reason_shortens_a_value_that_is_long(length, shown):
    document = inventory(a={'hypervisor_type': 'x' * length})
    request = hint(['=', '$hypervisor_type', 'y'])
    expected = f'the query is false, as $hypervisor_type is {shown}'
    assert reason(JsonFilter(), document, request) == expected


def test_numbers_are_compared_without_a_look_at_single_hosts(monkeypatch):
    """Else a query would take as long as there are different numbers."""
    monkeypatch.delattr(json_filter, 'matches')
    document = inventory(
        **{f'h{size}': {'memory_mb': size} for size in (1, 2, 3)}
    )
    query = ['and', ['>=', '$free_ram_mb', 2], ['<', '$free_ram_mb', 3]]
    assert passing(JsonFilter(), document, hint(query)) == ['h2']
