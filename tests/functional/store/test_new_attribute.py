"""One line and a migration are all that a new attribute of hosts takes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from tests.support.new_attribute import COLUMNS, FIELDS
from tests.support.paths import ROOT

BEFORE = '    hypervisor_type: '


def test_a_line_of_the_document_adds_an_attribute(make_store, tmp_path):
    package = tmp_path / 'scheduler_service'
    shutil.copytree(
        ROOT / 'scheduler_service',
        package,
        ignore=shutil.ignore_patterns('__pycache__'),
    )
    module = package / 'model/inventory.py'
    source = module.read_text()
    assert source.count(BEFORE) == 1
    module.write_text(source.replace(BEFORE, FIELDS + BEFORE))
    store = make_store('sqlite')
    with store.engine.begin() as conn:
        for column in COLUMNS:
            conn.exec_driver_sql(f'ALTER TABLE hosts ADD COLUMN {column}')
    url = store.engine.url.render_as_string()
    # The working directory comes first: the package there is imported.
    done = subprocess.run(
        [sys.executable, '-m', 'tests.support.new_attribute', url],
        cwd=tmp_path,
        env={**os.environ, 'PYTHONPATH': str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, '')
