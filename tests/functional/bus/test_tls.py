"""TLS to RabbitMQ: the certificate of each node is for its own name."""

import asyncio
import contextlib
import threading
import uuid

import pytest

from scheduler_service.bus import connection
from scheduler_service.bus.options import RabbitOptions
from scheduler_service.rpc import transport
from tests.support import servers
from tests.support.bus_consumers import sender
from tests.support.extenders import certificates
from tests.support.services import new_conf

import oslo_messaging  # isort: skip
from tests.support.waiting import LIMIT_S

pytestmark = pytest.mark.broker


@pytest.fixture
def send_to(channel, topic):
    """Give a function that sends a message to the topic."""
    return sender(channel, topic)


@pytest.fixture
def listener(rabbitmq, tmp_path):
    """Certificates, and the port on which the broker is behind TLS."""
    made = certificates(tmp_path)
    loop = asyncio.new_event_loop()

    async def pipe(reader, writer) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(2**20):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader, writer) -> None:
        inner = await asyncio.open_connection('127.0.0.1', rabbitmq[0].port)
        await asyncio.gather(pipe(reader, inner[1]), pipe(inner[0], writer))

    server = loop.run_until_complete(
        asyncio.start_server(serve, '0.0.0.0', 0, ssl=made.server_context())
    )
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield made, server.sockets[0].getsockname()[1]
    loop.call_soon_threadsafe(server.close)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.run_until_complete(asyncio.sleep(0.2))
    loop.close()


def test_requests_come_over_tls(listener, consume, send_to):
    """Also long ones, of which TLS reads more than was asked for."""
    made, port = listener
    query = f'ssl=true&ssl_ca_file={made.ca}'
    consumer = consume(f'rabbit://guest:guest@localhost:{port}/?{query}')
    for number in range(100):
        send_to(str(number), text='x' * (number * 1000))
    taken = [consumer.take() for _ in range(100)]
    assert [each.method for each in taken] == [str(n) for n in range(100)]
    name = f'reply_{uuid.uuid4().hex}'
    assert (
        consumer.publish(name, b'{}', repeated=False).get(timeout=LIMIT_S)
        is False
    )


def test_the_name_of_the_node_in_use_is_checked(listener):
    made, port = listener
    query = f'ssl=true&ssl_ca_file={made.ca}'
    # The certificate is not for 127.0.0.2, which is loopback as well.
    other = f'127.0.0.2:{servers.free_port()}'
    for _ in range(8):
        connect(options_of([other, f'127.0.0.1:{port}'], query))
    with pytest.raises(
        oslo_messaging.MessageDeliveryFailure, match=r'127\.0\.0\.2'
    ):
        connect(options_of([f'127.0.0.2:{port}'], query))


def connect(options: RabbitOptions) -> None:
    with connection.connected(options):
        pass


def options_of(hosts, query) -> RabbitOptions:
    conf = new_conf()
    where = ','.join(f'guest:guest@{host}' for host in hosts)
    return RabbitOptions(
        conf, transport.address(conf, f'rabbit://{where}/?{query}')
    )
