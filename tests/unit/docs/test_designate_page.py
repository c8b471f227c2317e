"""The page on Designate names the options and errors of its pool filter."""

import ast
import configparser
import re

from designate_scheduler_service import options
from scheduler_service import plugins
from scheduler_service.rpc.client import EXCHANGE, TOPIC
from tests.support.paths import ROOT
from tests.support.services import new_conf

PAGE = (ROOT / 'doc/source/admin/designate.rst').read_text()
FILTER = ROOT / 'designate_scheduler_service/pool_filter.py'


def snippets():
    """Return the configurations of the page."""
    found = []
    for block in re.findall(r'code-block:: ini\n\n((?: {4}.*\n|\n)+)', PAGE):
        parsed = configparser.ConfigParser(interpolation=None)
        parsed.read_string(re.sub(r'(?m)^ {4}', '', block))
        found.append(parsed)
    return found


def test_the_configurations_are_accepted():
    designate, daemon = snippets()
    known = {option.name for option in options.OPTS}
    assert set(designate[options.GROUP]) <= known
    assert designate['service:central']['scheduler_filters'] == (options.GROUP)
    names = daemon['pool_scheduler']['scheduler_filters'].split(', ')
    assert len(plugins.pool_filters(names)) == len(names)


def test_the_filter_finds_daemons_by_its_defaults():
    defaults = {option.name: option.default for option in options.OPTS}
    daemon = new_conf().scheduler
    for name in ('exchange', 'topic'):
        assert defaults[name] == daemon[name]
    assert (daemon.exchange, daemon.topic) == (EXCHANGE, TOPIC)


def test_every_option_is_described():
    section = PAGE.partition('Options\n===')[2].partition('What is sent')[0]
    described = re.findall(r'(?m)^(``\w+``(?:, ``\w+``)*)$', section)
    listed = set(re.findall(r'\w+', ' '.join(described)))
    assert listed == {option.name for option in options.OPTS}


def test_every_error_is_listed_as_it_is_mapped():
    # Designate, which the filter imports, is not installed here.
    tree = ast.parse(FILTER.read_text())
    (table,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
    )
    mapped = {
        (key.value, value.attr)
        for key, value in zip(table.keys, table.values, strict=True)
    }
    rows = re.findall(r'(?m)^([A-Z]\w+(?:, \w+)*) +(\w+)[ ,].*\d{3}$', PAGE)
    listed = {(name, ours) for names, ours in rows
              for name in names.split(', ')}  # fmt: skip
    assert listed == mapped
