"""Queries are bounded, and what they cannot do is a named refusal."""

from __future__ import annotations

import json

import pytest

from scheduler_service import errors
from scheduler_service.filters.hosts import JsonFilter
from scheduler_service.testing import verdicts

HOSTS = {'hosts': [{'host': 'a', 'memory_mb': 1024, 'stats': {'a': 'x'}}]}


def ask(query):
    text = query if isinstance(query, str) else json.dumps(query)
    request = {'scheduler_hints': {'query': text}}
    return verdicts(JsonFilter(), HOSTS, request)['a']


@pytest.mark.parametrize(
    ('query', 'expected'),
    [
        (['>=', '$free_ram_mb', 1024], True),
        (['=', '$free_ram_mb', '1024'], False),
        (['in', '$free_ram_mb', 512, 1024], True),
        (['not', ['>=', '$nope', 1]], True),
        (['not'], False),
        (['not', ['=', 1, 1], ['=', 1, 2]], True),
        (['and', ['not', ['=', 1, 1]]], True),
        (['<', 1, 2, 3], True),
        (['<', '$free_ram_mb', None, 2000], True),
        (['or', [], ['=', 1, 2]], True),
        (['=', '$stats.a', 'x'], True),
        ('[]', True),
        ('{}', True),
        ('0', True),
    ],
)
def test_query(query, expected):
    assert ask(query) is expected


@pytest.mark.parametrize(
    'query',
    [
        ['<', '$free_ram_mb', '2000'],
        ['xor', 1],
        [['=', 1, 1]],
        ['=', '$free_ram_mb.x', 1],
        '1',
        '"abc"',
        '["=",1,1',
        ['or', *([['=', 1, 2]] * 3000)],
        '[' * 5000 + ']' * 5000,
        ' ' * 20_000,
    ],
)
def test_a_query_that_cannot_be_is_refused(query):
    with pytest.raises(errors.FilterFault, match='JsonFilter failed'):
        ask(query)
