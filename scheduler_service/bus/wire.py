"""The wire form of oslo.messaging: envelopes, requests, replies, failures.

Unmodified clients of oslo.messaging send these messages and read the replies.
Stateless; any thread may use the module.
"""

from __future__ import annotations

import abc
import bz2
import dataclasses
import json
import lzma
import math
import os
import time
import traceback
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from scheduler_service.tracing import Trace

# The most bytes of an unpacked message: many times a request.
MOST_BYTES = 64 * 2**20
# The most bytes of the name of a queue or an exchange.
LONGEST_NAME = 255
# Methods that need no database.
WITHOUT_DATABASE = frozenset(('ping',))
# Properties of every message.
PROPERTIES = {'content_type': 'application/json', 'content_encoding': 'utf-8'}
_CONTEXT = '_context_'
_UNIQUE_ID = '_unique_id'
# Suffix of the routing key of casts to all daemons.
_PEERS = '.peers'
# Suffix of the classes that clients make for remote errors.
_REMOTE = '_Remote'
# When the caller sent a message, by its clock, in seconds since the epoch.
SENT_AT = 'scheduler_sent_at'
# Names in contexts, and those that other releases of oslo.context have.
_OLDER_NAMES = {
    'user_id': 'user',
    'project_id': 'project',
    'domain_id': 'domain',
    'request_id': 'request',
    'global_request_id': 'global_request',
}
# The number of callers whose clock difference is kept.
_CALLERS = 10_000
# An upper bound of valid times, in seconds.
_NO_TIME = 1e15
# Content type, as kombu names it -> constructor of the unpacker.
_UNPACKERS: dict[str, Callable[[], Any]] = {
    'application/x-gzip': zlib.decompressobj,
    'application/x-bz2': bz2.BZ2Decompressor,
    'application/x-lzma': lzma.LZMADecompressor,
}


class Consumer(abc.ABC):
    """Takes requests from a bus, and publishes replies and casts on it.

    The methods that are not abstract suit a bus that is always reachable.

    :param exchange: of casts that name no exchange
    """

    def __init__(self, exchange: str) -> None:
        self.exchange = exchange
        # Reply queue -> the age of the newest message that came from there
        # for the first time.
        self._ages: dict[str | None, float] = {}

    def queued_for(
        self, reply_q: str | None, sent_at: float, redelivered: bool
    ) -> float:
        """Return how long a message was queued before, in seconds, or less.

        By how much the clocks of its caller and of this daemon differ is seen
        by an earlier message of the caller, unless there was none.

        :param sent_at: by the caller's clock
        """
        age = time.time() - sent_at
        if redelivered:
            return max(0.0, age - self._ages.get(reply_q, 0.0))
        if reply_q is not None:
            self._ages.pop(reply_q, None)
            self._ages[reply_q] = age
            if len(self._ages) > _CALLERS:
                del self._ages[next(iter(self._ages))]
        return 0.0

    @abc.abstractmethod
    def start(self) -> None:
        """Begin to consume.

        :raises ConfigurationError: the bus cannot be used
        """

    @abc.abstractmethod
    def call(self, work: Callable[..., None], *args: Any) -> None:
        """Run work on the consumer's thread, after earlier work."""

    def pause(self) -> None:  # noqa: B027 - not all have other daemons
        """Stop consuming what other daemons may consume."""

    def resume(self) -> None:  # noqa: B027
        """Consume again."""

    def fault(self) -> str:
        """Return why no requests can arrive; empty if they can."""
        return ''

    def stuck(self) -> int:
        """Return how many replies wait, if none are accepted; else 0."""
        return 0

    def in_lines(self) -> int:
        """Return how many replies wait for queues that refuse them."""
        return 0

    @abc.abstractmethod
    def stop_consuming(self) -> None:
        """Consume nothing more, and wait until that is so."""

    @abc.abstractmethod
    def close(self) -> None:
        """Disconnect, and end the thread."""

    def is_lost(self, request: Request) -> bool:
        """Whether the bus may deliver a request again."""
        return False

    def is_unwanted(self, request: Request) -> bool:
        """Whether a request must not be processed, since the daemon pauses."""
        return False

    # The consumer's thread alone:

    @abc.abstractmethod
    def publish(self, publication: Publication) -> None:
        """Publish a reply or a cast, without waiting."""

    @abc.abstractmethod
    def acknowledge(self, request: Request) -> None:
        """Acknowledge a request soon: its work is done."""

    def refuse(self, request: Request, publication: Publication) -> None:
        """Acknowledge a request, then publish the reply that refuses it.

        Neither happens if the bus delivers the request again.
        """
        self.acknowledge(request)
        self.publish(publication)

    @abc.abstractmethod
    def hold(self, request: Request) -> None:
        """Take a request back until it can be processed or returned."""


