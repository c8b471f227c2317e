"""Options of the [scheduler] group: the daemon and its engine."""

from __future__ import annotations

from oslo_config import cfg

GROUP = 'scheduler'

OPTS = [
    cfg.ListOpt(
        'stages',
        default=[],
        help="""
Stages of plug-ins that run between a claim and its answer.

Each is ``NAME after=PLACE``: the name of an entry point
``scheduler_service.stages``, or the dotted path of a class, and the stage that
it follows: ``claim``, ``complete``, ``bind`` or one before it in the list.
Options of their own are in ``plugin_options``. All daemons that share a
database need the same stages.

Related options:

* ``[filter_scheduler] plugin_options``
""",
    ),
    cfg.IntOpt(
        'max_attempts',
        default=3,
        min=1,
        deprecated_opts=[
            cfg.DeprecatedOpt('max_attempts', group='filter_scheduler'),
            cfg.DeprecatedOpt('scheduler_max_attempts', group='DEFAULT'),
        ],
        help="""
The most hosts on which a build may be tried.

Each selected host comes with alternates, up to one less than this number.
""",
    ),
    cfg.BoolOpt(
        'enable_isolated_aggregate_filtering',
        default=False,
        help="""
Whether aggregates with required traits accept only requests for them.

An aggregate with the metadata ``trait:NAME=required`` accepts only requests
whose flavor or image requires that trait; with several, all of them.
""",
    ),
    cfg.BoolOpt(
        'limit_tenants_to_placement_aggregate',
        default=False,
        help="""
Whether a project is limited to its own aggregates.

A project's aggregates have metadata ``filter_tenant_id*`` equal to its id.

Related options:

* ``placement_aggregate_required_for_tenants``
""",
    ),
    cfg.BoolOpt(
        'placement_aggregate_required_for_tenants',
        default=False,
        help="""
Whether requests of projects without an aggregate of their own fail.

Related options:

* ``limit_tenants_to_placement_aggregate``
""",
    ),
    cfg.BoolOpt(
        'query_placement_for_availability_zone',
        default=False,
        help="""
Whether requests of our own interface are limited to whole aggregates.

Those with their availability zone as the whole value of the metadata
``availability_zone``, before the filters run; the zone counts in any case. The
compute service's requests are always limited so, whatever this option says: a
zone that no aggregate has does not limit them.
""",
    ),
    cfg.BoolOpt(
        'query_placement_for_image_type_support',
        default=False,
        help="Whether hosts need the trait of the image's disk format.",
    ),
    cfg.BoolOpt(
        'query_placement_for_routed_network_aggregates',
        default=False,
        help="""
Not supported: with ``true`` a daemon beside a compute service does not start.

The compute service's scheduler then limits a request for ports of a routed
network to the aggregates of its segments, which it reads from the network
service.
""",
    ),
    cfg.BoolOpt(
        'image_metadata_prefilter',
        default=False,
        help='Whether hosts need the traits of the image properties.',
    ),
    cfg.StrOpt(
        'topic',
        default='scheduler-service',
        required=True,
        help="""
The topic on the message bus that the daemon serves.

The queue has this name. On a shared virtual host of RabbitMQ, no other service
may use the same name; the compute service's scheduler uses ``scheduler``.

Related options:

* ``exchange``
""",
    ),
    cfg.StrOpt(
        'exchange',
        default='openstack',
        required=True,
        help="""
The exchange that the daemon binds its queues to.

Callers have to publish to this exchange. ``[DEFAULT] control_exchange`` is
not used here: its value differs between services.
""",
    ),
    cfg.StrOpt(
        'server',
        sample_default='scheduler-1',
        help="""
The name of this daemon on the topic.

Unset: the host name with the process id, so that several daemons can run on
one machine.
""",
    ),
    cfg.IntOpt(
        'batch_size',
        default=64,
        min=1,
        max=1000,
        help="""
The most requests scheduled and claimed in one transaction.

Larger batches need fewer transactions, and lose more work if another daemon
claims the same hosts.
""",
    ),
    cfg.FloatOpt(
        'snapshot_max_age',
        default=0.2,
        min=0.0,
        help="""
How old the daemon's snapshot of hosts may be, in seconds.

An older snapshot is refreshed from the change feed before the next decision. A
claim always checks the database itself. Where refreshing is slow, the age may
reach four times the duration of a refresh, up to 5 seconds. 0: the snapshot is
refreshed before each decision.
""",
    ),
    cfg.IntOpt(
        'decisions_kept',
        default=100000,
        min=0,
        help="""
How many decisions are stored with their reasons; 0 stores none.

``scheduler-manage decision show`` prints them.

Related options:

* ``decisions_max_age``
""",
    ),
    cfg.FloatOpt(
        'decisions_max_age',
        default=0.0,
        min=0.0,
        help="""
For how many seconds a decision is stored; 0: only ``decisions_kept`` limits
decisions.

Older decisions are deleted once a minute, in small steps.

Related options:

* ``decisions_kept``
""",
    ),
    cfg.BoolOpt(
        'log_decisions',
        default=True,
        help="""
Whether each decision gets a line in the log, at level INFO.

The line has the outcome, the hosts or the pool, the duration, the request id
and the project. A message with many requests gets one line. Turn it off if
the lines are too many; the database has decisions with their reasons, see
``decisions_kept``.
""",
    ),
    cfg.FloatOpt(
        'service_down_time',
        default=60.0,
        min=0.0,
        deprecated_opts=[
            cfg.DeprecatedOpt('service_down_time', group='DEFAULT'),
        ],
        help="""
After how many seconds without a report or heartbeat a host is marked down.

The next report or heartbeat marks it up. The state of a host that never sent
any is that of its inventory document. After its start, and after the database
or the broker was unreachable, a daemon waits this long before it marks hosts
down. 0: no host is marked down.

Related options:

* the interval at which hosts report, which has to be several times shorter
""",
    ),
    cfg.FloatOpt(
        'claim_timeout',
        min=0.0,
        help="""
After how many seconds an unconfirmed claim is released.

A claim is confirmed when its host reports the instance, or by the method
``confirm``. The second claims of moves expire as well, so the time has to be
longer than the longest move. It is measured by the database's clock. 0: claims
do not expire.

Unset: 3600 where the compute service's databases are followed, 0 otherwise.
Where they are followed, only claims of instances that are on no host yet
expire: claims of moves end with the compute service's migrations. Only a
daemon that has just read all databases then releases claims.

Related options:

* ``[compute] api_database``
""",
    ),
    cfg.FloatOpt(
        'outcome_retention',
        default=86400.0,
        min=60.0,
        help="""
For how many seconds the outcome of a request is stored.

A message that is delivered again within this time, by the clock of the
database, gets the outcome of its first delivery. A later one is not processed
again: its caller gets OutcomeExpired. Outcomes with claims that are still held
are kept longer.
""",
    ),
    cfg.FloatOpt(
        'graceful_shutdown_timeout',
        default=30.0,
        min=0.0,
        max=1e6,
        help="""
How long a stopping daemon may finish its requests, in seconds.

Requests that are not finished by then are delivered to another daemon. The
``TimeoutStopSec`` of systemd has to be longer.
""",
    ),
]

UPGRADE_GROUP = 'upgrade_levels'
# What a client reads of this group.
CLIENT_OPTS = [opt for opt in OPTS if opt.name in ('topic', 'exchange')]
UPGRADE_OPTS = [
    cfg.StrOpt(
        'scheduler',
        sample_default='1.0',
        help="""
The highest RPC version that clients may use.

Set it to the old version while old and new daemons share the topic.
""",
    ),
]
