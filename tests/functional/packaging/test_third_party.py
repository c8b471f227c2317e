"""Plug-ins of a package that is installed with pip."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from tests.support import wheels
from tests.support.paths import ROOT

pytestmark = pytest.mark.slow

_SCRIPT = """
import json, sys
sys.path[:0] = {paths!r}
from scheduler_service import conf as options, plugins
from scheduler_service.cmd import adapters
from scheduler_service.pipeline import HostPipeline, PoolPipeline
from scheduler_service.model import documents
from scheduler_service.columns import Overlay
from scheduler_service.testing import table
import random
conf = adapters.new_config()
options.parse(conf, ['--config-file', sys.argv[1]])
group = conf.filter_scheduler
settings = options.settings(conf)
hosts = HostPipeline(
    plugins.host_filters(group.available_filters, group.enabled_filters),
    plugins.host_weighers(group.weight_classes), settings)
pools = PoolPipeline(
    plugins.pool_filters(conf.pool_scheduler.scheduler_filters), settings)
inventory = json.loads(sys.argv[2])
overlay = Overlay(table(inventory))
request = documents.request({{'scheduler_hints': {{'rack': 'r1'}}}})
choice = hosts.select(overlay, request.with_ids(), random.Random(1))
parsed = documents.inventory(inventory)
zone = documents.zone({{'name': 'a.', 'attributes': {{'starts_with': 'g'}}}})
pool = pools.choose(None, {{p.id: p for p in parsed.pools}}, zone.with_ids(),
                    random.Random(1))
host = choice.assignments[0].placement.selected.host
(stage,) = plugins.stages(['addresses after=claim'])
print(json.dumps([choice.reasons['funnel'], host, pool.pool.name,
                  stage.kind.__name__]))
"""


def test_plugins_are_found_when_their_package_is_installed(tmp_path):
    """By dotted path and by every entry point, in an environment of its own.

    The environment sees this one's libraries behind its own.
    """
    package = tmp_path / 'package'
    shutil.copytree(ROOT / 'tests/packages/thirdparty', package)
    wheel = wheels.build(package, tmp_path / 'built')
    python = wheels.install(wheel, ROOT, tmp_path / 'venv') / 'python'
    config = tmp_path / 'a.conf'
    config.write_text(
        """
[DEFAULT]
scheduler_available_filters = nova.scheduler.filters.all_filters
scheduler_available_filters = thirdparty.filters.all_of_ours
scheduler_default_filters = RamFilter,LoopFilter,RackFilter,EvenHostsFilter
[filter_scheduler]
weight_classes = LastHostWeigher
[service:central]
scheduler_filters = my_custom_filter, our_custom_filter
"""
    )
    pool = '11111111-0000-4000-8000-00000000000'
    inventory = {
        'hosts': [
            {'host': name, 'memory_mb': memory}
            for name, memory in (
                ('r1-a', 1),
                ('r1-b', 1),
                ('r1-c', 1),
                ('r1-d', 1),
                ('r1-e', 0),
                ('r2-f', 1),
                ('r2-g', 1),
            )
        ],
        'pools': [
            {'id': f'{pool}{n}', 'name': name}
            for n, name in enumerate(['gold-1', 'gold-2', 'silver'])
        ],
    }
    paths = [str(ROOT), *(p for p in sys.path if 'site-packages' in p)]
    told = subprocess.run(
        [python, '-c', _SCRIPT.format(paths=paths), str(config),
         json.dumps(inventory)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr[-2000:]
    funnel, host, chosen, stage = json.loads(told.stdout)
    assert [name for name, _, _ in funnel] == [
        'RamFilter', 'RackFilter', 'EvenHostsFilter', 'LoopFilter',
    ]  # fmt: skip
    assert host == 'r1-c'
    assert chosen == 'gold-2'
    assert stage == 'AddressStage'
