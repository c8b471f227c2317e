"""Pages have each log line and error, and each alert."""

from __future__ import annotations

import re

import yaml

from scheduler_service import errors
from tests.support import log_lines
from tests.support.pages import literals
from tests.support.paths import ROOT

PAGE = (ROOT / 'doc/source/admin/troubleshooting.rst').read_text()
LITERALS = set(literals(PAGE))
ALERTS = (ROOT / 'doc/source/admin/alerts.rst').read_text()
RULES = ROOT / 'etc/prometheus/scheduler-service.rules.yaml'
# What each degradation is called on the page.
DEGRADED = {
    'database': 'database unreachable ...',
    'locks': 'The database takes too long: ...',
    'broker': 'broker unreachable',
    'replies': 'the broker accepts no replies, ...',
    'queue': '... requests are queued, at most ... are accepted',
    'batches': 'the last batch of requests took ...',
    'listener': 'requests are not received (...)',
    'mirror': 'no requests are accepted before ... were read once',
    'compute-api-database': 'API database of the compute service '
    'unreachable: ...',
    'aggregates': '... left out: ...',
    'placement': 'placement ...',
    'reload': 'the last reload was refused: the files cannot be used, and a '
    'restart would fail',
    'stores': 'other daemons on the topic have another database, and decide a '
    'part of the requests: ...',
}


def terms(page):
    """Return the names of errors or alerts that a page describes."""
    return {
        name
        for line in re.findall(r'(?m)^([A-Z]\w+(?:, [A-Z]\w+)*)\n    \S', page)
        for name in line.split(', ')
    }


def on_page(template):
    """Return a line as the page writes it."""
    return re.sub(r'%[.\d]*[sdgf]', '...', template)


def test_every_log_line_is_on_the_page():
    missing = {
        template: file
        for template, file in log_lines.templates().items()
        if on_page(template) not in LITERALS
    }
    assert missing == {}


def test_every_degradation_is_on_the_page():
    assert set(log_lines.degradations()) == set(DEGRADED)
    assert set(DEGRADED.values()) <= LITERALS


def all_errors():
    """Return the names of the errors, but for those that have others."""
    bases = (errors.SchedulerError, errors.NotFound)
    return {
        one.__name__
        for one in vars(errors).values()
        if isinstance(one, type)
        and issubclass(one, errors.SchedulerError)
        and one not in bases
    }


def test_every_error_is_on_the_page_and_no_other():
    assert all_errors() == terms(PAGE)


def test_every_alert_is_on_its_page_and_no_other():
    (group,) = yaml.safe_load(RULES.read_text())['groups']
    assert {rule['alert'] for rule in group['rules']} == terms(ALERTS)
