"""The checks of ``scheduler-status upgrade check``.

Each check covers one thing that an operator may have to correct. The main
thread runs them; the broker is used on a thread that the process does not
join.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from concurrent import futures
from functools import partial
from typing import Any, TypeVar

import oslo_messaging
from oslo_upgradecheck import common_checks
from oslo_upgradecheck.upgradecheck import Code, Result, UpgradeCommands

from scheduler_service import errors, policies
from scheduler_service.cmd import adapters, connections, daemon
from scheduler_service.cmd.program import run_within
from scheduler_service.conf import FAULTS, effective, option_names
from scheduler_service.rpc import transport
from scheduler_service.store import schema, version
from scheduler_service.store.records import daemons

T = TypeVar('T')
# How long the check of the broker may take, in seconds.
_BROKER_S = 20.0


class _Remark(Exception):
    """What works, and an operator should know."""


def _result(check: Callable[[Any], str | None]) -> Callable[[Any], Any]:
    """Return a check of the library from one that returns details."""

    def run(checks: Any) -> Any:
        try:
            return Result(Code.SUCCESS, check(checks))
        except _Remark as remark:
            return Result(Code.WARNING, str(remark))
        except (errors.SchedulerError, OSError, *FAULTS) as error:
            return Result(Code.FAILURE, str(error))

    return run


class Checks(UpgradeCommands):  # type: ignore[misc]
    """The checks, in the order in which they are printed.

    :param conf: options, parsed when the checks are run
    """

    display_title = 'Upgrade check of scheduler-service'

    def __init__(self, conf: Any) -> None:
        super().__init__()
        self._conf = conf

    def check_tables(self) -> str:
        try:
            current = connections.read(self._conf, version.check, True)
        except errors.SchedulerError as error:
            raise errors.SchedulerError(f'{error.name}: {error}') from None
        newer = '' if current == schema.VERSION else ', which is newer'
        return f'Tables at version {current}{newer}'

    def check_queues(self) -> None:
        own, compute = self._conf.scheduler, self._conf.compute
        if compute.shadow:
            # It declares none of them, and may not.
            return
        looks = [(own.exchange, own.topic, None)]
        if compute.enabled or compute.api_database:
            url = compute.transport_url or None
            looks.append((compute.control_exchange, compute.topic, url))
        for exchange, topic, url in looks:
            _ask(partial(transport.look, self._conf, exchange, topic, url))

    def check_options(self) -> None:
        remarks = list(self._odd_options())
        effective.check(self._conf)
        if remarks:
            raise _Remark('; '.join(remarks))

    def check_start(self) -> None:
        daemon.checked(self._conf).dispose()

    def check_notifications(self) -> str | None:
        try:
            waiting = _ask(lambda: transport.unread_notifications(self._conf))
        except errors.SchedulerError as error:
            return f'Unknown: {error}'
        if waiting:
            queues = ', '.join(f'{name}: {n}' for name, n in waiting.items())
            raise _Remark(
                f'Notifications wait in queues without a consumer ({queues}). '
                'Set [oslo_messaging_notifications] driver = noop, or limit '
                'the queues by a policy with max-length'
            )
        return None

    def check_policy(self) -> None:
        unknown = policies.Enforcer(self._conf).unknown_rules()
        if unknown:
            raise _Remark(f'There are no such rules: {", ".join(unknown)}')

    def check_daemons(self) -> str:
        """Check that all running daemons have the same release."""
        try:
            rows = connections.read(self._conf, daemons.listing, True)
        except errors.SchedulerError:
            return 'No daemon can be at work on these tables'
        live = [row for row in rows if row['silent_for'] < daemons.SILENT_S]
        by_release: dict[str, list[str]] = {}
        for row in live:
            by_release.setdefault(row['version'], []).append(row['name'])
        releases = '; '.join(
            f'{release}: {", ".join(sorted(names))}'
            for release, names in sorted(by_release.items())
        )
        warnings = []
        if len(by_release) > 1:
            warnings.append(
                f'Daemons of several releases are at work: {releases}'
            )
        if len({row['fingerprint'] for row in live}) > 1:
            names = ', '.join(row['name'] for row in live)
            warnings.append(
                f'They are configured differently: {names}; see '
                '"scheduler-manage configuration diff"'
            )
        if elsewhere := {name for row in live for name in row['elsewhere']}:
            names = ', '.join(sorted(elsewhere))
            warnings.append(
                f'Other daemons on the topic have another database: {names}'
            )
        if warnings:
            raise _Remark('; '.join(warnings))
        return f'At work: {releases or "none"}'

    def check_age(self) -> str | None:
        """Check that old messages of the compute service expire.

        The messages do not have the time at which they were sent.
        """
        group = self._conf.compute
        if not group.enabled:
            return None
        address = transport.address(self._conf, group.transport_url)
        if address.transport != transport.RABBIT:
            return None
        try:
            limit = transport.time_to_live(address, group.topic)
        except LookupError as reason:
            return f'Unknown: {reason}. See rabbitmqctl list_policies'
        if limit is None:
            raise _Remark(
                f'Requests in the queue {group.topic} do not expire: requests '
                'that waited while no daemon ran are claimed although their '
                'callers have given up. Set a policy with message-ttl'
            )
        return f'Requests expire after {limit} ms'

    def check_compute_databases(self) -> str | None:
        if not self._conf.compute.api_database:
            return 'They are not followed'
        from scheduler_service.compute import checks

        if silent := '; '.join(checks.cells(self._conf)):
            raise _Remark(silent)
        return None

    def check_placement(self) -> str | None:
        if not self._conf.compute.use_placement:
            return 'It is not used'
        from scheduler_service.compute import checks

        checks.placement(self._conf)
        return None

    _upgrade_checks: tuple[tuple[str, Any], ...] = (
        ('Tables of the database', _result(check_tables)),
        ('Queues of the broker', _result(check_queues)),
        ('Names of options', _result(check_options)),
        ('Start with this configuration', _result(check_start)),
        ('Policy', _result(check_policy)),
        ('Daemons that share the database', _result(check_daemons)),
        (
            'Format of the policy file',
            lambda self: common_checks.check_policy_json(self, self._conf),
        ),
        ('Age of requests of the compute service', _result(check_age)),
        ('Databases of the compute service', _result(check_compute_databases)),
        ('Placement service', _result(check_placement)),
        ('Queues of notifications', _result(check_notifications)),
    )

    def _odd_options(self) -> Iterable[str]:
        # Registers options of libraries. Another check reports faults.
        with contextlib.suppress(errors.ConfigurationError):
            transport.for_notifications(self._conf)
        renamed = {
            (old.group or group or 'DEFAULT', old.name.replace('-', '_')): (
                f'[{group or "DEFAULT"}] {option.name}'
            )
            for group, opts in adapters.list_opts()
            for option in opts
            for old in option.deprecated_opts
        }
        files = option_names.paths(self._conf)
        names = dict.fromkeys(
            (group, name) for _, group, name in option_names.entries(files)
        )
        for group, name in names:
            if now := renamed.get((group, name)):
                yield f'[{group}] {name} is now named {now}'
        yield from option_names.unknown(self._conf)
        exchange = self._conf.scheduler.exchange
        control = self._conf.control_exchange
        if ('DEFAULT', 'control_exchange') in names and control != exchange:
            yield (
                f'[DEFAULT] control_exchange = {control} does not apply to '
                f'requests; [scheduler] exchange is {exchange}'
            )


def _ask(work: Callable[[], T]) -> T:
    """Run work that needs the broker.

    :raises ConfigurationError: the broker refuses the login
    :raises ServiceBusy: it does not answer
    """
    try:
        return run_within(_BROKER_S, work, 'broker')
    except (futures.TimeoutError, oslo_messaging.MessagingException):
        raise errors.ServiceBusy('The broker does not answer') from None
