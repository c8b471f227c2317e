"""Options of the [compute] group: its interface and its databases."""

from __future__ import annotations

from typing import Any

from oslo_config import cfg

from scheduler_service import errors

GROUP = 'compute'

OPTS = [
    cfg.BoolOpt(
        'enabled',
        default=False,
        help="""
Whether the daemon serves the scheduler interface of the compute service.

Conductors of the compute service then get hosts from this daemon, without a
change on their side. The permissions of the broker guard the interface, not
the policy.

Related options:

* ``[scheduler] topic``, which has to differ from ``topic`` where both
  interfaces are on one virtual host
""",
    ),
    cfg.BoolOpt(
        'shadow',
        default=False,
        help="""
Whether the daemon decides copies of the compute service's requests, and
compares: see ``scheduler-manage shadow``.

Another scheduler stays in charge. Nothing is claimed, answered or taken from a
queue, and the daemon has no interface of its own on the broker.

Related options:

* ``enabled``, which has to be off, and ``use_placement``, which has to be on
* ``[database] connection``, of a database that no other daemon uses
""",
    ),
    cfg.FloatOpt(
        'shadow_placement_rate',
        default=50.0,
        min=1.0,
        help="""
For how many instances a shadow asks the placement service in a second.

Requests beyond that are not compared.
""",
    ),
    cfg.StrOpt(
        'transport_url',
        default=None,
        secret=True,
        sample_default='rabbit://scheduler:password@host:5672/nova',
        help="""
The URL of the compute service's message bus.

Unset: ``[DEFAULT] transport_url``, the bus of the daemon's own interface.
""",
    ),
    cfg.StrOpt(
        'control_exchange',
        default='nova',
        required=True,
        help='The exchange that the compute service publishes requests to.',
    ),
    cfg.StrOpt(
        'topic',
        default='scheduler',
        required=True,
        help="""
The topic that the compute service publishes requests to.

Every service that consumes from this topic on the same virtual host gets a
share of its requests, whatever its exchange.
""",
    ),
    cfg.StrOpt(
        'reason',
        mutable=True,
        default='short',
        choices=[
            ('short', 'one sentence that reveals nothing about capacity'),
            ('full', 'every filter with the number of hosts that it left'),
        ],
        help="""
How much of the reason callers get when no host is found.

The reason becomes the fault of the instance, which its tenant reads. The
decision log always has the full reason.
""",
    ),
    cfg.BoolOpt(
        'external_scheduler',
        default=False,
        help="""
Whether the HTTP server answers ``POST /scheduler/nova/external``.

Compute services that let an external scheduler order their hosts make this
call. Share and block storage services have ``/scheduler/manila/external`` and
``/scheduler/cinder/external``. Nothing is claimed.

Related options:

* ``[http] bind_port``, or ``external_scheduler_bind_port``
""",
    ),
    cfg.PortOpt(
        'external_scheduler_bind_port',
        default=None,
        sample_default=9394,
        help="""
The port of a listener for external scheduler calls alone.

The listener serves only these calls and ``/healthcheck``; the server of
``[http]`` then does not answer them. Certificate and limits are those of
``[http]``. Unset: the server of ``[http]`` answers the calls.
""",
    ),
    cfg.HostAddressOpt(
        'external_scheduler_bind_host',
        default='127.0.0.1',
        help="""
The address of the listener of ``external_scheduler_bind_port``.

Any but a loopback address needs ``[http] token_file`` or ``ca_file``, or
``external_scheduler_authentication`` turned off.
""",
    ),
    cfg.BoolOpt(
        'external_scheduler_authentication',
        mutable=True,
        default=True,
        help="""
Whether external scheduler calls need the token or the client certificate of
``[http]``.

The callers send neither by themselves. Turn it off only where the network
lets no other client connect.
""",
    ),
    cfg.FloatOpt(
        'external_weight_multiplier',
        mutable=True,
        default=1.0,
        help="""
Multiplier of the weights that come with external scheduler calls.

These weights count like those of one more weigher.
""",
    ),
    cfg.StrOpt(
        'external_unknown_hosts',
        mutable=True,
        default='last',
        choices=[
            ('last', 'they come last, in the order in which they were sent'),
            ('dropped', 'they are left out'),
        ],
        help="""
What happens to hosts of external scheduler calls that are not in the store.
""",
    ),
    cfg.StrOpt(
        'api_database',
        default=None,
        secret=True,
        sample_default='mysql+pymysql://reader:secret@10.0.0.1/nova_api',
        help="""
The URL of the compute service's API database, from which hosts are mirrored.

Cells, hosts, services, instances and aggregates are read from it and from the
databases of the cells, and followed as they change. These databases are never
written: a user with the right to SELECT is enough. Unset: nothing is mirrored.

Related options:

* ``cell_database``
* ``[database] connection``, the scheduler's own database
""",
    ),
    cfg.StrOpt(
        'cell_database',
        default=None,
        secret=True,
        sample_default='mysql+pymysql://reader:secret@10.0.0.1/nova',
        help="""
The URL whose parts fill in templates of the cells' database URLs.

Cell mappings may be templates, such as
``{scheme}://{username}:{password}@{hostname}/nova_cell1``. The compute service
takes the parts from its ``[database] connection``. Unset: the parts of
``api_database``.
""",
    ),
    cfg.BoolOpt(
        'use_placement',
        default=False,
        help="""
Whether capacity comes from the placement service, and claims go to it.

Possible values:

* false: totals and use are those of compute nodes; a claim is complete once
  it is in the scheduler's own database
* true: totals, use, traits and other resources are those of resource
  providers; a claim is complete once the placement service has the allocations

Related options:

* ``api_database``, which has to be set
* the group ``[placement]``
""",
    ),
    cfg.FloatOpt(
        'placement_interval',
        mutable=True,
        default=60.0,
        min=1.0,
        help="""
How often all resource providers are read, in seconds.

Providers of hosts that changed are read at once.
""",
    ),
    cfg.FloatOpt(
        'poll_interval',
        mutable=True,
        default=1.0,
        min=0.05,
        help="""
How often changes are read from the compute service's databases, in seconds.
""",
    ),
    cfg.FloatOpt(
        'full_interval',
        mutable=True,
        default=300.0,
        min=1.0,
        help="""
How often the compute service's databases are read as a whole, in seconds.

A whole read also finds changes that ``poll_interval`` misses, such as rows
removed by hand or written by a host whose clock is wrong.
""",
    ),
    cfg.FloatOpt(
        'service_down_time',
        mutable=True,
        default=60.0,
        min=1.0,
        help="""
After how many seconds without a report a compute service is down.

Set it like the compute service's own ``[DEFAULT] service_down_time``. Reports
are compared with the clock of the daemon's host.
""",
    ),
    cfg.FloatOpt(
        'connect_timeout',
        mutable=True,
        default=3.0,
        min=1.0,
        max=1e6,
        help="""
How long connecting to a database of the compute service may take, in seconds.
""",
    ),
    cfg.FloatOpt(
        'statement_timeout',
        mutable=True,
        default=20.0,
        min=1.0,
        max=1e6,
        help="""
How long a statement in a database of the compute service may take, in seconds.

The hosts of a cell that does not answer in time are down until it answers.
""",
    ),
]


