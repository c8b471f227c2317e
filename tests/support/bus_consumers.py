"""A consumer on RabbitMQ for tests, and what other programs send to it."""

from __future__ import annotations

import json
import queue
import uuid
from collections.abc import Callable
from typing import Any

import kombu

from scheduler_service.bus import wire
from scheduler_service.bus.consumer import RabbitConsumer
from scheduler_service.bus.options import GROUP
from scheduler_service.bus.wire import Publication, Request
from scheduler_service.engine.health import Health
from scheduler_service.rpc import transport
from tests.support.services import new_conf
from tests.support.waiting import LIMIT_S, wait_until


class Consuming:
    """A consumer, and the requests that it took."""

    def __init__(self, url: str, topic: str, fanout: bool, options: Any):
        conf = new_conf()
        for name, value in options.items():
            conf.set_override(name, value, GROUP)
        self.taken: queue.Queue[Request] = queue.Queue()
        self.health = Health()
        target = transport.Target(
            'openstack', topic, server='s', fanout=fanout
        )
        made = transport.new_consumer(
            conf, url, target, self.taken.put, self.health
        )
        assert isinstance(made, RabbitConsumer)
        self.bus = made

    def take(self) -> Request:
        """Wait for a request."""
        return self.taken.get(timeout=LIMIT_S)

    def none_comes(self, seconds: float = 0.7) -> bool:
        """Whether no request comes for a while."""
        try:
            self.taken.get(timeout=seconds)
        except queue.Empty:
            return True
        return False

    def acknowledge(self, request: Request) -> None:
        """Acknowledge a request."""
        self.bus.call(self.bus.acknowledge, request)

    def publish(self, destination: str, body: bytes, **how: Any) -> Any:
        """Publish a message; return the queue that gets what became of it."""
        found: queue.Queue[bool] = queue.Queue()
        made = Publication(destination, body, found.put, **how)
        self.bus.call(self.bus.publish, made)
        return found

    def reply(self, request: Request, result: Any = None) -> None:
        """Reply to a call, and acknowledge it when that is confirmed."""
        body = wire.reply(request.msg_id, result)

        def done(accepted: bool) -> None:
            self.bus.acknowledge(request)

        made = Publication(str(request.reply_q), body, done)
        self.bus.call(self.bus.publish, made)

    def refuse(self, request: Request, body: bytes) -> Any:
        """Refuse a call; return the queue that gets what became of it."""
        found: queue.Queue[bool] = queue.Queue()
        made = Publication(str(request.reply_q), body, found.put)
        self.bus.call(self.bus.refuse, request, made)
        return found


def sender(channel: Any, topic: str) -> Callable[..., None]:
    """Return a function that sends a cast to a topic."""
    producer = kombu.Producer(channel)

    def run(
        method: str,
        unique_id: str = '',
        expiration: float | None = None,
        **more: Any,
    ) -> None:
        message = {
            'method': method,
            '_unique_id': unique_id or uuid.uuid4().hex,
            **more,
        }
        producer.publish(
            {'oslo.version': '2.0', 'oslo.message': json.dumps(message)},
            exchange='openstack',
            routing_key=topic,
            expiration=expiration,
        )

    return run


def ready(channel: Any, queue: str) -> int:
    """Return how many messages a queue has for the next consumer."""
    return int(channel.queue_declare(queue, passive=True).message_count)


def wait_until_acknowledged(consumer: Consuming, left: int = 0) -> None:
    """Wait until a consumer has acknowledged all its requests but some."""
    wait_until(lambda: len(consumer.bus._unacknowledged) == left)


def cut(consumer: Consuming) -> None:
    """Close a consumer's socket, as a broken network does."""
    connection: Any = consumer.bus._connection
    connection._socket.shutdown(2)


def reconnect(consumer: Consuming) -> None:
    """Cut a consumer's connection, and wait for the next one."""
    number = consumer.bus._number
    cut(consumer)
    wait_until(lambda: consumer.bus._number > number)
    wait_until(lambda: consumer.bus._connection is not None)
