"""Values as people read them."""

from __future__ import annotations

import time

import pytest

from scheduler_service.pages import words


@pytest.mark.parametrize(
    ('seconds', 'text'),
    [(-5, '0 s'), (59.9, '59 s'), (60, '1 min'), (7199, '1 h'),
     (172_799, '47 h'), (172_800, '2 days')],
)  # fmt: skip
def test_an_age_has_one_unit(seconds, text):
    assert words.age(seconds) == text


def test_a_time_says_how_long_ago_and_when():
    stamp = time.time() - 3 * 86_400 - 60
    text = words.moments.text(stamp)
    expected = f'<time datetime="{text}" title="{text}">3 days ago</time>'
    assert [words.when(stamp), words.when(text)] == [expected] * 2
    assert words.when(None) == ''


@pytest.mark.parametrize(
    ('value', 'resource', 'text'),
    [(512, 'MEMORY_MB', '0.5 GB'), (4096, 'MEMORY_MB', '4 GB'),
     (134_918_007, 'MEMORY_MB', '129 TB'), (1023, 'DISK_GB', '1,023 GB'),
     (2048, 'DISK_GB', '2 TB'), (12_345, 'VCPU', '12,345')],
)  # fmt: skip
def test_amounts_are_in_large_units(value, resource, text):
    assert words.amount(value, resource) == text


def test_percent_has_its_sign():
    assert [words.percent(n) for n in (9.96, 93.4, 0, None)] == [
        '10.0 %', '93 %', '0 %', '',
    ]  # fmt: skip


def test_a_refusal_names_its_filter():
    for outcome, by, text in (
        ('NoValidHost', 'RamFilter', 'refused by RamFilter'),
        ('NoValidHost', None, 'refused'),
        ('InvalidRequest', '', 'InvalidRequest'),
        ('chosen', None, 'chosen'),
    ):
        assert words.outcome({'outcome': outcome, 'filter': by}) == text