def register_opts(conf: Any) -> None:
    """Register this module's options on *conf*."""
    conf.register_opts(OPTS, group=GROUP)


def check(conf: Any) -> None:
    """Check that options of the group fit each other and other groups.

    A queue is named by its topic alone: on one virtual host, each interface
    would get a share of the other's requests.

    :raises ConfigurationError: both interfaces would share a queue, placement
        is to be used without the compute service's databases, or an option of
        the compute service is not supported
    """
    group = conf.compute
    if conf.scheduler.query_placement_for_routed_network_aggregates:
        raise errors.ConfigurationError(
            '[scheduler] query_placement_for_routed_network_aggregates is not '
            'supported: aggregates of routed networks are not read'
        )
    if group.use_placement and not group.api_database:
        raise errors.ConfigurationError(
            '[compute] use_placement needs [compute] api_database: '
            'providers are found by the uuids of compute nodes'
        )
    if group.shadow and (group.enabled or not group.use_placement):
        raise errors.ConfigurationError(
            '[compute] shadow needs [compute] use_placement, and [compute] '
            'enabled turned off: what another scheduler takes is read in the '
            'placement service'
        )
    if not group.enabled or group.transport_url:
        return
    if group.topic == conf.scheduler.topic:
        raise errors.ConfigurationError(
            f'[scheduler] topic and [compute] topic are both {group.topic}: '
            'set [scheduler] topic to another one, or [compute] transport_url'
        )
