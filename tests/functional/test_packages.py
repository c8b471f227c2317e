"""Packages of third parties, and the project's own files."""

from __future__ import annotations

import configparser
import json
import pathlib
import subprocess
import sys
import venv

import pytest
import yaml

from scheduler_service.model import documents

ROOT = pathlib.Path(__file__).parents[2]
ETC = ROOT / 'etc' / 'scheduler_service'
_SCRIPT = """
import json, sys
sys.path[:0] = {paths!r}
from scheduler_service import conf as options, plugins
from scheduler_service.pipeline import HostPipeline, PoolPipeline
from scheduler_service.model import documents
from scheduler_service.columns import Overlay
from scheduler_service.testing import table
import random
conf = options.new_config()
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
choice = hosts.choose(
    overlay, documents.request({{}}).with_ids(), random.Random(1))
parsed = documents.inventory(inventory)
zone = documents.zone({{'name': 'a.', 'attributes': {{'starts_with': 'g'}}}})
pool = pools.choose(None, {{p.id: p for p in parsed.pools}}, zone.with_ids(),
                    random.Random(1))
print(json.dumps([choice.funnel.counts,
                  choice.picked[0].placement.selected.host, pool.pool.name]))
"""


@pytest.mark.packaging
def test_filters_of_a_package_installed_with_pip(tmp_path):
    """By dotted path and by every entry point, in an environment of its own.

    The environment sees this one's libraries behind its own.
    """
    folder = tmp_path / 'venv'
    venv.create(folder, with_pip=True)
    python = folder / 'bin' / 'python'
    package = tmp_path / 'package'
    subprocess.run(
        ['cp', '-r', str(ROOT / 'tests/packages/thirdparty'), str(package)],
        check=True,
    )
    subprocess.run(
        [python, '-m', 'pip', 'install', '--quiet', str(package)], check=True
    )
    config = tmp_path / 'a.conf'
    config.write_text(
        """
[DEFAULT]
scheduler_available_filters = nova.scheduler.filters.all_filters
scheduler_available_filters = thirdparty.filters.all_of_ours
scheduler_default_filters = RamFilter,LoopFilter,EvenHostsFilter
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
            for name, memory in zip('abcde', (1, 1, 1, 1, 0), strict=True)
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
    funnel, host, chosen = json.loads(told.stdout)
    assert [name for name, _, _ in funnel] == [
        'RamFilter', 'EvenHostsFilter', 'LoopFilter',
    ]  # fmt: skip
    assert host == 'c'
    assert chosen == 'gold-2'


def test_the_samples_are_valid_documents():
    documents.inventory(yaml.safe_load((ETC / 'inventory.yaml').read_text()))
    documents.request(yaml.safe_load((ETC / 'request.yaml').read_text()))
    documents.zone(yaml.safe_load((ETC / 'zone.yaml').read_text()))


def test_the_configuration_samples_are_what_the_tools_write(tmp_path):
    for tool, option, name in (
        (['oslo-config-generator', '--config-file',
          str(ETC / 'scheduler-service-config-generator.conf')],
         '--output-file', 'scheduler_service.conf.sample'),
        (['oslopolicy-sample-generator', '--namespace', 'scheduler_service'],
         '--output-file', 'policy.yaml.sample'),
    ):  # fmt: skip
        path = tmp_path / name
        program = pathlib.Path(sys.executable).parent / tool[0]
        subprocess.run(
            [program, *tool[1:], option, str(path)],
            check=True, capture_output=True, cwd=ROOT,
        )  # fmt: skip
        ours = _own_part(path.read_text())
        assert ours == _own_part((ETC / name).read_text()), name


def _own_part(text: str) -> list[str]:
    """Return the lines of our own namespace; others' move with releases."""
    lines = text.splitlines()
    marks = [n for n, line in enumerate(lines) if line.startswith('# From ')]
    if not marks:
        return lines
    own: list[str] = []
    for start, end in zip(marks, [*marks[1:], len(lines)], strict=True):
        if lines[start].strip() == '# From scheduler_service':
            own += [
                line for line in lines[start:end] if not line.startswith('[')
            ]
    return own


def test_the_unit_waits_for_ready_and_gives_time_to_finish():
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(ROOT / 'etc' / 'scheduler-service.service')
    service = unit['Service']
    assert service['Type'] == 'notify'
    assert service['ExecStart'].startswith('/usr/bin/scheduler-service ')
    assert int(service['TimeoutStopSec']) > 30


def test_the_quickstart_ends_well_and_shows_reasons(tmp_path):
    told = subprocess.run(
        [sys.executable, '-m', 'scheduler_service.cmd.quickstart',
         '--folder', str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr[-2000:]
    for text in ('gold-global', 'The zone had this pool before', 'fpga-1',
                 'by cast', 'RamFilter alone keeps out'):  # fmt: skip
        assert text in told.stdout
    assert 'Traceback' not in told.stdout + told.stderr


def test_no_path_of_a_machine_is_in_the_project():
    files = subprocess.run(
        ['git', 'ls-files'], cwd=ROOT, capture_output=True, text=True,
        check=True,
    ).stdout.split()  # fmt: skip
    home = str(ROOT)
    holding = [
        name
        for name in files
        if (ROOT / name).is_file() and home in (ROOT / name).read_text('utf-8')
    ]
    assert holding == []
