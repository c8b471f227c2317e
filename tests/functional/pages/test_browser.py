"""Pages as people see them, in a real browser.

The policy of the pages is in force in all of these tests.
"""

from __future__ import annotations

import pathlib
from typing import Any
from urllib import parse

import pytest

from scheduler_service import texts
from scheduler_service.pages import words
from scheduler_service.store.connection import Store
from tests.support.browsers import (
    HOSTILE,
    LONG,
    Watched,
    content,
    cut_on_a_telephone,
    overflow_on_a_telephone,
    serious,
)
from tests.support.databases import ready_database
from tests.support.servers import free_port
from tests.support.services import Service, shared, started

HOSTILE_PATH = f'/decisions/{parse.quote(HOSTILE, safe="")}'
TRIED = parse.urlencode({'flavor': 'vcpus=1,memory_mb=512', 'host': HOSTILE})
# Each kind of page, and the status of each.
PAGES = {
    '/decisions': 200,
    '/decisions/req-chosen': 200,
    '/decisions/req-refused': 200,
    f'/decisions/req-refused?{parse.urlencode({"host": HOSTILE})}': 200,
    '/decisions/req-long': 200,
    '/decisions/req-zone': 200,
    HOSTILE_PATH: 200,
    '/try': 200,
    f'/try?{TRIED}': 200,
    f'/try?{parse.urlencode({"request": "flavor: 1"})}': 400,
    '/decisions?since=soon': 400,
    '/decisions/req-chosem': 404,
}


def test_pages_are_for_all(watched: Watched) -> None:
    """They have all without script, fit a telephone, and satisfy axe."""
    plain = watched.open('/', java_script_enabled=False)
    page = watched.open('/')
    for path, status in PAGES.items():
        for each in (plain, page):
            watched.go(each, path, status)
        assert content(plain) == content(page), path
        assert page.locator('h1').count() == 1, path
        assert serious(page) == [], path
        assert overflow_on_a_telephone(page) <= 0, path
        assert cut_on_a_telephone(page) == [], path
        grounds = set()
        for scheme in ('light', 'dark'):
            page.emulate_media(color_scheme=scheme)
            grounds.add(
                page.evaluate(
                    'getComputedStyle(document.body).backgroundColor'
                )
            )
        assert len(grounds) == 2


def test_names_with_markup_are_text(watched: Watched) -> None:
    shown = texts.printable(HOSTILE)
    page = watched.open('/')
    for path in ('/decisions', HOSTILE_PATH, f'/try?{TRIED}',
                 '/decisions/req-chosen'):  # fmt: skip
        watched.go(page, path)
        assert shown in page.inner_text('main'), path
        assert page.locator('img').count() == 0
        assert '\u202e' not in page.content()
        assert '49' not in page.title()


def test_a_long_reason_is_folded_and_opens(watched: Watched) -> None:
    page = watched.open('/decisions/req-long', java_script_enabled=False)
    folded = page.locator('dd details')
    before = page.locator('dd').first.bounding_box()['height']
    folded.locator('summary').click()
    assert LONG[:500] in folded.inner_text()
    assert page.locator('dd').first.bounding_box()['height'] > before


def test_a_browser_asks_for_the_token(
    browser: Any, tmp_path: pathlib.Path
) -> None:
    (tmp_path / 'token').write_text('s3cret\n')
    port, token = free_port(), str(tmp_path / 'token')
    with shared(tmp_path, http__bind_port=port, http__token_file=token):
        pages = Watched(browser, f'http://127.0.0.1:{port}')
        login = {'username': 'anybody', 'password': 's3cret'}
        page = pages.open('/cloud', http_credentials=login)
        page.locator('.cells img').first.click(position={'x': 1, 'y': 1})
        page.wait_for_url('**/hosts/*')
        assert 'Capacity' in page.inner_text('main')
        pages.close()
        assert pages.complaints == []


def test_open_pages_go_on_with_the_next_daemon(
    browser: Any, tmp_path: pathlib.Path
) -> None:
    port = free_port()
    pages = Watched(browser, f'http://127.0.0.1:{port}')
    store = Store.connect(ready_database(f'sqlite:///{tmp_path}/'))
    before = started(store, http__bind_port=port)
    page, tried = pages.open('/cloud'), pages.open(f'/try?{TRIED}', 404)
    before.stop()
    after = started(store, http__bind_port=port)
    try:
        page.locator('.cells img').first.click(position={'x': 1, 'y': 1})
        page.wait_for_url('**/hosts/*')
        assert 'Capacity' in page.inner_text('main')
        tried.fill('[name=host]', '')
        tried.click('form button')
        tried.wait_for_url('**&host=')
        assert 'Chosen, as of' in tried.inner_text('main')
    finally:
        pages.close()
        after.stop()
        store.dispose()


