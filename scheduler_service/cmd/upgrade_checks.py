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
from oslo_config import cfg
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


class Checks(UpgradeCommands):  # type: ignore[misc]
    """The checks, in the order in which they are printed.

    :param conf: options, parsed when the checks are run
    """

    display_title = 'Upgrade check of scheduler-service'

    def __init__(self, conf: Any) -> None:
        super().__init__()
        self._conf = conf

    def check_tables(self) -> Any:
        try:
            current = self._read(version.check)
        except errors.SchedulerError as error:
            return Result(Code.FAILURE, f'{error.name}: {error}')
        newer = '' if current == schema.VERSION else ', which is newer'
        return Result(Code.SUCCESS, f'Tables at version {current}{newer}')

    def check_queues(self) -> Any:
        own, compute = self._conf.scheduler, self._conf.compute
        looks = [(own.exchange, own.topic, None)]
        if compute.enabled or compute.api_database:
            url = compute.transport_url or None
            looks.append((compute.control_exchange, compute.topic, url))
        try:
            for exchange, topic, url in looks:
                _ask(partial(transport.look, self._conf, exchange, topic, url))
        except errors.SchedulerError as error:
            return Result(Code.FAILURE, str(error))
        return Result(Code.SUCCESS)

    def check_options(self) -> Any:
        try:
            remarks = list(self._odd_options())
        except (cfg.ParseError, OSError) as fault:
            return Result(Code.FAILURE, str(fault))
        if faults := effective.faults(self._conf):
            return Result(Code.FAILURE, '; '.join(faults))
        if remarks:
            return Result(Code.WARNING, '; '.join(remarks))
        return Result(Code.SUCCESS)

    def check_start(self) -> Any:
        try:
            daemon.check(self._conf)
        except (errors.ConfigurationError, *FAULTS) as error:
            return Result(Code.FAILURE, str(error))
        return Result(Code.SUCCESS)

    def check_notifications(self) -> Any:
        try:
            waiting = _ask(lambda: transport.unread_notifications(self._conf))
        except errors.SchedulerError as error:
            return Result(Code.SUCCESS, f'Unknown: {error}')
        if waiting:
            queues = ', '.join(f'{name}: {n}' for name, n in waiting.items())
            text = (
                f'Notifications wait in queues without a consumer ({queues}). '
                'Set [oslo_messaging_notifications] driver = noop, or limit '
                'the queues by a policy with max-length'
            )
            return Result(Code.WARNING, text)
        return Result(Code.SUCCESS)

    def check_policy(self) -> Any:
        try:
            unknown = policies.Enforcer(self._conf).unknown_rules()
        except errors.ConfigurationError as error:
            return Result(Code.FAILURE, str(error))
        if unknown:
            names = ', '.join(unknown)
            return Result(Code.WARNING, f'There are no such rules: {names}')
        return Result(Code.SUCCESS)

    def check_daemons(self) -> Any:
        """Check that all running daemons have the same release."""
        try:
            rows = self._read(daemons.listing)
        except errors.SchedulerError:
            text = 'No daemon can be at work on these tables'
            return Result(Code.SUCCESS, text)
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
            return Result(Code.WARNING, '; '.join(warnings))
        return Result(Code.SUCCESS, f'At work: {releases or "none"}')

    def check_age(self) -> Any:
        """Check that old messages of the compute service expire.

        The messages do not have the time at which they were sent.
        """
        group = self._conf.compute
        if not group.enabled:
            return Result(Code.SUCCESS)
        try:
            address = transport.address(self._conf, group.transport_url)
        except errors.ConfigurationError as error:
            return Result(Code.FAILURE, str(error))
        if address.transport != transport.RABBIT:
            return Result(Code.SUCCESS)
        try:
            limit = transport.time_to_live(address, group.topic)
        except LookupError as reason:
            text = f'Unknown: {reason}. See rabbitmqctl list_policies'
            return Result(Code.SUCCESS, text)
        if limit is None:
            text = (
                f'Requests in the queue {group.topic} do not expire: requests '
                'that waited while no daemon ran are claimed although their '
                'callers have given up. Set a policy with message-ttl'
            )
            return Result(Code.WARNING, text)
        return Result(Code.SUCCESS, f'Requests expire after {limit} ms')

    def check_compute_databases(self) -> Any:
        if not self._conf.compute.api_database:
            return Result(Code.SUCCESS, 'They are not followed')
        from scheduler_service.compute import checks

        try:
            silent = '; '.join(checks.cells(self._conf))
        except errors.ConfigurationError as error:
            return Result(Code.FAILURE, str(error))
        return Result(Code.WARNING if silent else Code.SUCCESS, silent)

    def check_placement(self) -> Any:
        if not self._conf.compute.use_placement:
            return Result(Code.SUCCESS, 'It is not used')
        from scheduler_service.compute import checks

        try:
            checks.placement(self._conf)
        except errors.SchedulerError as error:
            return Result(Code.FAILURE, str(error))
        return Result(Code.SUCCESS)

    def _read(self, look: Callable[[Any], T]) -> T:
        with (
            connections.open_store(self._conf, any_version=True) as store,
            store.reading() as conn,
        ):
            return look(conn)

    _upgrade_checks: tuple[tuple[str, Any], ...] = (
        ('Tables of the database', check_tables),
        ('Queues of the broker', check_queues),
        ('Names of options', check_options),
        ('Start with this configuration', check_start),
        ('Policy', check_policy),
        ('Daemons that share the database', check_daemons),
        (
            'Format of the policy file',
            lambda self: common_checks.check_policy_json(self, self._conf),
        ),
        ('Age of requests of the compute service', check_age),
        ('Databases of the compute service', check_compute_databases),
        ('Placement service', check_placement),
        ('Queues of notifications', check_notifications),
    )

    def _odd_options(self) -> Iterable[str]:
        # Registers options of libraries. Another check reports faults.
        with contextlib.suppress(errors.ConfigurationError):
            transport.for_notifications(self._conf)
        renamed = _renamed()
        names = self._set_options()
        for group, name in names:
            if (group, name) in renamed:
                now = renamed[group, name]
                yield f'[{group}] {name} is now named {now}'
        yield from option_names.unknown(self._conf)
        exchange = self._conf.scheduler.exchange
        control = self._conf.control_exchange
        by_file = ('DEFAULT', 'control_exchange') in names
        if by_file and control != exchange:
            yield (
                f'[DEFAULT] control_exchange = {control} does not apply to '
                f'requests; [scheduler] exchange is {exchange}'
            )

    def _set_options(self) -> list[tuple[str, str]]:
        files = option_names.paths(self._conf)
        options = (
            (group, name) for _, group, name in option_names.entries(files)
        )
        return list(dict.fromkeys(options))


def _ask(work: Callable[[], T]) -> T:
    """Run work that needs the broker.

    :raises ConfigurationError: the broker refuses the login
    :raises ServiceBusy: it does not answer
    """
    try:
        return run_within(_BROKER_S, work, 'broker')
    except (futures.TimeoutError, oslo_messaging.MessagingException):
        raise errors.ServiceBusy('The broker does not answer') from None


def _renamed() -> dict[tuple[str, str], str]:
    """Return older (group, name) of options -> present place."""
    return {
        (old.group or group or 'DEFAULT', old.name.replace('-', '_')): (
            f'[{group or "DEFAULT"}] {option.name}'
        )
        for group, opts in adapters.list_opts()
        for option in opts
        for old in option.deprecated_opts
    }
