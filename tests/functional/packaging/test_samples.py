"""The files that the project ships."""

from __future__ import annotations

import configparser
import subprocess
from functools import partial

import yaml
from oslo_config import generator as config_generator
from oslo_config.cfg import ConfigOpts
from oslo_policy import generator as policy_generator

from scheduler_service.cmd import adapters
from scheduler_service.model import documents
from tests.support.paths import ROOT

ETC = ROOT / 'etc' / 'scheduler_service'


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


def test_sample_documents_are_valid_when_parsed():
    documents.inventory(yaml.safe_load((ETC / 'inventory.yaml').read_text()))
    documents.request(yaml.safe_load((ETC / 'request.yaml').read_text()))
    documents.zone(yaml.safe_load((ETC / 'zone.yaml').read_text()))


def test_configuration_samples_are_current_when_generated_again(tmp_path):
    for generate, words, name in (
        (config_generator.main, ['--config-file',
         str(ETC / 'scheduler-service-config-generator.conf')],
         'scheduler_service.conf.sample'),
        (partial(policy_generator.generate_sample, conf=ConfigOpts()),
         ['--namespace', 'scheduler_service'], 'policy.yaml.sample'),
    ):  # fmt: skip
        path = tmp_path / name
        generate([*words, '--output-file', str(path)])
        ours = _own_part(path.read_text())
        assert ours == _own_part((ETC / name).read_text()), name


def test_the_sample_has_each_line_of_a_help_text_whole():
    sample = (ETC / 'scheduler_service.conf.sample').read_text()
    lines = [
        line
        for _, options in adapters.list_opts()
        for option in options
        # Those of libraries are wrapped by the generator.
        if '\n' in option.help
        for line in option.help.splitlines()
    ]
    assert [line for line in lines if f'# {line}' not in sample] == []
    assert len(lines) > 500


def test_systemd_unit_waits_for_ready_and_gives_time_to_stop():
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(ROOT / 'etc' / 'scheduler-service.service')
    service = unit['Service']
    assert service['Type'] == 'notify'
    assert service['ExecStart'].startswith('/usr/bin/scheduler-service ')
    assert int(service['TimeoutStopSec']) > 30


def test_folders_have_the_mode_that_the_unit_and_tmpfiles_give_them():
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(ROOT / 'etc' / 'scheduler-service.service')
    # systemd sets the mode anew at each start of the unit.
    kept = {
        key: unit['Service'].get(f'{key}Mode')
        for key in unit['Service']
        if key.endswith('Directory')
    }
    lines = (ROOT / 'etc/tmpfiles.d/scheduler-service.conf').read_text()
    modes = {line.split()[2] for line in lines.splitlines() if line[0] == 'd'}
    assert len(kept) == 5
    assert set(kept.values()) == modes == {'0750'}


def test_the_drop_in_makes_the_unit_reload_by_notification():
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(ROOT / 'etc' / 'scheduler-service.service.d' / 'reload.conf')
    # Before 253 systemd has no such type, and needs the unit's ExecReload.
    assert dict(unit['Service']) == {'Type': 'notify-reload'}


def test_no_file_holds_the_path_of_the_checkout():
    files = subprocess.run(
        ['git', 'ls-files'], cwd=ROOT, capture_output=True, text=True,
        check=True,
    ).stdout.split()  # fmt: skip
    home = str(ROOT).encode()
    holding = [
        name
        for name in files
        if (ROOT / name).is_file() and home in (ROOT / name).read_bytes()
    ]
    assert holding == []
