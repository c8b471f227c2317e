"""The options of RabbitMQ: brokers, TLS, queues and their arguments.

An option in the query of the transport URL takes precedence over the file's.
The shared queue has the name of the topic and is permanent. So is the presence
queue, which gets no messages: a daemon consumes from both or from none, so the
number of its consumers shows whether other daemons consume. The daemon's own
queue gets messages to this server alone. Its name is new with each start, and
the broker deletes it after ``rabbit_transient_queues_ttl`` seconds without a
consumer. An orderly stop deletes it at once. Any thread may use the module.
"""

from __future__ import annotations

import logging
import re
import ssl
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

import kombu
from amqp.exceptions import AMQPError, PreconditionFailed
from oslo_messaging import TransportHost, opts

from scheduler_service import errors
from scheduler_service.bus import wire

LOG = logging.getLogger(__name__)
GROUP = 'oslo_messaging_rabbit'
# Without a limit a daemon would consume the whole queue.
_PREFETCH = 128
# User and password of an address.
_USER_INFO = re.compile(r'//[^/\s]*@')
# Options of pools and names that a consumer does not have.
_UNUSED = (
    'rpc_conn_pool_size', 'conn_pool_min_size', 'conn_pool_ttl',
    'use_queue_manager', 'ssl_enforce_hostname_verification',
    'ssl_enforce_fips_mode', 'direct_mandatory_flag',
)  # fmt: skip
_TLS_VERSIONS = {
    name.removeprefix('PROTOCOL_').lower(): name
    for name in dir(ssl)
    if name.startswith(('PROTOCOL_TLSv', 'PROTOCOL_SSLv'))
}


def error_text(fault: BaseException) -> str:
    """Return the text of an error as a line without passwords."""
    text = _USER_INFO.sub('//', ' '.join(str(fault).split()))
    # The library for AMQP invents a text where an error has none.
    mute = isinstance(fault, AMQPError) and not fault.reply_text
    return type(fault).__name__ if mute or not text else text


def presence_queue(topic: str) -> str:
    """Return the presence queue of a topic."""
    return f'{topic}.consuming'


def refused(refusal: AMQPError) -> errors.ConfigurationError:
    """Return the error for a refused login, or a queue of another kind."""
    if not isinstance(refusal, PreconditionFailed):
        return errors.ConfigurationError(
            '[DEFAULT] transport_url: the broker refuses the login '
            f'({refusal.reply_text}); check user, password and virtual host'
        )
    return errors.ConfigurationError(
        'RabbitMQ has a queue or an exchange of this name already, of '
        f'another kind ({refusal.reply_text}): set the options of '
        '[oslo_messaging_rabbit] on queues as they were when it was '
        "made, for the compute service's as they are there; else choose "
        'another topic or exchange, in [scheduler] or in [compute], or '
        'delete it when no service uses it'
    )


def _all() -> dict[str, Any]:
    """Return the options of oslo.messaging's driver for RabbitMQ by name."""
    return {option.dest: option for option in dict(opts.list_opts())[GROUP]}


def register(conf: Any) -> None:
    """Register the options of oslo.messaging's driver for RabbitMQ."""
    conf.register_opts(_all().values(), group=GROUP)


class Source(NamedTuple):
    """A queue to consume from, and the exchange that it is bound to.

    :ivar queue: not declared yet
    :ivar shared: whether other daemons consume the same messages
    :ivar arguments: of the consumer
    :ivar stream: whether messages stay in the queue when they are consumed
    :ivar keys: routing keys beside the queue's
    """

    queue: kombu.Queue
    shared: bool = False
    arguments: dict[str, Any] = {}
    stream: bool = False
    keys: tuple[str, ...] = ()