def test_lists_have_what_the_command_prints(
    watched: Watched, daemon: Service
) -> None:
    page = watched.open('/decisions')
    rows = page.locator('tbody tr').all()
    shown = [row.locator('th, td').all_inner_texts() for row in rows]
    listed = daemon.daemon.scheduler.decisions(20)
    times = page.locator('tbody time').all()
    assert [each.get_attribute('title') for each in times] == [
        each['created_at'] for each in listed
    ]
    for row, each in zip(shown, listed, strict=True):
        assert row[1] == words.outcome(each)
        assert row[3] == texts.cell(each['request_id'])
        assert row[6:] == [
            texts.cell(each[name]) for name in ('hosts', 'instances')
        ]
    asked = dict(zip([row[3] for row in shown], shown, strict=True))
    assert asked['req-chosen'][2].startswith('2 x flavor')
    assert asked['req-refused'][2].startswith('1 x flavor')
    assert asked['req-zone'][2] == 'DNS zone example.org.'


def test_a_link_opens_each_row_on_a_telephone(watched: Watched) -> None:
    page = watched.open('/decisions', viewport={'width': 400, 'height': 800})
    for row in page.locator('tbody tr').all():
        box = row.locator('a').first.bounding_box()
        assert box['x'] >= 0
        assert box['x'] + box['width'] <= 400


def test_the_bars_of_a_funnel_are_its_numbers(
    watched: Watched, daemon: Service
) -> None:
    page = watched.open('/decisions/req-refused')
    (shown,) = daemon.daemon.scheduler.decision('req-refused')
    facts = shown['error']['facts']
    for step, row in zip(
        facts['funnel'], page.locator('[aria-label=Funnel] tbody tr').all(),
        strict=True,
    ):  # fmt: skip
        width = float(row.locator('.part').get_attribute('width'))
        share = 100 * step['end'] / step['start']
        assert width == pytest.approx(share, 0.1)
        text = row.locator('td').nth(0).inner_text()
        assert text.strip() == words.percent(share)
        assert row.locator('td').nth(1).inner_text() == str(step['end'])
    sentence = texts.printable(shown['error']['message'])
    assert page.inner_text('.sentence') == sentence
    assert 'RamFilter' in page.inner_text('[aria-label="Nearest misses"]')


def test_a_refusal_is_found_and_asked_about_by_keyboard_alone(
    watched: Watched,
) -> None:
    page = watched.open('/decisions')
    press = page.keyboard.press

    def focus(locator: Any) -> None:
        """Move on with Tab until an element has the focus."""
        for _ in range(60):
            if locator.evaluate('one => one === document.activeElement'):
                return
            press('Tab')
        raise AssertionError(f'{locator} is not reached')

    press('Tab')
    assert page.inner_text(':focus') == 'Skip to the content'
    focus(page.locator('select[name=outcome]'))
    page.keyboard.type('NoValidHost')
    press('Enter')
    focus(page.locator('form button'))
    press('Enter')
    page.wait_for_url('**outcome=NoValidHost**')
    # Down the rows of the table, to the refusal of the longest request.
    focus(page.locator('tbody tr a').first)
    press('ArrowDown')
    press('ArrowDown')
    assert page.inner_text(':focus') == 'req-refused'
    press('Enter')
    page.wait_for_url('**/decisions/req-refused')
    focus(page.locator('input[name=host]'))
    page.keyboard.type('compute-1')
    focus(page.get_by_text('Check the host as it is now'))
    press('Enter')
    page.wait_for_url('**host=compute-1')
    text = page.inner_text('main')
    assert 'not as it was decided' in text
    assert 'rejects it' in page.inner_text('[aria-label=compute-1]')
    focus(page.get_by_text('Try it again'))
    press('Enter')
    page.wait_for_url('**/try?request=**')
    assert 'Refused, as of' in page.inner_text('main')


def test_a_form_asks_and_claims_nothing(
    watched: Watched, daemon: Service
) -> None:
    for scripted in (True, False):
        page = watched.open('/try', java_script_enabled=scripted)
        page.fill('[name=flavor]', 'vcpus=1,memory_mb=256')
        page.fill('[name=extra_specs]', 'hw:cpu_policy=shared')
        page.fill('[name=num_instances]', '2')
        page.fill('[name=host]', 'compute-1')
        page.click('form button')
        page.wait_for_url('**flavor=vcpus**')
        assert 'Chosen, as of' in page.inner_text('main')
        chosen = page.locator('[aria-label="Chosen hosts"] tbody tr')
        assert chosen.count() == 2
        # Its address is the question.
        watched.go(page, f'/try?{page.url.partition("?")[2]}')
        assert page.input_value('[name=num_instances]') == '2'
    with daemon.store.reading() as conn:
        claimed = conn.exec_driver_sql('SELECT count(*) FROM instances')
        assert claimed.scalar() == 2
