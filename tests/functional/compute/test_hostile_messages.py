"""Odd and hostile messages to the compute service's interface, over RabbitMQ.

Each call gets an answer, which is a result or a NoValidHost that says what is
wrong; it is never an internal error. Nothing is claimed for nobody.
"""

import copy
import random
import uuid

import pytest
import sqlalchemy as sa

from scheduler_service.store import schema
from tests.support import fuzzing, nova_wire
from tests.support.compute import RawCaller
from tests.support.nova_wire import spec, thing

pytestmark = pytest.mark.broker
COUNT = 200
HUGE = 10**400
# What a caller gets of an error that is none of ours.
INTERNAL = 'The scheduler failed.'


@pytest.fixture
def compute(make_compute):
    return make_compute('rabbit')


@pytest.fixture
def caller(compute):
    made = RawCaller(compute.service.url, compute.topic)
    yield made
    made.close()


def claimed(compute):
    """Return the instances that hold a claim."""
    with compute.store.reading() as conn:
        return list(conn.execute(sa.select(schema.instances.c.uuid)).scalars())


def ask(caller, message):
    """Send a message; return its result, or the text of its refusal."""
    caller.send(message)
    found = caller.reply(message)
    if isinstance(found, dict) and 'class' in found:
        kind = found['module'], found['class']
        assert kind == ('nova.exception', 'NoValidHost'), message
        assert INTERNAL not in found['message'], message
        return found['message']
    return found


SURROUNDINGS = [
    {'_context_project_id': ['a']},
    {'_context_project_id': {'a': 1}},
    {'_context_project_id': HUGE},
    {'_context_scheduler_sent_at': HUGE},
    {'_context_scheduler_sent_at': -HUGE},
    {'_context_roles': 5},
    {'_context_user_id': [[]]},
    {'_timeout': HUGE},
    {'_timeout': 1e300},
    {'_timeout': 'x'},
    {'_unique_id': {'a': []}},
    {'_unique_id': HUGE},
]


def test_what_surrounds_a_request_may_be_of_any_type_or_absent(caller):
    for changes in SURROUNDINGS:
        # A message with an id that was answered is one that was sent again.
        for _ in range(1 if '_unique_id' in changes else 2):
            assert isinstance(ask(caller, caller.message(**changes)), list)
    bare = {
        key: value
        for key, value in caller.message().items()
        if not key.startswith(nova_wire.CONTEXT)
    }
    assert isinstance(ask(caller, bare), list)


def image(**properties):
    return spec(
        image=thing(
            'ImageMeta',
            '1.8',
            properties=thing('ImageMetaProps', '1.30', **properties),
        )
    )


NUMBERLESS = thing(
    'InstanceGroup',
    '1.11',
    uuid=str(uuid.uuid4()),
    policy='anti-affinity',
    _rules={'max_server_per_host': '9' * 5000},
)
WRONG = [
    (image(hw_numa_cpus=5), 'image.properties.hw_numa_cpus'),
    (image(hw_numa_cpus=[[0], None]), 'image.properties.hw_numa_cpus'),
    (image(hw_numa_mem=True), 'image.properties.hw_numa_mem'),
    (image(traits_required=[5]), 'image.properties.traits_required'),
    (spec(instance_group=NUMBERLESS), 'max_server_per_host'),
]


def test_what_is_wrong_is_named(compute, caller):
    for wanted, words in WRONG:
        message = caller.message()
        message['args']['spec_obj'] = wanted
        assert words in ask(caller, message)
    for number in (2**63, -1, -(2**70)):
        gone = {'aggregate': thing('Aggregate', '1.3', id=number)}
        message = caller.message(method='delete_aggregate', args=gone)
        assert 'id: expected' in ask(caller, message)
    assert claimed(compute) == []


UNANSWERABLE = [
    {'_msg_id': None},
    {'_reply_q': None},
    {'_reply_q': ['a']},
    {'_reply_q': 'x' * 256},
    {'_msg_id': {}},
]
NO_MESSAGES = ['', '{', '5', 'null', '[]', '9' * 5000]


def test_nothing_is_claimed_where_nobody_can_be_answered(compute, caller):
    for changes in UNANSWERABLE:
        caller.send(caller.message(**changes))
    for text in NO_MESSAGES:
        caller.send_text(text)
    # They are done before this one.
    message = caller.message()
    assert isinstance(ask(caller, message), list)
    assert claimed(compute) == message['args']['instance_uuids']


def test_an_expiration_may_be_as_long_as_the_broker_lets_it(compute, caller):
    message = caller.message()
    caller.send(message, expiration=4294967.295)
    assert isinstance(caller.reply(message), list)
    assert claimed(compute) == message['args']['instance_uuids']


def test_recorded_messages_that_were_changed_are_answered(caller):
    rng, answers = random.Random(15), {list: 0, str: 0}
    names = (*nova_wire.REQUESTS, *nova_wire.FANOUTS)
    recorded = [nova_wire.sent(name) for name in names]
    for _ in range(COUNT):
        found = copy.deepcopy(rng.choice(recorded))
        args = fuzzing.replaced(rng, found['args'], rng.randrange(1, 3))
        if 'spec_obj' in found['args'] and rng.random() < 0.9:
            args['instance_uuids'] = [str(uuid.uuid4())]
        message = caller.message(
            method=found['method'], version=found['version'], args=args
        )
        answer = ask(caller, message)
        answers[str if isinstance(answer, str) else list] += 1
    assert min(answers.values()) > COUNT / 50
