"""Arguments of messages: size and depth first, then types."""

import msgspec
import pytest

from scheduler_service import errors
from scheduler_service.rpc.server import parse_arguments


class Arguments(msgspec.Struct, forbid_unknown_fields=True):
    request: dict
    claim: bool = True


def nested(depth: int) -> list:
    found: list = []
    for _ in range(depth):
        found = [found]
    return found


@pytest.mark.parametrize(('size', 'refused'), [(1000, False), (1001, True)])
def test_arguments_are_refused_when_they_are_larger_than_allowed(
    size, refused
):
    padding = size - len('{"request":{"a":""}}')
    args = {'request': {'a': 'x' * padding}}
    if not refused:
        assert parse_arguments(args, Arguments, 1000)
        return
    with pytest.raises(errors.PayloadTooLarge) as caught:
        parse_arguments(args, Arguments, 1000)
    assert caught.value.facts == {'size': size, 'limit': 1000}


@pytest.mark.parametrize('depth', [40, 5000])
def test_arguments_are_refused_when_nested_too_deeply(depth):
    with pytest.raises(errors.PayloadTooLarge, match='levels'):
        parse_arguments({'request': {'a': nested(depth)}}, Arguments)


def test_many_objects_are_accepted_when_none_is_nested_deeply():
    args = {'request': {'a': [{} for _ in range(100)]}}
    assert parse_arguments(args, Arguments).request == args['request']
