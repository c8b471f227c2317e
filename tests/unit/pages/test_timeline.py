"""The strip of a day: what its bars and marks are."""

from __future__ import annotations

from urllib import parse

import pytest

from scheduler_service.pages import timeline
from scheduler_service.store.records.rates import Counts, Rate

NOW = 20_000 * 86_400.0 + 12 * 3600 + 300


def rate(ago, chosen=0, daemon='a', **filters):
    outcomes = {'chosen': chosen, 'NoValidHost': sum(filters.values())}
    return Rate(NOW - 300 - ago, daemon, Counts(outcomes, filters))


def event(name, ago, lasts=None):
    ended = None if lasts is None else NOW - ago + lasts
    return {'event': name, 'who': 'w', 'detail': 'd', 'begun_at': NOW - ago,
            'ended_at': ended}  # fmt: skip


def shapes(rates=(), events=()):
    made = timeline.Timeline(rates, events, NOW)
    return made, [*made.bars(), *(m for _, marks in made.lanes for m in marks)]


def test_bars_of_daemons_add_up_and_are_numbers_a_minute():
    minutes = [rate(3600, 30), rate(3600, 15, 'b'), rate(1800, 15, R=15)]
    made, drawn = shapes(minutes)
    assert made.most == 3.0
    heights = {(each.x, each.name): each.height for each in drawn}
    bar = timeline.WIDTH / 96
    x = [timeline.WIDTH - bar * (1 + n) for n in (4, 2)]
    assert heights == {
        (x[0], 'chosen'): timeline.HEIGHT,
        (x[1], 'chosen'): pytest.approx(timeline.HEIGHT / 3, abs=0.01),
        (x[1], 'refused0'): pytest.approx(timeline.HEIGHT / 3, abs=0.01),
    }
    assert [(at, counts.decisions) for at, _, counts in made.hours] == [
        ('10-04 11:00', 75)
    ]


def test_filters_that_refuse_most_have_a_colour_and_lead_to_their_list():
    many = {f'F{n}': 9 - n for n in range(5)}
    made, drawn = shapes([rate(3600, **many)])
    assert [(name, number) for name, number, _ in made.filters] == [
        ('F0', 9), ('F1', 8), ('F2', 7), ('others', 11),
    ]  # fmt: skip
    assert [each.name for each in drawn] == [f'refused{n}' for n in range(4)]
    query = dict(parse.parse_qsl(parse.urlsplit(drawn[0].link).query))
    assert query == {
        'since': '2024-10-04T11:00:00', 'until': '2024-10-04T11:15:00',
        'outcome': 'refused', 'filter': 'F0',
    }  # fmt: skip
    assert 'filter' not in drawn[3].link
    assert '11:00: 9 refused by F0, 0.6 a minute' in drawn[0].title


def test_events_stand_where_they_were_and_outages_as_long_as_they_took():
    events = [event('reloaded', 43_200), event('broker away', 7200, 3600),
              event('silent', 3600)]  # fmt: skip
    made, drawn = shapes(events=events)
    assert [(name, len(marks)) for name, marks in made.lanes] == [
        ('outages', 2), ('starts and stops', 0), ('reloads', 1),
        ('commands', 0),
    ]  # fmt: skip
    scale = timeline.WIDTH / 86_400
    away, silent, reload = drawn
    assert away.width == round(3600 * scale)
    # One that lasts goes on to the end.
    assert silent.width == away.width
    assert silent.x == pytest.approx(away.x + 3600 * scale, abs=0.2)
    assert 'reloaded, w d' in reload.title


def test_a_mark_of_now_is_whole():
    _, (mark,) = shapes(events=[event('started', -900)])
    assert mark.x + mark.width == timeline.WIDTH


def test_a_day_without_anything_is_empty():
    made, drawn = shapes()
    assert (drawn, made.most, made.filters) == ([], 0.0, [])


def test_a_line_ends_at_now():
    assert timeline.spark([(NOW - 43_200, 50.0), (NOW, 120.0)], NOW) == (
        '50.0,8.0 100.0,0.0'
    )