@dataclasses.dataclass(eq=False, repr=False)
class Request:
    """A request, which stays unacknowledged until its work is done.

    :ivar message: method, arguments and version, as the caller sent them
    :ivar ctxt: the caller's context
    :ivar unique_id: of the message, the same with each delivery
    :ivar msg_id: of the call; None: a cast, or no reply is possible
    :ivar reply_q: queue of the caller; None without ``msg_id``
    :ivar timeout: after how many seconds without a heartbeat the caller gives
        up; None: it expects no heartbeats
    :ivar deadline: monotonic time at which the caller gives up; None: never
    :ivar redelivered: whether it was delivered before, to any daemon, and may
        have been processed
    :ivar taken_at: monotonic time at which the server took it
    :ivar came_after: monotonic time at which it had not arrived; infinite:
        it is not known
    :ivar shared: whether it came from the queue that daemons share
    :ivar returns: how often it was returned to its queue, or its connection
        was lost; only quorum queues count that
    :ivar settled: whether it has its reply, or is no longer processed
    :ivar trace: of the request; None: it is not traced
    :ivar connection: number of the connection that it came over first
    :ivar tags: for the consumer: what identifies the message on the bus
    """

    consumer: Consumer
    message: dict[str, Any]
    ctxt: dict[str, Any]
    unique_id: Any = None
    msg_id: str | None = None
    reply_q: str | None = None
    timeout: Any = None
    deadline: float | None = None
    redelivered: bool = False
    taken_at: float = 0.0
    came_after: float = math.inf
    shared: bool = False
    returns: int = 0
    settled: bool = False
    trace: Trace | None = None
    connection: int = 0
    tags: Any = None

    @property
    def method(self) -> Any:
        """The method's name; None: the message names no method."""
        return self.message.get('method')

    @property
    def args(self) -> Any:
        """The arguments, which are a dict if the message is valid."""
        return self.message.get('args', {})

    @property
    def is_call(self) -> bool:
        """Whether a caller waits for a reply."""
        return self.msg_id is not None

    def is_lost(self) -> bool:
        """Whether its connection is closed: the broker delivers it again."""
        return self.consumer.is_lost(self)

    def has_copies(self) -> bool:
        """Whether other daemons may process it, too."""
        return self.redelivered or self.is_lost()

    def requeue(self) -> None:
        """Give it back, for other daemons or for later.

        It may have been processed, so it counts as delivered before.
        """
        self.settled = self.redelivered = True
        self.consumer.call(self.consumer.hold, self)


@dataclasses.dataclass(slots=True, eq=False)
class Publication:
    """A message to publish until its queue has it.

    :param destination: names the queue in the log; publications of the same
        destination keep their order
    :param exchange: empty: the default exchange
    :param key: routing key; None: the destination
    :param done: called once with whether the queue has the message
    :param release: called if the message may have to wait for long
    :param repeated: whether it is published again if its queue is missing or
        full
    :ivar refuses: whether its request was acknowledged just before, and the
        broker may not have noticed that yet
    """

    destination: str
    body: bytes
    done: Callable[[bool], None]
    release: Callable[[], None] | None = None
    exchange: str = ''
    key: str | None = None
    repeated: bool = True
    expires: float = 0.0
    published: float = 0.0
    returned: bool = False
    refuses: bool = False


class _Envelope(msgspec.Struct):
    version: str = msgspec.field(name='oslo.version')
    message: str = msgspec.field(name='oslo.message')


_decode = msgspec.json.Decoder().decode
_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_encode = msgspec.json.Encoder().encode


