"""Permissions of the broker, as the page on security gives them."""

import shlex
import uuid

import kombu
import pytest
from amqp.exceptions import AccessRefused

from scheduler_service.rpc.client import EXCHANGE, TOPIC
from tests.support import page_commands, servers
from tests.support.documents import OWNER, SMALL
from tests.support.services import connected, hosts_of

PAGE = page_commands.page('security')


@pytest.fixture
def users(rabbitmq):
    """A virtual host of its own, by the lines of the page.

    Kind of user -> transport URL.
    """
    server, url = rabbitmq
    mark = uuid.uuid4().hex[:8]
    vhost = f'scheduler-{mark}'
    made = {}
    for line in page_commands.lines(PAGE):
        _, command, *words = shlex.split(line)
        words = [vhost if word == 'scheduler' else word for word in words]
        if command == 'set_permissions':
            user = words[2]
            words[2] = f'{user}-{mark}'
            add_user = f'{servers.USERS}:add_user'
            servers.call(server, add_user, words[2], 'secret', 'guest')
            address = url.rpartition('@')[2]
            made[user] = f'rabbit://{words[2]}:secret@{address}{vhost}'
        servers.rabbitmqctl(server, command, *words)
    return made


@pytest.mark.broker
def test_a_caller_may_call_and_not_read_the_requests_of_others(
    users, make_service
):
    make_service(url=users['daemon'])
    with connected(users['api'], TOPIC) as client:
        answer = client.select_destinations(OWNER, {'flavor': SMALL})
        assert hosts_of(answer) == ['compute-4']
    with kombu.Connection(users['api'].replace('rabbit:', 'amqp:')) as spy:
        with pytest.raises(AccessRefused):
            spy.channel().basic_get(TOPIC)
        channel = spy.channel()
        channel.queue_declare('reply_spy')
        with pytest.raises(AccessRefused):
            channel.queue_bind('reply_spy', EXCHANGE, TOPIC)
