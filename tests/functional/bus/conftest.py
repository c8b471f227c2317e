"""Consumers on RabbitMQ, and a channel of another program."""

import contextlib
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import kombu
import pytest

from tests.support.bus_consumers import Consuming, sender


@pytest.fixture
def topic() -> str:
    return f't{uuid.uuid4().hex[:8]}'


@pytest.fixture
def channel(rabbitmq: Any) -> Iterator[Any]:
    """A channel of another program."""
    url = rabbitmq[1].replace('rabbit://', 'amqp://')
    with kombu.Connection(url) as connection:
        yield connection.channel()


@pytest.fixture
def consume(rabbitmq: Any, topic: str) -> Iterator[Callable[..., Consuming]]:
    """Give a function that starts a consumer of the topic."""
    with contextlib.ExitStack() as stack:

        def start(
            url: str = '', fanout: bool = False, **options: Any
        ) -> Consuming:
            made = Consuming(url or rabbitmq[1], topic, fanout, options)
            made.bus.start()
            stack.callback(made.bus.close)
            stack.callback(made.bus.stop_consuming)
            return made

        yield start


@pytest.fixture
def consumer(consume: Any) -> Consuming:
    return consume()


@pytest.fixture
def send(channel: Any, topic: str, consumer: Consuming) -> Any:
    """Give a function that sends a message to the topic."""
    return sender(channel, topic)
