"""Commands on a database with an inventory."""

from __future__ import annotations

import pytest
import yaml

from scheduler_service.cmd import manage
from tests.support.documents import INVENTORY


@pytest.fixture
def run(tmp_path, capsys):
    """Give a function that runs a command: (status, output, errors)."""
    config = tmp_path / 'a.conf'
    config.write_text(
        f'[database]\nconnection = sqlite:///{tmp_path}/a.sqlite\n'
        '[pool_scheduler]\nscheduler_filters = attribute, random\n'
    )
    (tmp_path / 'inventory.yaml').write_text(yaml.safe_dump(INVENTORY))

    def command(*args: str) -> tuple[int, str, str]:
        try:
            status = manage.main(['--config-file', str(config), *args])
        except SystemExit as ended:
            # The parser refuses the command line.
            status = int(ended.code or 0)
        told = capsys.readouterr()
        return status, told.out, told.err

    command('db', 'sync')
    command('inventory', 'import', str(tmp_path / 'inventory.yaml'))
    return command
