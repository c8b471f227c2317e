"""The wire form: recorded messages, hostile bodies, failures."""

import json
import time

import pytest
from kombu import compression
from oslo_messaging._drivers.common import deserialize_remote_exception

from scheduler_service import errors
from scheduler_service.bus import wire

KINDS = ['gzip', 'bzip2', 'lzma']
# Bodies as oslo.messaging 18.3.1 sent and received them; its clients make
# new ids for each message.
CALL = (
    '{"oslo.version": "2.0", "oslo.message": "{\\"method\\": \\"echo\\", '
    '\\"args\\": {\\"value\\": [1, null]}, \\"version\\": \\"1.0\\", '
    '\\"_context_user_id\\": \\"u\\", \\"_context_roles\\": [\\"r\\"], '
    '\\"_msg_id\\": \\"75ea4f6a\\", \\"_reply_q\\": \\"reply_1\\", '
    '\\"_timeout\\": 30, \\"_unique_id\\": \\"08a4\\"}"}'
)
CAST = (
    '{"oslo.version": "2.0", "oslo.message": "{\\"method\\": \\"note\\", '
    '\\"args\\": {}, \\"namespace\\": \\"n\\", '
    '\\"_unique_id\\": \\"91c0\\"}"}'
)


def read(body, kind='application/json', **headers):
    if isinstance(body, str):
        body = body.encode()
    properties = {'content_type': kind, 'application_headers': headers}
    return wire.read(body, properties)


class Consumer(wire.Consumer):
    """A consumer of no bus."""

    def __init__(self):
        super().__init__('openstack')

    def nothing(self, *args):
        raise NotImplementedError

    start = call = stop_consuming = close = publish = nothing
    acknowledge = hold = nothing


def seconds_left(consumer, age, caller='reply_1', redelivered=True):
    """Return how long a caller that waits for a minute waits still.

    :param age: seconds since the message was sent, by the caller's clock
    """
    message = {
        '_msg_id': 'id', '_reply_q': caller,
        '_context_scheduler_sent_at': time.time() - age,
    }  # fmt: skip
    properties = {'expiration': '60000'}
    request = wire.request(consumer, message, properties, redelivered)
    return request.deadline - time.monotonic()


def opened(body):
    """Return envelope and message of an encoded message."""
    envelope = json.loads(body)
    return envelope['oslo.version'], json.loads(envelope['oslo.message'])


def test_a_call_is_read():
    properties = {
        'expiration': '60000', 'application_headers': {'x-delivery-count': 2},
    }  # fmt: skip
    before = time.monotonic()
    found = wire.request(None, read(CALL), properties, True)
    assert found.message == {
        'method': 'echo', 'args': {'value': [1, None]}, 'version': '1.0',
    }  # fmt: skip
    assert found.ctxt == {'user_id': 'u', 'roles': ['r']}
    assert (found.msg_id, found.reply_q) == ('75ea4f6a', 'reply_1')
    assert (found.timeout, found.unique_id) == (30, '08a4')
    assert (found.redelivered, found.returns) == (True, 2)
    assert found.is_call
    assert before + 60 <= found.deadline <= time.monotonic() + 60


def test_a_cast_is_read():
    found = wire.request(None, read(CAST), {}, False)
    assert found.message == {'method': 'note', 'args': {}, 'namespace': 'n'}
    assert (found.is_call, found.deadline, found.timeout) == (
        False, None, None,
    )  # fmt: skip
    assert (found.redelivered, found.returns) == (False, 0)


def test_a_ping_does_not_count_as_redelivered():
    """Redelivered requests wait for the database, of which pings tell."""
    assert not wire.request(None, {'method': 'ping'}, {}, True).redelivered


def test_a_message_without_an_envelope_is_read():
    assert read('{"method": "m"}') == {'method': 'm'}


@pytest.mark.parametrize(
    'body',
    [
        b'\xff\xfe\x00', b'', b'{', b'[]', b'"x"', b'7', b'null',
        b'{"oslo.version": "2.0", "oslo.message": "{"}',
        b'{"oslo.version": "9.0", "oslo.message": "{}"}',
        b'{"oslo.version": "2.1", "oslo.message": "{}"}',
        b'{"oslo.version": "2.0", "oslo.message": "[1]"}',
        b'{"oslo.version": "2.0", "oslo.message": 7}',
        b'[' * 100_000,
    ],
)  # fmt: skip
def test_a_body_that_is_no_message_is_unreadable(body):
    with pytest.raises((ValueError, RecursionError)):
        read(body)


def test_another_content_type_is_unreadable():
    with pytest.raises(ValueError, match='content type'):
        read(CAST, 'text/plain')


def test_values_that_json_has_not_are_read():
    text = '{"a": NaN, "b": 1e999, "c": %s, "d": "\\ud800"}' % ('9' * 400)
    found = read(json.dumps({'oslo.version': '2.0', 'oslo.message': text}))
    assert found['a'] != found['a']
    assert (found['b'], found['c']) == (float('inf'), int('9' * 400))
    assert found['d'] == '\ud800'


@pytest.mark.parametrize(
    'address',
    [
        {}, {'_msg_id': 'm'}, {'_reply_q': 'q'},
        {'_msg_id': 5, '_reply_q': 'q'}, {'_msg_id': 'm', '_reply_q': ''},
        {'_msg_id': 'm', '_reply_q': 'q' * 256},
    ],
)  # fmt: skip
def test_no_reply_goes_to_what_is_no_address(address):
    assert wire.reply_address(address) == (None, None)
    assert address == {}


