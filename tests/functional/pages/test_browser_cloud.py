"""The cloud, hosts and the overview in a browser, with 10,000 hosts."""

from __future__ import annotations

import contextlib
import pathlib
import re
from collections.abc import Iterator
from typing import Any
from urllib import parse

import pytest

from scheduler_service import errors, texts
from tests.support import browsers
from tests.support.browsers import HOSTILE, Watched
from tests.support.documents import CONTEXT, SMALL
from tests.support.engines import store_all
from tests.support.servers import free_port
from tests.support.services import Service, shared

HOSTS = 10_000
HOSTILE_HOST = f'/hosts/{parse.quote(HOSTILE, safe="")}'
FIT = '/cloud?flavor=vcpus%3D1,memory_mb%3D4096'
PAGES = [
    '/',
    '/cloud',
    '/cloud?by=aggregate&resource=VCPU',
    '/cloud?by=cell',
    '/hosts',
    '/hosts/compute-00007',
    HOSTILE_HOST,
    FIT,
    '/daemons',
    '/pools',
    '/dns-zones',
    '/shadow',
]
# For axe, which takes as long for each of many rows.
FEW = {'/hosts': '/hosts?limit=9'}


def inventory() -> dict[str, Any]:
    """Return many hosts, one with a hostile name that may not be selected."""
    hosts: list[dict[str, Any]] = [
        {'host': f'compute-{n:05}', 'vcpus': 8, 'memory_mb': 8192,
         'local_gb': 100, 'vcpus_used': n % 9,
         'state': 'up' if n % 50 else 'down',
         'status': 'enabled' if n % 33 else 'disabled'}
        for n in range(1, HOSTS)
    ]  # fmt: skip
    hosts.append(
        {'host': HOSTILE, 'vcpus': 8, 'memory_mb': 8192, 'local_gb': 100,
         'status': 'disabled', 'disabled_reason': HOSTILE}
    )  # fmt: skip
    aggregates = [
        {'id': 1, 'name': HOSTILE, 'hosts': [HOSTILE, 'compute-00007'],
         'metadata': {'availability_zone': HOSTILE.replace(',', '')}},
        {'id': 2, 'name': 'north', 'metadata': {'availability_zone': 'north'},
         'hosts': [each['host'] for each in hosts[100:5000]]},
    ]  # fmt: skip
    return {'hosts': hosts, 'aggregates': aggregates}


@pytest.fixture(scope='module')
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder: pathlib.Path = tmp_path_factory.mktemp('cloud')
    port = free_port()
    with shared(folder, '', inventory(), http__bind_port=port) as service:
        for flavor in ({**SMALL, 'name': HOSTILE}, {'vcpus': 999}):
            with contextlib.suppress(errors.NoValidHost):
                service.client.select_destinations(CONTEXT, {'flavor': flavor})
        store_all(service.daemon.scheduler)
        yield service


def test_pages_are_for_all(watched: Watched) -> None:
    """They have all without script, fit a telephone, and satisfy axe."""
    plain = watched.open('/cloud', java_script_enabled=False)
    page = watched.open('/cloud')
    for path in PAGES:
        for each in (plain, page):
            watched.go(each, path)
        # Ages grow between the two.
        first, second = (
            re.sub(r'[\d.]+', '0', browsers.content(each))
            for each in (plain, page)
        )
        assert first == second, path
        assert page.locator('h1').count() == 1, path
        assert browsers.overflow_on_a_telephone(page) <= 0, path
        assert browsers.cut_on_a_telephone(page) == [], path
        if path in FEW:
            watched.go(page, FEW[path])
        assert browsers.serious(page) == [], path


def test_names_with_markup_are_text(watched: Watched) -> None:
    shown = texts.printable(HOSTILE)
    page = watched.open('/')
    for path in ('/cloud', '/cloud?by=aggregate', HOSTILE_HOST,
                 '/hosts?status=disabled&name=*evil*'):  # fmt: skip
        watched.go(page, path)
        assert shown in page.inner_text('main'), path
        assert '\u202e' not in page.content()


@pytest.mark.parametrize('scripted', [True, False])
def test_a_click_on_a_cell_reaches_its_host(
    watched: Watched, scripted: bool
) -> None:
    page = watched.open('/cloud', java_script_enabled=scripted)
    link = page.locator('.cells[href*="%3Anorth"]')
    size = int(link.get_attribute('data-size'))
    columns = int(link.get_attribute('data-columns'))
    link.locator('img').click(
        position={'x': 3 * size + 1, 'y': 2 * size + 1}, force=True
    )
    page.wait_for_url('**/hosts/*')
    # The block begins with the host of number 101.
    assert page.url.endswith(f'/hosts/compute-{101 + 2 * columns + 3:05}')


def test_keys_and_the_pointer_tell_the_host(watched: Watched) -> None:
    from playwright.sync_api import expect

    page = watched.open('/cloud')
    told = page.locator('#under')
    link = page.locator('.cells[href*="%3Anorth"]')
    size = int(link.get_attribute('data-size'))
    link.hover(position={'x': 4 * size + 1, 'y': 1})
    expect(told).to_contain_text('compute-00105: ')
    link.focus()
    for key in ('ArrowRight', 'ArrowRight', 'ArrowLeft', 'ArrowRight'):
        page.keyboard.press(key)
    expect(told).to_have_text('compute-00107: up, enabled, 0 to 10 %')
    page.keyboard.press('Enter')
    page.wait_for_url('**/hosts/compute-00107')


def test_a_reload_keeps_the_place(watched: Watched) -> None:
    page = watched.open('/hosts', viewport={'width': 900, 'height': 500})
    page.clock.install()
    page.reload()
    page.get_by_label('Reload every 10 s').check()
    page.locator('tbody a').nth(40).focus()
    place = page.evaluate('scrollY')
    assert place > 0
    name = page.inner_text(':focus')
    with page.expect_navigation():
        page.clock.fast_forward(10_000)
    assert page.inner_text(':focus') == name
    assert page.evaluate('scrollY') == place
    page.get_by_label('Reload every 10 s').uncheck()


def test_the_scale_counts_all_hosts(watched: Watched) -> None:
    page = watched.open('/cloud?resource=VCPU')
    cells = page.locator('.scale tbody td').all_inner_texts()
    assert sum(int(text.replace(',', '')) for text in cells) == HOSTS
    text = page.inner_text('main')
    assert f'A frame is disabled: {HOSTS // 33 + 1};' in text
    assert f'a cross is down: {(HOSTS - 1) // 50}.' in text


def test_the_cloud_is_whole_on_a_telephone_below_a_scale_of_one_line(
    watched: Watched,
) -> None:
    page = watched.open('/cloud', viewport={'width': 400, 'height': 800})
    scale = page.locator('.scale').bounding_box()
    assert scale['height'] < 80
    for picture in page.locator('.cells').all():
        box = picture.bounding_box()
        assert box['x'] >= 0
        assert box['x'] + box['width'] <= 400


def test_a_flavor_is_chosen_of_the_matrix_by_keyboard_without_script(
    watched: Watched,
) -> None:
    page = watched.open('/cloud', java_script_enabled=False)
    link = page.locator('[aria-label="How many more fit"] tbody a').first
    name = link.inner_text()
    link.focus()
    page.keyboard.press('Enter')
    page.wait_for_url('**/cloud?flavor=**')
    assert page.input_value('[name=flavor]') == 'vcpus=999'
    assert f'Bright cells have room for {name}' in page.inner_text('main')
