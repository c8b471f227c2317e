"""Every command line of the pages that have commands, run in their order."""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import time
import uuid

import pytest
import sqlalchemy as sa
import yaml

from scheduler_service import conf as options
from scheduler_service import errors
from scheduler_service.cmd import adapters, manage, status
from scheduler_service.cmd.connections import registration
from scheduler_service.model import documents
from scheduler_service.store import schema
from scheduler_service.store.connection import Store
from scheduler_service.store.records import daemons
from tests.support import page_commands
from tests.support.databases import migrated_database, new_database
from tests.support.engines import start_engine
from tests.support.page_commands import RUN_BY, asks_a_daemon, page
from tests.support.paths import ROOT
from tests.support.waiting import LIMIT_S

PROGRAMS = {'scheduler-manage': manage.main, 'scheduler-status': status.main}
# Commands that end with 1 where they found what they look for.
FOUND = (
    'inventory diff', 'configuration diff', 'history host',
    'history instance', 'history daemons', 'replay --since',
)  # fmt: skip
HERE = 'tests/functional/docs/test_commands_page.py'
PAGES = [name for name, where in RUN_BY.items() if where == HERE]
# Changes, which print nothing.
SILENT = (
    'aggregate add-host', 'aggregate delete', 'aggregate remove-host',
    'aggregate set',
)  # fmt: skip
# Of a request to the compute service's interface.
REQUEST_ID = 'req-794ccc2c-d751-44fe-b57f-8894c9f5c842'


CONFIG = ['--config-file', 'scheduler_service.conf']


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder in which the pages' files are."""
    for name in ('inventory.yaml', 'request.yaml', 'packing.conf'):
        shutil.copy(ROOT / 'etc/scheduler_service' / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize('name', PAGES)
def test_every_line_works(name, folder, capsys):
    lines = page_commands.lines(page(name))
    new = new_database if 'db sync' in lines[0] else migrated_database
    (folder / 'scheduler_service.conf').write_text(
        '[DEFAULT]\ntransport_url = inproc://\n'
        f'[database]\nconnection = {new(f"sqlite:///{folder}/")}\n'
    )
    for text in page_commands.of_language(page(name), 'yaml'):
        # Its first line names the file.
        if (file := re.match(r'# (\S+\.yaml)\n', text)) is not None:
            (folder / file[1]).write_text(text)
    for text in page_commands.of_language(page(name), 'text'):
        if text.startswith('arrival,'):
            (folder / 'trace.csv').write_text(text)
    ran = 0
    for line in lines:
        if line.startswith('scheduler-manage') and asks_a_daemon(line):
            continue
        if REQUEST_ID in line:
            decide(folder)
        if re.search('configuration (diff|log)', line):
            change_configuration(folder)
        program, *words = shlex.split(line, comments=True)
        given = [] if '--config-file' in words else CONFIG
        exit_status = PROGRAMS[program]([*given, *words])
        printed = capsys.readouterr()
        allowed = (0, 1) if ' '.join(words[:2]) in FOUND else (0,)
        assert exit_status in allowed, (line, printed.err)
        silent = ' '.join(words[:2]) in SILENT
        assert bool(printed.out) != silent, line
        ran += 1
    assert ran


def change_configuration(folder):
    """Record that a daemon changed its configuration this day."""
    conf, store = opened()
    entry = registration(conf, 'one', uuid.uuid4().hex)
    changed = {
        **entry.document,
        'scheduler': {'batch_size': {'value': 7, 'source': 'x'}},
    }
    for number, (document, age_s) in enumerate(
        ((entry.document, 172_800), (changed, 300))
    ):
        row = entry._replace(document=document, fingerprint=str(number))
        store.write(lambda writer, row=row: daemons.register(writer, row))
        with store.engine.begin() as conn:
            conn.execute(
                sa.update(schema.configurations)
                .where(schema.configurations.c.fingerprint == str(number))
                .values(created_at=time.time() - age_s)
            )
    store.dispose()


def decide(folder):
    """Have a request with the pages' request id decided and recorded."""
    document = yaml.safe_load((folder / 'request.yaml').read_text())
    request = documents.request({**document, 'request_id': REQUEST_ID})
    _, store = opened()
    engine = start_engine(store)
    # There may be no hosts: a refusal is a decision, too.
    with contextlib.suppress(errors.NoValidHost):
        engine.select_destinations(request).result(LIMIT_S)
    engine.stop()
    store.dispose()


def opened():
    """Return the pages' configuration, and its store."""
    conf = adapters.new_config()
    options.parse(conf, CONFIG)
    return conf, Store.connect(conf.database.connection)
