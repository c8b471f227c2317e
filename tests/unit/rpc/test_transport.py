"""What a transport's options hand over to the libraries below it."""

from collections.abc import Iterator
from typing import Any

import pytest
from oslo_config import cfg

from scheduler_service import conf as options
from scheduler_service import errors
from scheduler_service.cmd import adapters
from scheduler_service.engine.health import Health
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
    'make', [transport.for_client, transport.for_notifications]
)
def test_lock_path_is_handed_to_the_global_options(make, parse):
    conf = parse(f'{QUEUE_MANAGER}[oslo_concurrency]\nlock_path = /locks\n')
    make(conf, BUS)
    assert cfg.CONF.oslo_concurrency.lock_path == '/locks'


def new_consumer(conf, url=None):
    """Return a consumer of requests, which is not started."""
    target = transport.Target('e', 't', server='s')
    return transport.new_consumer(conf, url, target, print, Health())


def test_a_queue_manager_without_lock_path_is_a_configuration_error(parse):
    with pytest.raises(errors.ConfigurationError, match='lock_path'):
        transport.for_client(parse(QUEUE_MANAGER), BUS)


def test_consumers_use_no_queue_manager(parse):
    assert new_consumer(parse(QUEUE_MANAGER), BUS).is_connected()


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
        ('bogus://user:secret@x', 'no driver bogus, only rabbit and inproc'),
        ('kafka://user:secret@x', 'no driver kafka, only rabbit and inproc'),
        ('rabbit//user:secret@x', 'not an address'),
        ('rabbit://user:secret@x:port/', 'not an address'),
    ],
)
@pytest.mark.parametrize(
    'make',
    [
        transport.address,
        transport.for_command,
        new_consumer,
        transport.connect,
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
