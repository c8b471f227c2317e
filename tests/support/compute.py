"""A caller of the compute service's interface, with nothing of its code."""

from __future__ import annotations

import copy
import json
import uuid
from typing import Any

import kombu

from scheduler_service import conf as options
from scheduler_service import rpc  # noqa: F401 - chooses the bus's backend
from scheduler_service.cmd import adapters
from scheduler_service.rpc import transport
from tests.support import nova_wire
from tests.support.waiting import LIMIT_S

import oslo_messaging  # isort: skip

EXCHANGE = 'nova'
# Hosts on which the recorded requests fit: compute-1 has most memory.
HOSTS = {
    'hosts': [
        {
            'host': f'compute-{number}',
            'hypervisor_hostname': f'node-{number}',
            'vcpus': 16,
            'memory_mb': 32768 - number,
            'local_gb': 500,
            'hypervisor_type': 'QEMU',
            'cell_uuid': '333e1312-9c87-4135-89d3-3b76fdebd1b5',
            'supported_instances': [['x86_64', 'kvm', 'hvm']],
        }
        for number in range(1, 6)
    ]
}
CONTEXT = {
    'user_id': 'u',
    'project_id': 'a' * 32,
    'roles': ['member', 'reader'],
    'request_id': 'req-11111111-0000-4000-8000-000000000000',
}


def new_topic() -> str:
    """Return a topic of which no other test has the queue."""
    return f'n{uuid.uuid4().hex[:8]}'


class ComputeCaller:
    """Calls and casts as conductors and compute services do.

    :param timeout: seconds that a call waits in all
    :param monitor: after how many seconds of silence it gives up
    """

    def __init__(
        self,
        url: str,
        topic: str,
        timeout: float = LIMIT_S,
        monitor: float | None = 60,
    ) -> None:
        conf = adapters.new_config()
        options.parse(
            conf, [], default_config_files=[], default_config_dirs=[]
        )
        self.transport = transport.for_client(conf, url)
        self._client = oslo_messaging.get_rpc_client(
            self.transport,
            oslo_messaging.Target(
                exchange=EXCHANGE, topic=topic, version='4.0'
            ),
            timeout=timeout,
            call_monitor_timeout=monitor,
        )

    def select(self, version: str = '4.5', **fields: Any) -> Any:
        """Ask for hosts; *fields* are of the RequestSpec.

        The host of one new instance, unless ``uuids`` names others.
        """
        uuids = fields.pop('uuids', None) or [str(uuid.uuid4())]
        how = {
            name: fields.pop(name, True)
            for name in ('return_objects', 'return_alternates')
        }
        if version == '4.4':
            how = {}
        return self.call(
            version,
            'select_destinations',
            instance_uuids=uuids,
            spec_obj=nova_wire.spec(**fields),
            **how,
        )

    def send(self, name: str) -> Any:
        """Send the request of a recorded case for instances of its own."""
        message = copy.deepcopy(nova_wire.sent(name))
        args = message['args']
        args['instance_uuids'] = [
            str(uuid.uuid4()) for _ in args['instance_uuids']
        ]
        return self.call(message['version'], message['method'], **args)

    def call(self, version: str, method: str, **args: Any) -> Any:
        """Make a call."""
        made = self._client.prepare(version=version)
        return made.call(CONTEXT, method, **args)

    def fanout(self, name: str) -> None:
        """Cast a recorded message to all schedulers."""
        message = nova_wire.sent(name)
        made = self._client.prepare(fanout=True, version=message['version'])
        made.cast(CONTEXT, message['method'], **message['args'])


def request_body(instance: str, replies: str) -> str:
    """Return a request for one instance as it travels.

    :param replies: the queue that the reply is to go to
    """
    message = {
        'method': 'select_destinations',
        'args': {
            'instance_uuids': [instance],
            'spec_obj': nova_wire.spec(),
            'return_objects': True,
            'return_alternates': True,
        },
        'version': '4.5',
        '_msg_id': uuid.uuid4().hex,
        '_reply_q': replies,
        '_unique_id': uuid.uuid4().hex,
        '_timeout': 60,
        **{f'_context_{name}': value for name, value in CONTEXT.items()},
    }
    return json.dumps(
        {'oslo.version': '2.0', 'oslo.message': json.dumps(message)}
    )


def publish_request(url: str, topic: str, instance: str, replies: str) -> None:
    """Send a request for one instance as it travels, and wait for nothing.

    :param url: of RabbitMQ
    :param replies: the queue that the reply is to go to
    """
    with kombu.Connection(url.replace('rabbit://', 'amqp://')) as conn:
        conn.Producer().publish(
            request_body(instance, replies),
            exchange=EXCHANGE,
            routing_key=topic,
            content_type='application/json',
            content_encoding='utf-8',
            expiration=60,
        )


def hosts_of(reply: list[list[dict[str, Any]]]) -> list[list[str]]:
    """Return the hosts of each instance: the chosen one, its alternates."""
    return [
        [one['nova_object.data']['service_host'] for one in each]
        for each in reply
    ]


class RawCaller:
    """Sends messages of any content as they travel, and reads replies.

    :param url: of RabbitMQ
    :param topic: of the compute service's interface
    """

    def __init__(self, url: str, topic: str) -> None:
        self._topic = topic
        self._conn = kombu.Connection(url.replace('rabbit://', 'amqp://'))
        self._replies = self._conn.SimpleBuffer(f'reply_{uuid.uuid4().hex}')

    def message(self, **changes: Any) -> dict[str, Any]:
        """Return a request for one instance, with parts of it replaced."""
        return {
            'method': 'select_destinations',
            'args': {
                'instance_uuids': [str(uuid.uuid4())],
                'spec_obj': nova_wire.spec(),
                'return_objects': True,
                'return_alternates': True,
            },
            'version': '4.5',
            '_msg_id': uuid.uuid4().hex,
            '_reply_q': self._replies.queue.name,
            '_unique_id': uuid.uuid4().hex,
            **{f'_context_{name}': value for name, value in CONTEXT.items()},
            **changes,
        }

    def send(self, message: Any, **properties: Any) -> None:
        """Send a message, and wait for nothing."""
        self.send_text(json.dumps(message), **properties)

    def send_text(self, text: str, **properties: Any) -> None:
        """Send a message that is JSON already, or should be."""
        body = json.dumps({'oslo.version': '2.0', 'oslo.message': text})
        self._conn.Producer().publish(
            body,
            exchange=EXCHANGE,
            routing_key=self._topic,
            content_type='application/json',
            content_encoding='utf-8',
            **properties,
        )

    def reply(self, message: dict[str, Any]) -> Any:
        """Return what came back for a message: its result, or its failure.

        A failure is a dict with ``class``, ``module`` and ``message``;
        heartbeats and replies to others are passed over.

        :raises queue.Empty: nothing came in time
        """
        while True:
            found = self._replies.get(timeout=LIMIT_S)
            found.ack()
            body = json.loads(found.payload['oslo.message'])
            if body['_msg_id'] != message['_msg_id'] or not body['ending']:
                continue
            if body['failure']:
                return json.loads(body['failure'])
            return body['result']

    def close(self) -> None:
        """Close the connection."""
        self._replies.queue.delete()
        self._conn.close()
