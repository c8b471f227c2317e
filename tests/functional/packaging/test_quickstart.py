"""The quickstart."""

from __future__ import annotations

import subprocess
import sys


def test_quickstart_shows_reasons_when_run(tmp_path):
    told = subprocess.run(
        [sys.executable, '-m', 'scheduler_service.cmd.quickstart',
         '--folder', str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr[-2000:]
    for text in ('gold-global', 'The zone has had this pool before', 'fpga-1',
                 'by cast', 'RamFilter alone keeps out'):  # fmt: skip
        assert text in told.stdout
    assert 'Traceback' not in told.stdout + told.stderr
