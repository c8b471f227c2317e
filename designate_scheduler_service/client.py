"""Asks the daemons of scheduler-service for the pool of a zone.

It knows the message bus and nothing of Designate. A client may be used by any
number of threads; it connects with its first call, so that it may be made
before a service forks its workers.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import msgspec
import oslo_messaging
from amqp.exceptions import AMQPError
from oslo_messaging import exceptions as bus_errors

from designate_scheduler_service.options import GROUP

# The first version in which pools travel with the request.
_VERSION = '1.2'
# How often a connection is tried that is lost: Designate's caller waits.
_RETRIES = 1
# How long a connection may take on top of the timeout of a call, in seconds.
_CONNECT_S = 1.0
# How many calls may wait at once; each is a thread.
_MOST_CALLS = 100
# How daemons word the error on a version that they do not serve, in every
# release. Errors that are not of this process come without their facts.
_NOT_SERVED = f'version {_VERSION} is not served'


class Pool(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A pool that the zone may go to."""

    id: str
    name: str
    description: str | None = None
    attributes: dict[str, str] = {}


class Zone(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The zone to place; its name is None while it is being imported."""

    name: str | None = None
    id: str | None = None
    email: str | None = None
    project_id: str | None = None
    request_id: str | None = None
    attributes: dict[str, str] = {}


class _Reply(msgspec.Struct):
    pool_id: str


class AskError(Exception):
    """No pool was chosen, or no daemon answered.

    :ivar name: of the error as daemons raise it, such as
        ``NoValidPoolFound``; empty where no daemon answered
    """

    def __init__(self, message: str, name: str = '') -> None:
        super().__init__(message)
        self.name = name


class PoolClient:
    """Asks daemons for pools.

    :param conf: oslo.config object with the options of this distribution
    """

    def __init__(self, conf: Any) -> None:
        self._conf = conf
        self._lock = threading.Lock()
        self._calls = threading.BoundedSemaphore(_MOST_CALLS)
        self._transport: Any = None

    def choose(
        self, context: dict[str, Any], zone: Zone, pools: Sequence[Pool]
    ) -> str:
        """Return the id of the pool that a zone goes to; nothing is kept.

        :param context: of the caller: ``user_id``, ``project_id``, ``roles``
            and so on
        :raises AskError: none was chosen, or no daemon answered
        """
        group = self._conf[GROUP]
        place = f'topic {group.topic} of exchange {group.exchange}'
        args = {
            'zone': msgspec.to_builtins(zone),
            'keep': False,
            'pools': msgspec.to_builtins(list(pools)),
        }
        try:
            reply = self._within(
                group.timeout + _CONNECT_S,
                lambda: self._client().call(context, 'schedule_zone', **args),
            )
            return msgspec.convert(reply, _Reply).pool_id
        except oslo_messaging.RemoteError as error:
            raise _refusal(error) from None
        except oslo_messaging.MessagingTimeout:
            raise AskError(
                f'No scheduler answered on {place} within {group.timeout:g} s'
            ) from None
        except bus_errors.MessageUndeliverable:
            raise AskError(f'No scheduler has ever served {place}') from None
        except (oslo_messaging.MessagingException, AMQPError) as error:
            # The library leaves a refused login as that of its driver.
            raise AskError(
                f'The message bus of the scheduler is unreachable: {error}'
            ) from None
        except msgspec.ValidationError as error:
            raise AskError(
                f'The reply of the scheduler is not valid: {error}'
            ) from None

    def _within(self, seconds: float, call: Callable[[], Any]) -> Any:
        """Return what a call returns, on a thread of its own.

        The library tries to reach a broker for ever before its first call.
        At the end of the process that thread is not waited for.

        :raises AskError: it takes longer
        """
        outcome: Future[Any] = Future()

        def run() -> None:
            try:
                outcome.set_result(call())
            except Exception as error:
                outcome.set_exception(error)
            finally:
                self._calls.release()

        if self._calls.acquire(timeout=seconds):
            threading.Thread(target=run, name='pool', daemon=True).start()
            with contextlib.suppress(TimeoutError):
                return outcome.result(seconds)
        raise AskError(
            'The message bus of the scheduler is unreachable: no connection '
            f'within {seconds:g} s'
        )

    def _client(self) -> Any:
        group = self._conf[GROUP]
        with self._lock:
            if self._transport is None:
                self._transport = oslo_messaging.get_rpc_transport(
                    self._conf, url=group.transport_url
                )
        return oslo_messaging.get_rpc_client(
            self._transport,
            oslo_messaging.Target(
                exchange=group.exchange, topic=group.topic, version=_VERSION
            ),
            timeout=group.timeout,
            retry=_RETRIES,
            # Fail at once where no queue is bound to exchange and topic.
            transport_options=oslo_messaging.TransportOptions(
                at_least_once=True
            ),
        )


def _refusal(error: Any) -> AskError:
    """Return the error for an error of a daemon."""
    text, name = str(error.value), str(error.exc_type)
    if name == 'InvalidRequest' and _NOT_SERVED in text:
        return AskError(
            f'The scheduler is older than this filter: {text}; upgrade it'
        )
    return AskError(text, name)
