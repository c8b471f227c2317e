"""AggregateMap: what requests look up, in bounds."""

from typing import Any

from scheduler_service.model.inventory import AggregateMap


def test_answer_is_kept_unless_the_question_is_very_long():
    aggregates = AggregateMap()
    asked: list[Any] = []

    def look_up(key: Any) -> str:
        def work() -> str:
            asked.append(key)
            return str(len(asked))

        found: str = aggregates.memoize(key, work)
        return found

    short, long = frozenset({'a'}), frozenset(map(str, range(2000)))
    assert [look_up(short), look_up(short)] == ['1', '1']
    assert [look_up(long), look_up(long)] == ['2', '3']


def test_the_oldest_answer_is_dropped_when_there_are_too_many():
    aggregates = AggregateMap()
    for key in range(513):
        aggregates.memoize(key, lambda: 'first')
    assert aggregates.memoize(512, lambda: 'second') == 'first'
    assert aggregates.memoize(0, lambda: 'second') == 'second'