def read(body: bytes, properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the message inside a body.

    :param properties: of the AMQP message
    :raises ValueError, RecursionError: it is not in the wire form
    """
    if properties.get('content_type') != PROPERTIES['content_type']:
        raise ValueError('its content type is not application/json')
    headers = properties.get('application_headers') or {}
    packed = headers.get('compression')
    message = _opened(unpack(body, packed) if packed else body)
    if not isinstance(message, dict):
        raise ValueError('it is not an object')
    return message


def _opened(body: bytes) -> Any:
    """Return the message in an envelope, or a message without any."""
    try:
        envelope = _decode_envelope(body)
    except msgspec.ValidationError:
        message = _parse(body)
        if isinstance(message, dict) and 'oslo.message' in message:
            raise
        return message
    if envelope.version.split('.')[:2] != ['2', '0']:
        raise ValueError(f'its version is {envelope.version[:20]}')
    return _parse(envelope.message)


def _parse(text: bytes | str) -> Any:
    """Return the value of a JSON text, which may have NaN and Infinity."""
    try:
        return _decode(text)
    except msgspec.DecodeError:
        return json.loads(text)


def unpack(body: bytes, kind: str) -> bytes:
    """Return a compressed body unpacked.

    :param kind: content type of the compression
    :raises ValueError: it is too large or incomplete
    """
    unpacker = _UNPACKERS.get(kind)
    if unpacker is None:
        raise ValueError(f'it is compressed as {str(kind)[:50]}')
    work = unpacker()
    try:
        content: bytes = work.decompress(body, MOST_BYTES)
    except (zlib.error, lzma.LZMAError, OSError) as fault:
        raise ValueError(f'it cannot be unpacked: {fault}') from None
    if not work.eof:
        raise ValueError(
            f'the message is not complete, or has more than {MOST_BYTES} '
            'bytes when it is unpacked'
        )
    return content


def request(
    consumer: Consumer,
    message: dict[str, Any],
    properties: Mapping[str, Any],
    redelivered: bool,
) -> Request:
    """Return the request of a message.

    :param message: its parts that the bus adds are removed
    :param redelivered: whether the broker delivered it before
    """
    context = context_of(message)
    headers = properties.get('application_headers') or {}
    count = headers.get('x-delivery-count')
    msg_id, reply_q = reply_address(message)
    sent = sent_at(context)
    queued = 0.0
    if sent is not None:
        queued = consumer.queued_for(reply_q, sent, redelivered)
    parsed = Request(
        consumer,
        message,
        context,
        message.pop(_UNIQUE_ID, None),
        msg_id,
        reply_q,
        timeout=message.pop('_timeout', None),
        deadline=deadline_of(properties, queued),
        returns=count if isinstance(count, int) else 0,
    )
    # Redelivered messages are counted in the database first.
    parsed.redelivered = redelivered and parsed.method not in WITHOUT_DATABASE
    return parsed


def context_of(message: dict[str, Any]) -> dict[str, Any]:
    """Remove the caller's context from a message; return it."""
    context = {
        key[len(_CONTEXT) :]: message.pop(key)
        for key in list(message)
        if key.startswith(_CONTEXT)
    }
    name_caller(context)
    return context


def peers_key(topic: str) -> str:
    """Return the routing key of casts to all daemons on a topic."""
    return f'{topic}{_PEERS}'


def topic_of_peers(key: str) -> str | None:
    """Return the topic of a routing key of :func:`peers_key`, or None."""
    return key.removesuffix(_PEERS) if key.endswith(_PEERS) else None


def is_name(text: str) -> bool:
    """Whether the text is a valid name of a queue or an exchange."""
    return 0 < len(text.encode(errors='replace')) <= LONGEST_NAME


def reply_address(
    message: dict[str, Any],
) -> tuple[str | None, str | None]:
    """Remove the caller's id and reply queue from a message; return them.

    :return: (None, None) for a cast, and if either is not a valid name on the
        broker, so that no reply is possible
    """
    call, queue = message.pop('_msg_id', None), message.pop('_reply_q', None)
    if not (isinstance(call, str) and isinstance(queue, str)):
        return None, None
    return (call, queue) if is_name(queue) else (None, None)


def name_caller(ctxt: dict[str, Any]) -> None:
    """Add what a context has under older names alone under the newer."""
    for name, older in _OLDER_NAMES.items():
        if ctxt.get(older) and not ctxt.get(name):
            ctxt[name] = ctxt[older]


def sent_at(ctxt: Mapping[str, Any]) -> float | None:
    """Return when a message was sent; None: unknown."""
    value = ctxt.get(SENT_AT)
    # NaN compares false.
    is_time = isinstance(value, float) and abs(value) < _NO_TIME
    return value if is_time else None


def deadline_of(
    properties: Mapping[str, Any], queued: float = 0.0
) -> float | None:
    """Return when a message that is delivered now expires, monotonic.

    Its time to live is in milliseconds, as text, which the broker has checked.
    A message without a time to live never expires.

    :param queued: seconds of that time which a redelivered message has used
        up, whose caller may have given up and called again. Where they are all
        of it, the clocks are wrong: the broker drops messages that expired
    """
    lives = properties.get('expiration')
    if lives is None:
        return None
    seconds = int(lives) / 1000
    return time.monotonic() + seconds - (queued if queued < seconds else 0.0)


def reply(
    msg_id: str | None,
    result: Any,
    error: BaseException | None = None,
    ending: bool = True,
) -> bytes:
    """Return the encoded reply to a call, or a heartbeat to its caller.

    :param result: plain values or typed documents; None with an error
    :param ending: false: a heartbeat
    """
    message = {
        'result': result,
        'failure': None if error is None else failure(error),
        'ending': ending,
        '_msg_id': msg_id,
        _UNIQUE_ID: os.urandom(16).hex(),
    }
    return encode(message)


def cast(
    ctxt: Mapping[str, Any], content: Mapping[str, Any], **more: Any
) -> dict[str, Any]:
    """Return the message of a cast.

    :param content: method, arguments and version
    :param more: parts of a call
    """
    return {
        **content,
        _UNIQUE_ID: os.urandom(16).hex(),
        **{f'{_CONTEXT}{name}': value for name, value in ctxt.items()},
        **more,
    }


def encode(message: Mapping[str, Any]) -> bytes:
    """Return an encoded message of plain values."""
    return enclose(_encode(message).decode())


def enclose(text: str) -> bytes:
    """Return a message, which is JSON, in an envelope."""
    return _encode({'oslo.version': '2.0', 'oslo.message': text})


def failure(error: BaseException) -> str:
    """Return an error as text, from which clients make an exception again."""
    kind = type(error)
    data = {
        'class': kind.__name__.removesuffix(_REMOTE),
        'module': kind.__module__.removesuffix(_REMOTE),
        'message': str(error),
        'tb': traceback.format_exception(kind, error, None),
        'args': error.args,
        'kwargs': getattr(error, 'kwargs', {}),
    }
    return json.dumps(data, default=str)
