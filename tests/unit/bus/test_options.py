"""Options of RabbitMQ: the URL's, the file's, and what they mean."""

import logging
import re
import ssl

import pytest
from amqp.exceptions import AccessRefused, RecoverableConnectionError

from scheduler_service import errors
from scheduler_service.bus import options
from scheduler_service.bus.options import RabbitOptions
from scheduler_service.rpc import transport
from tests.support.services import new_conf

URL = 'rabbit://u:secret@a:1,u:secret@b/vhost'


def made(query: str = '', **values):
    """Return the options of a URL with a query, and of a file."""
    conf = new_conf()
    options.register(conf)
    for name, value in values.items():
        conf.set_override(name, value, options.GROUP)
    return RabbitOptions(conf, transport.address(conf, URL + query))


def queues(found, fanout=True):
    """Return name without its random part -> queue of a server's."""
    target = transport.Target('e', 't', server='s', fanout=fanout)
    return {
        re.sub('[0-9a-f]{32}$', '', source.queue.name): source.queue
        for source in found.sources(target)
    }


@pytest.mark.parametrize(
    ('fault', 'text'),
    [
        (OSError(111, 'Connection refused'),
         '[Errno 111] Connection refused'),
        (OSError('two\n lines'), 'two lines'),
        (TimeoutError(), 'TimeoutError'),
        (RecoverableConnectionError(), 'RecoverableConnectionError'),
        (RecoverableConnectionError('Socket closed'), 'Socket closed'),
        (AccessRefused('no such user', (10, 40), 'open'),
         'open: (403) no such user'),
        (OSError('amqp://guest:a@b%2f@host:1/v is gone'),
         'amqp://host:1/v is gone'),
    ],
)  # fmt: skip
def test_a_fault_is_one_line_without_passwords(fault, text):
    assert options.error_text(fault) == text


def test_an_option_of_the_url_comes_before_that_of_the_file():
    found = made('?heartbeat_rate=7&ssl=true', heartbeat_rate=5)
    assert (found.heartbeat_rate, found.ssl) == (7, True)
    assert made(heartbeat_rate=5).heartbeat_rate == 5


@pytest.mark.parametrize(
    ('query', 'text'),
    [('?no_such=1', 'no option no_such'), ('?heartbeat_rate=x', 'heartbeat')],
)
def test_an_option_of_the_url_that_cannot_be_used_is_named(query, text):
    with pytest.raises(errors.ConfigurationError, match=text) as caught:
        made(query)
    assert 'secret' not in str(caught.value)


@pytest.mark.parametrize(
    ('values', 'text'),
    [
        ({'rabbit_quorum_queue': True, 'rabbit_ha_queues': True},
         'exclude each other'),
        ({'rabbit_stream_fanout': True, 'rabbit_qos_prefetch_count': 0},
         'above 0'),
        ({'ssl': True, 'ssl_version': 'SSLv9'},
         'sslv9 is not one of .*tlsv1_2'),
    ],
)  # fmt: skip
def test_options_that_contradict_each_other_are_named(values, text):
    with pytest.raises(errors.ConfigurationError, match=text):
        made(**values)


def test_prefetch_is_limited_unless_the_file_says_otherwise():
    assert made().rabbit_qos_prefetch_count == 128
    assert made(rabbit_qos_prefetch_count=0).rabbit_qos_prefetch_count == 0


def test_options_without_an_effect_are_logged(caplog):
    with caplog.at_level(logging.INFO):
        made().log_unused()
        assert caplog.text == ''
        made(rpc_conn_pool_size=5, use_queue_manager=True).log_unused()
    assert caplog.text.count('rpc_conn_pool_size, use_queue_manager') == 1


def test_a_certificate_is_checked_against_the_name_of_its_node():
    assert made().tls('a') is False
    assert made(ssl=True).tls('a') is True
    found = made(
        ssl=True,
        ssl_ca_file='ca',
        ssl_cert_file='c',
        ssl_key_file='k',
        ssl_version='TLSv1_2',
    )
    assert found.tls('b') == {
        'ca_certs': 'ca',
        'cert_reqs': ssl.CERT_REQUIRED,
        'server_hostname': 'b',
        'certfile': 'c',
        'keyfile': 'k',
        'ssl_version': ssl.PROTOCOL_TLSv1_2,
    }


def test_a_server_has_four_queues_at_most():
    found = queues(made())
    assert list(found) == ['t', 't.consuming', 't.s.', 't_fanout_']
    assert list(queues(made(), fanout=False)) == ['t', 't.consuming', 't.s.']
    assert found['t'].queue_arguments == {}
    assert not found['t'].durable


def test_queues_are_quorum_queues_where_the_options_say_so():
    found = list(
        queues(
            made(
                rabbit_quorum_queue=True,
                rabbit_quorum_delivery_limit=5,
                rabbit_quorum_max_memory_length=6,
                rabbit_quorum_max_memory_bytes=7,
                rabbit_transient_queues_ttl=9,
            )
        ).values()
    )
    quorum = {
        'x-queue-type': 'quorum',
        'x-delivery-limit': 5,
        'x-max-in-memory-length': 6,
        'x-max-in-memory-bytes': 7,
    }
    expires = {'x-expires': 9000}
    assert [queue.queue_arguments for queue in found] == [
        quorum, quorum, {**quorum, **expires}, expires,
    ]  # fmt: skip
    assert [queue.durable for queue in found] == [True, True, True, False]


def test_a_stream_takes_the_casts_to_all_servers():
    found = made(rabbit_stream_fanout=True, rabbit_transient_queues_ttl=9)
    source = found.sources(
        transport.Target('e', 't', server='s', fanout=True)
    )[-1]
    assert (source.queue.name, source.stream) == ('t_fanout', True)
    assert source.queue.queue_arguments == {
        'x-queue-type': 'stream', 'x-max-age': '9s',
    }  # fmt: skip


def test_mirrored_queues_and_failover_have_their_arguments():
    found = made(rabbit_ha_queues=True, enable_cancel_on_failover=True)
    source = found.sources(transport.Target('e', 't', server='s'))[0]
    assert source.queue.queue_arguments == {'x-ha-policy': 'all'}
    assert source.arguments == {'x-cancel-on-ha-failover': True}
