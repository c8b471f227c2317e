"""Policy rules: who may call which method, and for whose instances.

An ``Enforcer`` may be used by any thread. Its verdicts are kept, since
evaluating a rule takes longer than scheduling a request.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
from collections.abc import Hashable, Mapping
from typing import Any

from oslo_config import cfg
from oslo_policy import opts as policy_options
from oslo_policy import policy

from scheduler_service import conf as options
from scheduler_service import errors

LOG = logging.getLogger(__name__)
_OWNER = 'project_id:%(project_id)s'
_ADMIN = 'rule:admin_required'
_SERVICE = 'rule:service_or_admin'
_PROJECT = 'rule:owner_or_service_or_admin'
# Name, what it takes, and what it is for or lets its callers do.
_ALIASES = (
    ('admin_required', 'role:admin or is_admin:True',
     'Callers that may do everything.'),
    ('service_or_admin', 'rule:admin_required or role:service',
     'Other services, and hosts that report.'),
    ('owner_or_service_or_admin', f'rule:service_or_admin or {_OWNER}',
     'Also the project that the instance, group or zone belongs to.'),
)  # fmt: skip
_METHODS = (
    ('select_destinations', _PROJECT,
     'Select hosts for instances of a project and claim them; join its '
     'server groups.'),
    ('select_destinations:forced_host', _ADMIN,
     'Name the host or node in force_hosts, force_nodes or '
     'requested_destination.'),
    ('select_destinations:dry_run', _ADMIN,
     'Ask which hosts would be selected, without a claim.'),
    ('schedule_zone', _PROJECT, 'Select the pool of a zone of a project.'),
    ('schedule_zone:dry_run', _ADMIN,
     'Ask which of the stored pools would be selected, and store none.'),
    ('zone_create_forced_pool', _ADMIN,
     'Select the pool of a zone by the attribute pool_id.'),
    ('schedule_many', _PROJECT,
     'Send many requests in one message. The rules of its entries are '
     'checked for each entry, too.'),
    ('release', _PROJECT, 'Release the claims of instances.'),
    ('confirm', _PROJECT, 'Confirm the claims and moves of instances.'),
    ('drop_moves', _PROJECT, 'Release the second claims of moves.'),
    ('explain', _ADMIN,
     'Ask why hosts are selected or rejected, also over HTTP.'),
    ('ping', _ADMIN, 'Read the state of a daemon.'),
    ('update_host_state', _SERVICE, 'Report the state and use of hosts.'),
    ('heartbeat', _SERVICE, 'Report that hosts are alive.'),
    ('update_instance_info', _SERVICE, 'Report instances of a host.'),
    ('delete_instance_info', _SERVICE,
     'Report that a host does not have instances any more.'),
    ('sync_instance_info', _SERVICE, 'Report all instances of a host.'),
    ('update_aggregates', _ADMIN, 'Add and change aggregates.'),
    ('delete_aggregate', _ADMIN, 'Remove an aggregate.'),
    ('list_decisions', _ADMIN, 'List past decisions, over HTTP.'),
    ('show_decision', _ADMIN,
     'Read a past decision with its reasons, over HTTP.'),
    ('list_hosts', _ADMIN, 'List hosts, and how full zones are, over HTTP.'),
    ('show_host', _ADMIN, 'Read all about a host, over HTTP.'),
    ('list_daemons', _ADMIN,
     'List the daemons that share the store, over HTTP.'),
)  # fmt: skip
RULES = [
    policy.RuleDefault(name=name, check_str=check, description=description)
    for name, check, description in _ALIASES + _METHODS
]
# How often the policy files are looked at, in seconds.
_RELOAD_S = 1.0
_MAX_VERDICTS = 10_000
# What identifies a caller where rules read more than roles and the project.
_IDENTITY = ('user_id', 'project_id', 'domain_id', 'system_scope')
_CHECK = re.compile(r'@|!|and|or|not|rule:[^%]+|is_admin:(True|False)')
_ROLE = re.compile(r'role:([^%]+)')


def method_rules() -> list[str]:
    """Return the names of the rules that are checked by themselves."""
    return [name for name, _, _ in _METHODS]


def list_rules() -> list[Any]:
    """Return the rules with their defaults, for the sample's generator."""
    return list(RULES)


def enforcer_of_tools() -> Any:
    """Return the enforcer that oslo.policy's tools check.

    They read their options from ``cfg.CONF``, from the files that their
    command line names, or else from those that the daemon reads.
    """
    conf = cfg.CONF
    if not conf.config_file and not conf.config_dir:
        conf(sys.argv[1:], project=options.PROJECT, prog='scheduler-service')
    policy_options.set_defaults(conf)
    path = conf.find_file(conf.oslo_policy.policy_file)
    if path:
        # The tools open the path that the options have.
        conf.set_override('policy_file', path, 'oslo_policy')
    enforcer = policy.Enforcer(conf)
    enforcer.register_defaults(RULES)
    return enforcer


