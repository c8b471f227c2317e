"""What a transport's options hand over to the libraries below it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kombu import compression as library
from oslo_config import cfg

from scheduler_service import conf as options
from scheduler_service import errors
from scheduler_service.cmd import adapters
from scheduler_service.rpc import transport

BUS = 'rabbit://guest:guest@127.0.0.1:1/'


@pytest.fixture
def parse(tmp_path) -> Iterator[Any]:
    """Give a function that parses a configuration file's text."""

    def parsed(text: str) -> Any:
        path = tmp_path / 'a.conf'
        path.write_text(text)
        conf = adapters.new_config()
        return options.parse(conf, [f'--config-file={path}'])

    yield parsed
    cfg.CONF.clear_default('lock_path', 'oslo_concurrency')


QUEUE_MANAGER = '[oslo_messaging_rabbit]\nuse_queue_manager = true\n'


@pytest.mark.parametrize(
    'make',
    [
        transport.for_client,
        transport.for_server,
        transport.for_notifications,
    ],
)
def test_lock_path_is_handed_to_the_global_options(make, parse):
    conf = parse(f'{QUEUE_MANAGER}[oslo_concurrency]\nlock_path = /locks\n')
    make(conf, BUS)
    assert cfg.CONF.oslo_concurrency.lock_path == '/locks'


def test_a_queue_manager_without_lock_path_is_a_configuration_error(parse):
    with pytest.raises(errors.ConfigurationError, match='lock_path'):
        transport.for_server(parse(QUEUE_MANAGER), BUS)


def test_a_queue_manager_needs_no_lock_path_on_another_bus(parse):
    transport.for_client(parse(QUEUE_MANAGER), 'inproc://')


def test_commands_use_no_queue_manager(parse):
    conf = parse(f'[DEFAULT]\ntransport_url = {BUS}\n{QUEUE_MANAGER}')
    transport.for_command(conf)
    assert conf.oslo_messaging_rabbit.use_queue_manager is False
    assert conf.oslo_messaging_rabbit.rabbit_transient_queues_ttl == 60


@pytest.mark.parametrize(
    ('url', 'text'),
    [
        ('bogus://user:secret@x', 'no driver bogus'),
        ('rabbit//user:secret@x', 'not an address'),
        ('rabbit://user:secret@x:port/', 'not an address'),
    ],
)
@pytest.mark.parametrize(
    'make',
    [
        transport.address,
        transport.for_command,
        transport.for_server,
        transport.for_notifications,
    ],
)
def test_an_address_that_cannot_be_used_is_a_configuration_error(
    make, url, text, parse
):
    conf = parse(f'[DEFAULT]\ntransport_url = {url}\n')
    with pytest.raises(errors.ConfigurationError, match=text) as caught:
        make(conf)
    assert 'secret' not in str(caught.value)


KINDS = ['gzip', 'bzip2', 'lzma']


@pytest.fixture(autouse=True)
def limited():
    transport.limit_compression()


@pytest.mark.parametrize('kind', KINDS)
def test_a_message_is_what_was_packed(kind):
    content = bytes(range(256)) * 5000
    packed, name = library.compress(content, kind)
    assert library.decompress(packed, name) == content
    assert library.decompress(*library.compress(b'', kind)) == b''


@pytest.mark.parametrize('kind', KINDS)
def test_a_message_is_refused_when_it_is_too_large(kind):
    packed, name = library.compress(bytes(transport.MOST_BYTES + 1), kind)
    assert len(packed) < 100_000
    with pytest.raises(ValueError, match='67108864 bytes'):
        library.decompress(packed, name)


@pytest.mark.parametrize('kind', KINDS)
def test_a_message_is_refused_when_a_part_is_missing(kind):
    packed, name = library.compress(b'x' * 1000, kind)
    with pytest.raises(ValueError, match='not complete'):
        library.decompress(packed[:-1], name)
