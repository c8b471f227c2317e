"""Alert rules and dashboard: promtool takes them, and their metrics exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib

import prometheus_client.parser
import pytest
import yaml

from scheduler_service import errors
from tests.support import requirements
from tests.support.documents import CONTEXT, SMALL
from tests.support.engines import store_all
from tests.support.paths import ROOT
from tests.support.waiting import LIMIT_S, wait_until

RULES = ROOT / 'etc/prometheus/scheduler-service.rules.yaml'
CASES = ROOT / 'tests/functional/monitoring/alerts.yaml'
DASHBOARD = json.loads(
    (ROOT / 'etc/grafana/scheduler-service.json').read_text()
)
PAGE = (ROOT / 'doc/source/admin/http.rst').read_text()
OURS = 'scheduler_service_'
# Metrics of Prometheus itself, and those of a daemon that has not met what
# they count: a counter with labels appears with the first of it.
NOT_OF_A_DAEMON = {'up'}
NOT_MET = {'scheduler_service_database_retries_total'}


@pytest.fixture
def promtool(tmp_path):
    """Give a function that runs promtool in a folder with the rules."""
    requirements.need_program('promtool')
    shutil.copy(RULES, tmp_path)

    def run(*words: str) -> str:
        done = subprocess.run(
            ['promtool', *words], cwd=tmp_path, capture_output=True,
            text=True, timeout=LIMIT_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def alerts():
    """Return the alerts, as the rules have them."""
    (group,) = yaml.safe_load(RULES.read_text())['groups']
    return group['rules']


def panel_expressions():
    """Return the expressions of the dashboard, with values for variables."""
    return [
        re.sub(r'\$(job|zone)', '.+', target['expr']).replace(
            '$__rate_interval', '5m'
        )
        for panel in DASHBOARD['panels']
        for target in panel['targets']
    ]


def page_expressions():
    """Return the expressions that the page shows."""
    return re.findall(r'code-block:: promql\n\n((?: {4}.*\n)+)', PAGE)


def metrics_in(expression):
    """Return the names of the metrics that an expression reads."""
    plain = re.sub(r'"[^"]*"', '', expression)
    return set(
        re.findall(r'\b(?:scheduler_service|process)_\w+|\bup\b', plain)
    )


def test_the_rules_are_valid_and_their_tests_pass(promtool, tmp_path):
    shutil.copy(CASES, tmp_path)
    promtool('check', 'rules', RULES.name)
    assert 'SUCCESS' in promtool('test', 'rules', CASES.name)


def test_every_alert_has_a_test_in_which_it_fires():
    fires = {
        case['alertname']
        for test in yaml.safe_load(CASES.read_text())['tests']
        for case in test['alert_rule_test']
        if case['exp_alerts']
    }
    assert fires == {rule['alert'] for rule in alerts()}


def test_every_expression_of_dashboard_and_page_is_valid(promtool, tmp_path):
    found = panel_expressions() + page_expressions()
    rules = [
        {'record': f'panel:{number}', 'expr': expression}
        for number, expression in enumerate(found)
    ]
    document = {'groups': [{'name': 'dashboard', 'rules': rules}]}
    (tmp_path / 'panels.yaml').write_text(yaml.safe_dump(document))
    told = promtool('check', 'rules', 'panels.yaml')
    assert f'{len(found)} rules found' in told
    assert not [one for one in found if '$' in one]


@pytest.fixture
def scraped(serve_http):
    """What Prometheus reads of a daemon that has had some work."""
    http = serve_http()
    client = http.service.client
    client.select_destinations(CONTEXT, {'flavor': SMALL})
    with pytest.raises(errors.NoValidHost):
        client.select_destinations(
            CONTEXT, {'flavor': {**SMALL, 'memory_mb': 10**6}}
        )
    store_all(http.service.daemon.scheduler)

    def read():
        _, text = http.send('GET', '/metrics')
        parse = prometheus_client.parser.text_string_to_metric_families
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in parse(text)
            for sample in family.samples
        }

    # Claims are counted when they are first asked for.
    read()
    counted = (
        'scheduler_service_claims',
        (('age', '1m'), ('state', 'claimed')),
    )
    return wait_until(lambda: (found := read()).get(counted) and found)


def test_every_metric_that_they_name_exists(scraped):
    expressions = [rule['expr'] for rule in alerts()]
    expressions += panel_expressions() + page_expressions()
    wanted = set().union(*map(metrics_in, expressions))
    assert len(wanted) > 20
    names = {name for name, _ in scraped}
    assert wanted - names - NOT_OF_A_DAEMON == NOT_MET


def test_labels_that_they_select_by_have_these_values(scraped):
    for name, labels in (
        ('stage_duration_seconds_bucket', {'stage': 'wait'}),
        (
            'request_duration_seconds_bucket',
            {
                'verb': 'select_destinations',
                'outcome': 'NoValidHost',
                'le': '0.5',
            },
        ),
        ('refusals_total', {'filter': 'RamFilter', 'cause': 'NoValidHost'}),
        ('claims', {'state': 'claimed', 'age': '1d'}),
        ('claims', {'state': 'claimed', 'age': 'older'}),
        ('resource_free', {'zone': 'north', 'resource_class': 'VCPU'}),
    ):
        assert [
            found
            for full_name, found in scraped
            if full_name == OURS + name
            and labels.items() <= dict(found).items()
        ], (name, labels)


def test_every_metric_is_on_the_page(scraped):
    page = re.sub(r'\{[^}`]*\}', '', PAGE)
    on_page = set(re.findall(r'``(\w+)', page))
    for name in {name for name, _ in scraped if name.startswith(OURS)}:
        short = re.sub('_(bucket|count|sum|created)$', '', name[len(OURS) :])
        assert {short, f'{short}_total'} & on_page, name


def test_use_follows_claims(scraped):
    def total(name, state=None):
        return sum(
            value
            for (full_name, labels), value in scraped.items()
            if full_name == OURS + name
            and ('resource_class', 'VCPU') in labels
        )

    assert total('resource_used') == SMALL['vcpus']
    assert total('resource_capacity') > total('resource_free') > 0
    up = [scraped[f'{OURS}{name}_up', ()] for name in ('database', 'broker')]
    assert up == [1, 1]


def test_every_alert_leads_to_its_entry_on_a_page_of_the_wheel():
    settings = tomllib.loads((ROOT / 'pyproject.toml').read_text())
    installed = settings['tool']['setuptools']['data-files']
    for rule in alerts():
        _, _, place = rule['annotations']['runbook_url'].partition('/usr/')
        folder, _, name = place.rpartition('/')
        (pattern,) = installed[folder]
        (page,) = (path for path in ROOT.glob(pattern) if path.name == name)
        assert rule['alert'] in page.read_text()


def test_panels_have_one_unit_and_bounded_series():
    zones = [each['name'] for each in DASHBOARD['templating']['list']]
    assert 'zone' in zones
    for panel in DASHBOARD['panels']:
        units = {panel['fieldConfig']['defaults']['unit']}
        assert len(units) == 1
        for target in panel['targets']:
            expression = target['expr']
            assert '/ 1e9' not in expression
            if re.search(r'by \((zone|outcome|filter|stage)', expression):
                assert re.match(r'(topk|bottomk)\(', expression), panel[
                    'title'
                ]
    bounds = {
        panel['title']
        for panel in DASHBOARD['panels']
        if 'thresholds' in panel['fieldConfig']['defaults']
    }
    assert len(bounds) >= 5