class Enforcer:
    """Evaluates the rules, as the operator's policy files change them.

    The files are read again when they change. Verdicts are kept by what the
    rules read: as long as that is roles, ``is_admin`` and whether the caller
    owns the target, there are few. Where a rule reads anything else, they are
    kept for a second by all that identifies the caller and the target.

    :param conf: options, with those of [oslo_policy]
    :raises ConfigurationError: a policy file cannot be read or used
    """

    def __init__(self, conf: Any) -> None:
        self._enforcer = policy.Enforcer(conf)
        self._enforcer.register_defaults(RULES)
        self._lock = threading.Lock()
        self._verdicts: dict[Hashable, bool] = {}
        self._texts: dict[str, str] = {}
        # Lower-case roles that rules name; None: rules read more than roles.
        self._roles: frozenset[str] | None = None
        try:
            self._read()
        except Exception as fault:
            raise errors.ConfigurationError(
                '[oslo_policy] policy_file or policy_dirs cannot be read: '
                f'{fault}'
            ) from None
        for name in self.unknown_rules():
            LOG.warning('Policy: %s: there is no such rule, ignored', name)
        faults = self.faults()
        if faults:
            raise errors.ConfigurationError(f'Policy: {"; ".join(faults)}')
        self._reload_at = time.monotonic() + _RELOAD_S

    def allows(
        self,
        rule: str,
        target: Mapping[str, Any],
        credentials: Mapping[str, Any],
    ) -> bool:
        """Return whether a rule lets a caller act on something.

        :param target: its ``project_id``, if it has a project, and what else
            a rule may read
        :param credentials: of the caller
        """
        if time.monotonic() >= self._reload_at:
            self._reload()
        verdicts = self._verdicts
        key = self._key(rule, target, credentials)
        verdict = verdicts.get(key)
        if verdict is None:
            # No project owns a target without a project: absent values must
            # not compare as equal.
            facts = {n: of for n, of in target.items() if of is not None}
            caller = {n: of for n, of in credentials.items() if of is not None}
            with self._lock:
                verdict = bool(self._enforcer.enforce(rule, facts, caller))
            if len(verdicts) >= _MAX_VERDICTS:
                verdicts.clear()
            # After a reload this is no longer the dict that is read.
            verdicts[key] = verdict
        return verdict

    def adopt(self, other: Enforcer) -> None:
        """Take the rules and the files of another enforcer, from now on."""
        with self._lock:
            self._enforcer = other._enforcer
            self._texts = other._texts
            self._roles = other._roles
            self._verdicts = {}

    def faults(self) -> list[str]:
        """Return why rules of the policy files cannot be used.

        Such a rule allows nothing.
        """
        faults = [
            f'{name}: {rule.check_str!r} cannot be parsed'
            for name, rule in self._enforcer.file_rules.items()
            if str(rule.check) == '!' and rule.check_str != '!'
        ]
        try:
            self._enforcer.check_rules(raise_on_violation=True)
        except policy.InvalidDefinitionError as fault:
            faults.append(str(fault))
        return faults

    def unknown_rules(self) -> list[str]:
        """Return names in the policy files that nothing asks for."""
        texts = ' '.join(self._texts.values())
        used = {rule.name for rule in RULES} | {'default'}
        used.update(re.findall(r'rule:([^\s()]+)', texts))
        return sorted(self._enforcer.file_rules.keys() - used)

    def _key(
        self,
        rule: str,
        target: Mapping[str, Any],
        credentials: Mapping[str, Any],
    ) -> Hashable:
        """Return what a verdict depends on."""
        is_admin = credentials.get('is_admin') is True
        if self._roles is not None:
            project = credentials.get('project_id')
            owns = bool(project) and project == target.get('project_id')
            roles = map(str.lower, credentials['roles'])
            return rule, owns, is_admin, self._roles.intersection(roles)
        return (
            rule,
            is_admin,
            tuple(credentials['roles']),
            tuple(credentials.get(name) for name in _IDENTITY),
            tuple(sorted((name, str(of)) for name, of in target.items())),
        )

    def _reload(self) -> None:
        """Read policy files that changed; keep the rules if that fails."""
        with self._lock:
            self._reload_at = time.monotonic() + _RELOAD_S
            try:
                self._read()
            except Exception as fault:
                LOG.error(
                    'The policy file cannot be read, the rules before it '
                    'stay in force: %s',
                    fault,
                )

    def _read(self) -> None:
        self._enforcer.load_rules()
        rules = self._enforcer.rules
        texts = dict(zip(rules, map(str, rules.values()), strict=True))
        if texts != self._texts:
            changed, self._texts = bool(self._texts), texts
            self._roles = _roles_read(texts)
            self._verdicts = {}
            if changed:
                LOG.info('The policy changed')
                for fault in self.faults():
                    LOG.error('Policy: %s; it allows nothing', fault)
        elif self._roles is None:
            self._verdicts = {}


def _roles_read(texts: Mapping[str, str]) -> frozenset[str] | None:
    """Return the roles that rules name, in lower case.

    :return: None where a rule reads anything but roles, ``is_admin`` and
        whether the caller's project owns the target
    """
    roles = set()
    for text in texts.values():
        words = text.replace(_OWNER, '@').replace('(', ' ').replace(')', ' ')
        for word in words.split():
            role = _ROLE.fullmatch(word)
            if role:
                roles.add(role[1].lower())
            elif not _CHECK.fullmatch(word):
                return None
    return frozenset(roles)
