"""A daemon with pages that has decided, and a browser that looks at them."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shutil
from collections.abc import Iterator
from typing import Any

from scheduler_service import errors
from tests.support import requirements
from tests.support.documents import CONTEXT, INVENTORY, SMALL
from tests.support.servers import free_port
from tests.support.services import Service, shared
from tests.support.waiting import LIMIT_S, wait_until

# Markup, an override of direction, control characters, and what ends strings.
HOSTILE = '<img src=x onerror=alert(1)>"\'&\u202eevil\x1b[2J{{7*7}}'
LONG = 'y' * 10_000
_EXPECTED = re.compile(r'the server responded with a status of (4|503)')
REQUESTS: list[dict[str, Any]] = [
    {'request_id': 'req-chosen', 'num_instances': 2},
    {'request_id': 'req-refused', 'flavor': {**SMALL, 'memory_mb': 10**7}},
    {'request_id': HOSTILE, 'project_id': HOSTILE,
     'flavor': {**SMALL, 'name': HOSTILE}, 'availability_zone': HOSTILE,
     'scheduler_hints': {HOSTILE: HOSTILE}},
    {'request_id': 'req-long', 'availability_zone': 'nowhere',
     'scheduler_hints': {'query': f'["=", "$host", "{LONG}"]'}},
]  # fmt: skip


@contextlib.contextmanager
def daemon(folder: pathlib.Path) -> Iterator[Service]:
    """Run a daemon that chose hosts and refused, for hostile callers too."""
    hostile = {'host': HOSTILE, 'vcpus': 8, 'memory_mb': 65536,
               'local_gb': 100}  # fmt: skip
    inventory = {**INVENTORY, 'hosts': [*INVENTORY['hosts'], hostile]}
    port = free_port()
    with shared(folder, '', inventory, http__bind_port=port) as service:
        for request in REQUESTS:
            with contextlib.suppress(errors.NoValidHost):
                service.client.select_destinations(
                    CONTEXT, {'flavor': SMALL, **request}
                )
        service.client.schedule_zone(
            CONTEXT, {'request_id': 'req-zone', 'name': 'example.org.'}
        )
        scheduler = service.daemon.scheduler
        wait_until(lambda: len(scheduler.decisions(9)) == len(REQUESTS) + 1)
        yield service


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """Run the distribution's Chromium."""
    requirements.need_program('chromium')
    requirements.need_library('playwright')
    from playwright.sync_api import sync_playwright

    with sync_playwright() as library:
        browser = library.chromium.launch(
            executable_path=shutil.which('chromium'),
            args=['--no-sandbox'] if os.geteuid() == 0 else [],
        )
        yield browser
        browser.close()


class Watched:
    """Pages of a browser, and all that it complains of.

    It also says on its console what the policy of a page forbids.
    """

    def __init__(self, browser: Any, address: str) -> None:
        self._browser = browser
        self._address = address
        self._contexts: list[Any] = []
        self.complaints: list[str] = []

    def open(self, path: str, status: int = 200, **how: Any) -> Any:
        """Open a page; return it.

        :param how: options of Playwright's contexts
        """
        context = self._browser.new_context(**how)
        context.set_default_timeout(1000 * LIMIT_S)
        self._contexts.append(context)
        page = context.new_page()
        page.on('console', lambda message: self._note(message.text))
        page.on('pageerror', lambda fault: self._note(str(fault)))
        page.on('dialog', lambda dialog: self._note(dialog.message))
        self.go(page, path, status)
        return page

    def go(self, page: Any, path: str, status: int = 200) -> None:
        """Open another page in place of one: that is a tenth of the work."""
        assert page.goto(f'{self._address}{path}').status == status

    def _note(self, text: str) -> None:
        # It tells of each status that says that there is no such thing, or
        # not now.
        if not _EXPECTED.search(text):
            self.complaints.append(text)

    def close(self) -> None:
        for context in self._contexts:
            context.close()


def content(page: Any) -> str:
    """Return the text of a page, but for times and ages."""
    page.evaluate(
        "document.querySelectorAll('main time').forEach(e => e.remove())"
    )
    return str(page.inner_text('main')).replace(
        page.inner_text('footer time'), ''
    )


def overflow_on_a_telephone(page: Any) -> int:
    """Return by how many pixels a page is wider than such a window."""
    overflow = _on_a_telephone(
        page,
        'document.documentElement.scrollWidth'
        ' - document.documentElement.clientWidth',
    )
    return int(overflow)


def cut_on_a_telephone(page: Any) -> Any:
    """Return the tables of a page of which a part is outside such a window."""
    return _on_a_telephone(
        page,
        "[...document.querySelectorAll('.wide')]"
        '.filter(each => each.scrollWidth > each.clientWidth)'
        '.map(each => each.ariaLabel)',
    )


def _on_a_telephone(page: Any, expression: str) -> Any:
    before = page.viewport_size
    page.set_viewport_size({'width': 400, 'height': 800})
    result = page.evaluate(expression)
    page.set_viewport_size(before)
    return result


def serious(page: Any) -> list[tuple[str, str, str]]:
    """Return what axe finds serious by day and by night.

    :return: the scheme of colours, the rule, and where
    """
    requirements.need_library('axe_playwright_python')
    from axe_playwright_python.sync_playwright import Axe

    page.emulate_media(color_scheme='light')
    told = {'light': Axe().run(page).response}
    # What depends on colours is looked for in both schemes. The page has axe
    # by now.
    page.emulate_media(color_scheme='dark')
    told['dark'] = page.evaluate("axe.run({runOnly: ['color-contrast']})")
    return [
        (scheme, each['id'], each['nodes'][0]['html'])
        for scheme, response in told.items()
        for each in response['violations']
        if each['impact'] in ('serious', 'critical')
    ]
