"""The table of adapters: the only module that imports them.

An adapter is everything for one outside system: the compute service, a
Kubernetes cluster, HTTP extenders, browsers. The options of all adapters are
always registered. The rest of an adapter is imported only by a daemon whose
options enable it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from scheduler_service import conf as core
from scheduler_service import errors
from scheduler_service.compute import options as compute_options
from scheduler_service.extenders import options as extender_options
from scheduler_service.kube import options as kube_options

if TYPE_CHECKING:
    from scheduler_service.adapter import Adapter
    from scheduler_service.engine_config import EngineConfig, Policy
    from scheduler_service.scheduler import Scheduler
    from scheduler_service.store.connection import Store
    from scheduler_service.store.records.audit import Finding

_OPTIONS = (compute_options, extender_options, kube_options)


def new_config() -> Any:
    """Return a configuration object with every option registered."""
    return core.new_config(_OPTIONS)


def load(paths: Iterable[str], folders: Iterable[str] = ()) -> Any:
    """Return the configuration of files, with every value checked.

    :param paths: of the files; none, with *folders*: those in the usual places
    :raises ConfigurationError: a file cannot be read, or a value is not valid
    """
    from scheduler_service.cmd import program
    from scheduler_service.conf import effective

    conf = new_config()
    given = [f'--config-file={path}' for path in paths]
    given += [f'--config-dir={path}' for path in folders]
    try:
        parsed = core.parse(conf, given, prog='scheduler-manage')
    except OSError as fault:
        raise errors.ConfigurationError(program.os_error_text(fault)) from None
    except core.FAULTS as fault:
        raise errors.ConfigurationError(str(fault)) from None
    effective.check(parsed)
    return parsed


def list_opts() -> list[tuple[str | None, list[Any]]]:
    """Return options by group, for oslo-config-generator."""
    from scheduler_service.compute.placement import options as placement

    return [
        *core.list_opts(_OPTIONS),
        (kube_options.EXTENDER_GROUP, list(kube_options.EXTENDER_OPTS)),
        (placement.GROUP, placement.options()),
    ]


def policy(conf: Any) -> Policy | None:
    """Return the policy file's settings; None without a policy file.

    :raises ConfigurationError: the file is unreadable or invalid
    """
    if not conf.extender.policy_file:
        return None
    from scheduler_service.extenders import dispatcher

    return dispatcher.policy(conf)


def engine(conf: Any) -> EngineConfig:
    """Return what the options and the policy file make of the engine.

    :raises ConfigurationError: they cannot be used
    """
    from scheduler_service.factory import engine_config

    return engine_config(conf, policy(conf))


def recorded_stages(conf: Any) -> set[str]:
    """Return the names of the adapters' stages that record what they do."""
    names = set()
    if conf.compute.use_placement:
        from scheduler_service.compute.placement import claimer

        names.add(claimer.PlacementClaimer.name)
    if conf.extender.policy_file:
        from scheduler_service.extenders import dispatcher

        names.add(dispatcher.Bind.name)
    return names


def audit(conf: Any, store: Store) -> list[Finding]:
    """Return what outside systems have otherwise than the store."""
    if not conf.kubernetes.enabled:
        return []
    from scheduler_service.kube import adapter as kube

    return kube.audit(conf, store)


def enabled(conf: Any, store: Store, scheduler: Scheduler) -> list[Adapter]:
    """Return the adapters that the options of *conf* enable.

    :raises ConfigurationError: an option cannot be used
    """
    group = conf.compute
    adapters: list[Adapter] = []
    if (
        group.enabled
        or group.api_database
        or group.use_placement
        or group.external_scheduler
    ):
        from scheduler_service.compute import adapter as compute

        adapters.append(compute.Adapter(conf, store, scheduler))
    if conf.kubernetes.enabled or conf.http.bind_port is not None:
        from scheduler_service.kube import adapter as kube

        adapters.append(kube.Adapter(conf, store, scheduler))
    if conf.http.bind_port is not None and conf.http.pages:
        from scheduler_service.pages import adapter as pages

        adapters.append(pages.Adapter(conf, scheduler))
    return adapters
