"""Commands on a database with an inventory."""

import contextlib
import json

import pytest

from scheduler_service import errors
from scheduler_service.cmd import manage
from scheduler_service.model import documents
from scheduler_service.store.connection import Store
from tests.support.engines import start_engine, store_all
from tests.support.waiting import LIMIT_S


@pytest.fixture
def run(tmp_path, ready_sqlite, capsys):
    """Give a function that runs a command: (status, output, errors)."""
    config = tmp_path / 'a.conf'
    config.write_text(
        f'[database]\nconnection = {ready_sqlite}\n'
        '[pool_scheduler]\nscheduler_filters = attribute, random\n'
    )

    def command(*args: str) -> tuple[int, str, str]:
        try:
            status = manage.main(['--config-file', str(config), *args])
        except SystemExit as ended:
            # The parser refuses the command line.
            status = int(ended.code or 0)
        told = capsys.readouterr()
        return status, told.out, told.err

    return command


@pytest.fixture
def select(run, tmp_path):
    """Give a function that selects hosts in this process."""

    def ask(flavor, count=1, **more):
        path = tmp_path / 'request.json'
        path.write_text(
            json.dumps({'flavor': flavor, 'num_instances': count, **more})
        )
        return run('select', '--local', '--request', str(path), '-f', 'json')

    return ask


@pytest.fixture
def engine(ready_sqlite, request):
    """Give an engine on the database of the commands, as a daemon has it."""
    store = Store.connect(ready_sqlite)
    made = start_engine(store, **getattr(request, 'param', {}))
    yield made
    made.stop()
    store.dispose()


@pytest.fixture
def decide(engine):
    """Give a function that has hosts selected by a daemon's engine."""

    def ask(flavor, count=1, **more):
        document = {'flavor': flavor, 'num_instances': count, **more}
        request = documents.request(document)
        with contextlib.suppress(errors.SchedulerError):
            engine.select_destinations(request).result(LIMIT_S)
        store_all(engine)

    return ask
