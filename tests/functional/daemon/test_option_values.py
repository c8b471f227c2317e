"""Every option, empty, negative, huge and of another type.

A value is refused by the name of its option, or a daemon starts with it, and
another one takes it at a reload and goes on deciding.
"""

import contextlib
import uuid

import pytest
from oslo_config import cfg

from scheduler_service import errors
from scheduler_service.cmd import adapters
from scheduler_service.cmd.daemon import checked
from scheduler_service.conf import effective
from scheduler_service.store import version
from tests.support.documents import CONTEXT, SMALL
from tests.support.services import shared

EMPTY, NEGATIVE, HUGE, WORD = '', '-1', '9' * 25, 'word'
# Of these any text is a value.
TEXTS = cfg.StrOpt, cfg.ListOpt, cfg.DictOpt, cfg.MultiStrOpt
OPTIONS = [*effective.registered(adapters.new_config())]
GROUPS = sorted({group for group, _ in OPTIONS})
CASES = [
    (group, opt, text)
    for group, opt in OPTIONS
    for text in (EMPTY, NEGATIVE, HUGE, WORD)
    if text in (EMPTY, WORD) or not isinstance(opt, TEXTS)
]


@pytest.fixture(scope='module')
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp('values')
    with shared(folder, http__bind_port=0) as service:
        yield service


@pytest.fixture
def files(service, tmp_path):
    """Give a function that parses options of a daemon on the same store."""

    def parse(group, name, text):
        url = service.store.engine.url.render_as_string()
        groups = {
            'DEFAULT': {'transport_url': f'inproc://{uuid.uuid4().hex}/'},
            'database': {'connection': url},
            'http': {'bind_port': '0'},
        }
        groups.setdefault(group, {})[name] = text
        path = tmp_path / 'a.conf'
        path.write_text(
            '\n'.join(
                f'[{group}]\n'
                + '\n'.join(
                    f'{name} = {value}' for name, value in some.items()
                )
                for group, some in groups.items()
            )
        )
        return adapters.load([path])

    return parse


def outcome(service, files, group, opt, text):
    """Return the error of a value; None: a daemon starts and decides by it."""
    try:
        conf = files(group, opt.dest, text)
        daemon = checked(conf)
    except errors.ConfigurationError as error:
        return str(error)
    for _ in range(2):
        with daemon.store.reading() as conn:
            version.check(conn)
    daemon.dispose()
    running = service.daemon
    effective.register_like(conf, running.conf)
    effective.keep(conf, running.conf)
    running.reconfigure(conf)
    with contextlib.suppress(errors.NoValidHost):
        service.client.select_destinations(
            CONTEXT, {'flavor': SMALL}, claim=False
        )
    assert running.scheduler.status()['degraded'] == []
    return None


@pytest.mark.parametrize('group', GROUPS)
def test_a_value_is_refused_by_name_or_works(service, files, group):
    wrong = []
    for place, opt, text in CASES:
        if place != group:
            continue
        try:
            error = outcome(service, files, group, opt, text)
        except BaseException as fault:
            error = f'{type(fault).__name__}: {fault}'
        name = f'[{group}] {opt.dest}'
        if error is not None and opt.dest not in error:
            wrong.append(f'{name} = {text!r}: {error}')
    assert wrong == []