class RabbitOptions:
    """The options of a consumer.

    :param url: a parsed transport URL
    :ivar hosts: of the broker, one at least
    :raises ConfigurationError: the URL has an option that does not exist, or
        options contradict each other
    """

    def __init__(self, conf: Any, url: Any) -> None:
        register(conf)
        conf.set_default('rabbit_qos_prefetch_count', _PREFETCH, GROUP)
        self.hosts = url.hosts or [
            TransportHost('localhost', 5672, 'guest', 'guest')
        ]
        self.virtual_host = url.virtual_host or '/'
        self.exchange = conf.control_exchange
        self._values = {name: conf[GROUP][name] for name in _all()}
        self._values.update(_of_query(url.query))
        self._check()

    def __getattr__(self, name: str) -> Any:
        """Return the value of an option of [oslo_messaging_rabbit]."""
        try:
            return self.__dict__['_values'][name]
        except KeyError:
            raise AttributeError(name) from None

    def _check(self) -> None:
        if self.rabbit_quorum_queue and self.rabbit_ha_queues:
            raise errors.ConfigurationError(
                '[oslo_messaging_rabbit] rabbit_quorum_queue and '
                'rabbit_ha_queues exclude each other'
            )
        if self.rabbit_stream_fanout and self.rabbit_qos_prefetch_count < 1:
            raise errors.ConfigurationError(
                '[oslo_messaging_rabbit] rabbit_stream_fanout needs a '
                'rabbit_qos_prefetch_count above 0'
            )
        version = self.ssl_version.lower()
        if self.ssl and version and version not in _TLS_VERSIONS:
            raise errors.ConfigurationError(
                f'[oslo_messaging_rabbit] ssl_version: {version} is not one '
                f'of {", ".join(_TLS_VERSIONS)}'
            )

    def log_unused(self) -> None:
        """Log which options are set that have no effect on a consumer."""
        options = _all()
        unused = [
            name for name in _UNUSED
            if self._values[name] != options[name].default
        ]  # fmt: skip
        if unused:
            LOG.info(
                'Options of [oslo_messaging_rabbit] without an effect on '
                'requests and replies: %s',
                ', '.join(unused),
            )

    @property
    def durable(self) -> bool:
        """Whether shared queues survive a restart of the broker."""
        return bool(self.amqp_durable_queues or self.rabbit_quorum_queue)

    def tls(self, hostname: str) -> dict[str, Any] | bool:
        """Return the TLS options of a connection; False: no TLS.

        :param hostname: that the certificate has to be for
        """
        if not self.ssl:
            return False
        settings: dict[str, Any] = {
            'keyfile': self.ssl_key_file,
            'certfile': self.ssl_cert_file,
        }
        if self.ssl_version:
            name = _TLS_VERSIONS[self.ssl_version.lower()]
            settings['ssl_version'] = getattr(ssl, name)
        if self.ssl_ca_file:
            settings['ca_certs'] = self.ssl_ca_file
            settings['cert_reqs'] = ssl.CERT_REQUIRED
            settings['server_hostname'] = hostname
        return {key: value for key, value in settings.items() if value} or True

    def topic_exchange(self, name: str) -> kombu.Exchange:
        """Return an exchange that routes by topics."""
        return kombu.Exchange(
            name,
            'topic',
            durable=self.durable,
            auto_delete=self.amqp_auto_delete,
        )

    def shared_queue(self, exchange: str, topic: str) -> kombu.Queue:
        """Return a queue that daemons share."""
        return self._queue(exchange, topic, topic)

    def sources(self, target: Any) -> list[Source]:
        """Return the queues of a server; the first is its topic's.

        A fanout exchange is there only for a target with ``fanout``: its name
        does not include the target's exchange, so that another service on
        the virtual host may use the same name.
        """
        on_failover = {'x-cancel-on-ha-failover': True}
        arguments = on_failover if self.enable_cancel_on_failover else {}
        exchange, topic = target.exchange, target.topic
        key = f'{topic}.{target.server}'
        own = self._queue(
            exchange,
            f'{key}.{uuid.uuid4().hex}',
            key,
            self.rabbit_transient_queues_ttl,
        )
        sources = [
            *(
                Source(self.shared_queue(exchange, name), True, arguments)
                for name in (topic, presence_queue(topic))
            ),
            # Casts among daemons need no exchange of their own.
            Source(own, False, arguments, keys=(wire.peers_key(topic),)),
        ]
        if target.fanout:
            sources.append(self._fanout(topic, arguments))
        return sources

    def _fanout(self, topic: str, arguments: dict[str, Any]) -> Source:
        stream = bool(self.rabbit_stream_fanout)
        durable = stream or bool(self.rabbit_transient_quorum_queue)
        name, ttl = f'{topic}_fanout', self.rabbit_transient_queues_ttl
        queue_arguments = self._arguments(durable, ttl)
        if stream:
            arguments = {'x-stream-offset': 'last'}
            queue_arguments = {'x-queue-type': 'stream'}
            if ttl:
                queue_arguments['x-max-age'] = f'{ttl}s'
        queue = kombu.Queue(
            name if stream else f'{name}_{uuid.uuid4().hex}',
            kombu.Exchange(name, 'fanout', durable=durable, auto_delete=True),
            topic,
            durable=durable,
            auto_delete=False,
            queue_arguments=queue_arguments,
        )
        return Source(queue, False, arguments, stream)

    def _queue(
        self, exchange: str, name: str, key: str, ttl: int = 0
    ) -> kombu.Queue:
        return kombu.Queue(
            name,
            self.topic_exchange(exchange),
            key,
            durable=self.durable,
            auto_delete=self.amqp_auto_delete,
            queue_arguments=self._arguments(self.rabbit_quorum_queue, ttl),
        )

    def _arguments(self, quorum: bool, ttl: int) -> dict[str, Any]:
        """Return the arguments of a queue.

        :param ttl: seconds without a consumer until it is deleted; 0: never
        """
        arguments: dict[str, Any] = {}
        if self.rabbit_ha_queues:
            arguments['x-ha-policy'] = 'all'
        if quorum:
            arguments['x-queue-type'] = 'quorum'
            limits = {
                'x-delivery-limit': self.rabbit_quorum_delivery_limit,
                'x-max-in-memory-length': self.rabbit_quorum_max_memory_length,
                'x-max-in-memory-bytes': self.rabbit_quorum_max_memory_bytes,
            }
            arguments.update(
                {key: limit for key, limit in limits.items() if limit}
            )
        if ttl:
            arguments['x-expires'] = ttl * 1000
        return arguments


def _of_query(query: dict[str, str]) -> Iterator[tuple[str, Any]]:
    """Yield the options of a URL's query.

    :raises ConfigurationError: an option does not exist, or its value is not
        valid
    """
    by_name = _all()
    for name, text in query.items():
        if name not in by_name:
            raise errors.ConfigurationError(
                f'[DEFAULT] transport_url: there is no option {name} of '
                f'[{GROUP}]'
            )
        try:
            yield name, by_name[name].type(text)
        except ValueError as fault:
            raise errors.ConfigurationError(
                f'[DEFAULT] transport_url: {name}: {fault}'
            ) from None