@pytest.mark.parametrize('kind', KINDS)
def test_a_message_is_what_was_packed(kind):
    content = bytes(range(256)) * 5000
    packed, name = compression.compress(content, kind)
    assert wire.unpack(packed, name) == content
    assert wire.unpack(*compression.compress(b'', kind)) == b''
    packed, name = compression.compress(CAST.encode(), kind)
    assert read(packed, compression=name) == read(CAST)


@pytest.mark.parametrize('kind', KINDS)
def test_a_message_is_refused_when_it_is_too_large(kind, monkeypatch):
    monkeypatch.setattr(wire, 'MOST_BYTES', 2**20)
    packed, name = compression.compress(bytes(2**20 + 1), kind)
    assert len(packed) < 2000
    with pytest.raises(ValueError, match='1048576 bytes'):
        wire.unpack(packed, name)


@pytest.mark.parametrize('kind', KINDS)
def test_a_message_is_refused_when_a_part_is_missing(kind):
    packed, name = compression.compress(b'x' * 1000, kind)
    with pytest.raises(ValueError, match='not complete'):
        wire.unpack(packed[:-1], name)


@pytest.mark.parametrize('kind', KINDS)
def test_a_message_packed_otherwise_is_refused(kind):
    _, name = compression.compress(b'', kind)
    with pytest.raises(ValueError, match='cannot be unpacked'):
        wire.unpack(b'none of them', name)
    with pytest.raises(ValueError, match='compressed as x'):
        wire.unpack(b'', 'x')


def test_the_deadline_is_the_expiration_after_the_delivery():
    left = wire.deadline_of({'expiration': '1800000'}) - time.monotonic()
    assert 1700 < left <= 1800


def test_a_message_that_comes_again_has_no_more_time_than_when_it_was_sent():
    assert 0 < seconds_left(Consumer(), 50) <= 10
    request = wire.request(Consumer(), {}, {}, True)
    assert request.deadline is None


@pytest.mark.parametrize('behind', [-3600, -45, 45, 3600])
def test_clocks_of_callers_do_not_matter_once_they_sent_a_message(behind):
    consumer = Consumer()
    seconds_left(consumer, 0, 'other', redelivered=False)
    seconds_left(consumer, behind, 'reply_1', redelivered=False)
    # The ages of both messages are measured.
    assert 20 < seconds_left(consumer, behind + 20, 'reply_1') < 41


@pytest.mark.parametrize('age', [-3600, 60, 3600])
def test_a_clock_that_must_be_wrong_does_not_count(age):
    """The broker delivers no message whose time is over."""
    assert 50 < seconds_left(Consumer(), age) <= 60


def test_few_clocks_are_remembered(monkeypatch):
    monkeypatch.setattr(wire, '_CALLERS', 2)
    consumer = Consumer()
    for caller in ('one', 'two', 'one', 'three'):
        seconds_left(consumer, 45, caller, redelivered=False)
    assert seconds_left(consumer, 46, 'one') > 50
    assert seconds_left(consumer, 46, 'two') < 15


def test_a_reply_is_in_an_envelope():
    version, message = opened(wire.reply('m', {'a': 1}))
    unique_id = message.pop('_unique_id')
    assert (version, message) == (
        '2.0',
        {'result': {'a': 1}, 'failure': None, 'ending': True, '_msg_id': 'm'},
    )
    assert opened(wire.reply('m', 1))[1]['_unique_id'] != unique_id


def test_a_failure_is_text_with_what_makes_the_exception_again():
    error = errors.NoValidHost('none \ud800', hosts=3)
    _, message = opened(wire.reply('m', None, error))
    data = json.loads(message['failure'])
    assert (data['class'], data['module']) == (
        'NoValidHost', 'scheduler_service.errors',
    )  # fmt: skip
    assert data['message'] == 'none \ud800'
    assert (data['args'], data['kwargs']) == (['none \ud800'], {'hosts': 3})
    assert 'NoValidHost' in data['tb'][-1]
    assert message['result'] is None


def test_an_exception_of_a_listed_module_is_made_again():
    text = wire.failure(errors.NoValidHost('none', hosts=3))
    made = deserialize_remote_exception(text, ['scheduler_service.errors'])
    assert isinstance(made, errors.NoValidHost)
    assert (made.facts, made.args) == ({'hosts': 3}, ('none',))
    assert (type(made).__name__, str(made).splitlines()[0]) == (
        'NoValidHost_Remote', 'none',
    )  # fmt: skip
    assert wire.failure(made) != text
    assert json.loads(wire.failure(made))['class'] == 'NoValidHost'
    assert (
        type(deserialize_remote_exception(text, [])).__name__ == 'RemoteError'
    )
    builtin = deserialize_remote_exception(wire.failure(ValueError('no')), [])
    assert isinstance(builtin, ValueError)


def test_a_cast_has_its_context():
    content = {'method': 'done', 'args': {'a': 1}, 'version': '1.0'}
    version, message = opened(wire.encode(wire.cast({'user': 'u'}, content)))
    assert message.pop('_unique_id')
    assert (version, message) == ('2.0', {**content, '_context_user': 'u'})
