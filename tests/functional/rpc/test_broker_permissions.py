"""Permissions of the broker, as the page on security gives them."""

from __future__ import annotations

import re
import uuid

import kombu
import pytest
from amqp.exceptions import AccessRefused

from scheduler_service.rpc.client import EXCHANGE, TOPIC
from tests.support import servers
from tests.support.documents import OWNER, SMALL
from tests.support.paths import ROOT
from tests.support.services import connected, hosts_of

PAGE = (ROOT / 'doc/source/admin/security.rst').read_text()


@pytest.fixture
def users(rabbitmq):
    """A virtual host of its own: kind of user -> transport URL."""
    server, _ = rabbitmq
    url = servers.new_vhost(*rabbitmq)
    base, _, vhost = url.rpartition('/')
    text = re.sub(r'\\\n\s+', '', PAGE)
    made = {}
    for user, permissions in re.findall(
        r'set_permissions -p scheduler (\w+) (.+)', text
    ):
        name = f'{user}-{uuid.uuid4().hex[:8]}'
        servers.rabbitmqctl(server, 'add_user', name, 'secret')
        servers.rabbitmqctl(
            server, 'set_permissions', '-p', vhost, name,
            *re.findall("'([^']*)'", permissions),
        )  # fmt: skip
        address = base.rpartition('@')[2]
        made[user] = f'rabbit://{name}:secret@{address}/{vhost}'
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
