"""Options of the [scheduler] group: the daemon and its engine."""

from __future__ import annotations

from typing import Any

from oslo_config import cfg

GROUP = 'scheduler'

OPTS = [
    cfg.IntOpt(
        'max_attempts',
        default=3,
        min=1,
        deprecated_opts=[
            cfg.DeprecatedOpt('max_attempts', group='filter_scheduler'),
            cfg.DeprecatedOpt('scheduler_max_attempts', group='DEFAULT'),
        ],
        help="""
How many hosts a build may try.

Each selection comes with up to one alternate less than this.
""",
    ),
    cfg.BoolOpt(
        'enable_isolated_aggregate_filtering',
        default=False,
        help="""
Keep requests off aggregates that are isolated by traits.

An aggregate with the metadata ``trait:NAME=required`` is for requests whose
flavor or image requires that trait, all of them if there are several.
""",
    ),
    cfg.BoolOpt(
        'limit_tenants_to_placement_aggregate',
        default=False,
        help="""
Keep a project to the aggregates that are its own.

Those with metadata ``filter_tenant_id*`` equal to the project's id.

Related options:

* ``placement_aggregate_required_for_tenants``
""",
    ),
    cfg.BoolOpt(
        'placement_aggregate_required_for_tenants',
        default=False,
        help='Refuse projects that have no aggregate of their own.',
    ),
    cfg.BoolOpt(
        'query_placement_for_availability_zone',
        default=False,
        help="""
Narrow to the aggregates of the zone that is asked for, before the filters.

A zone that no aggregate carries narrows nothing; AvailabilityZoneFilter, if
enabled, still judges the hosts.
""",
    ),
    cfg.BoolOpt(
        'query_placement_for_image_type_support',
        default=False,
        help="Require the trait of the image's disk format of the host.",
    ),
    cfg.BoolOpt(
        'image_metadata_prefilter',
        default=False,
        help='Require the traits that the image properties stand for.',
    ),
    cfg.StrOpt(
        'topic',
        default='scheduler',
        help='The topic that requests are taken from.',
    ),
    cfg.StrOpt(
        'server',
        default=None,
        sample_default='scheduler-1',
        help="""
The name of this daemon on the topic.

By default the machine's host name with the process id, so that several
daemons can run on one machine.
""",
    ),
    cfg.IntOpt(
        'inbox_size',
        default=1000,
        min=1,
        help="""
How many requests may wait in the daemon.

One more is refused with ServiceBusy at once. The bus holds what the daemon
does not take.
""",
    ),
    cfg.IntOpt(
        'batch_size',
        default=64,
        min=1,
        max=1000,
        help='How many requests are decided and claimed in one transaction.',
    ),
    cfg.IntOpt(
        'claim_retries',
        default=8,
        min=1,
        help="""
How often a request is chosen again when another daemon was faster.

After that it fails with MaxRetriesExceeded.
""",
    ),
    cfg.FloatOpt(
        'snapshot_max_age',
        default=0.2,
        min=0.0,
        help="""
How old the daemon's view of the store may be, in seconds.

An older one is brought up to date from the change feed before the next
decision. A claim checks the store itself in any case.
""",
    ),
    cfg.IntOpt(
        'request_max_bytes',
        default=1024 * 1024,
        min=1024,
        help='Larger requests are refused with PayloadTooLarge.',
    ),
    cfg.IntOpt(
        'decisions_kept',
        default=100000,
        min=0,
        help="""
How many decisions are kept with their reasons; 0 keeps none.

``scheduler-manage decision show`` reads them.
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
After how many seconds of silence a host counts as down.

It concerns hosts that report or send heartbeats over the bus; one that never
did is up or down as its inventory document says. A host that is heard of
again is up. After its own start, or after the database was away, a daemon
calls nobody silent before as much time has passed. 0: silence means nothing.

Related options:

* the interval at which hosts report, which has to be a good deal shorter
""",
    ),
    cfg.FloatOpt(
        'claim_timeout',
        default=0.0,
        min=0.0,
        help="""
After how many seconds a claim that nobody confirmed is given back.

A claim is confirmed when its host reports the instance, or by the method
``confirm``. It applies to the second claims of moves, too, so allow for the
longest of them. 0: claims wait for ever.
""",
    ),
    cfg.IntOpt(
        'max_deliveries',
        default=5,
        min=0,
        help="""
How often a message is worked on again that was not done the time before.

A message that ends the daemon which works on it is delivered to the next
one. After so many deliveries it is answered with RequestPutAside and kept
for ``scheduler-manage message``. 0: it is tried for ever.
""",
    ),
    cfg.FloatOpt(
        'graceful_shutdown_timeout',
        default=30.0,
        min=0.0,
        help='How long a stopping daemon works on what it took, in seconds.',
    ),
]

UPGRADE_GROUP = 'upgrade_levels'
UPGRADE_OPTS = [
    cfg.StrOpt(
        'scheduler',
        default=None,
        sample_default='1.0',
        help="""
The version that clients may speak to schedulers, at most.

Set it to the old version while old and new daemons share the topic.
""",
    ),
]


def register_opts(conf: Any) -> None:
    """Register this module's options on *conf*."""
    conf.register_opts(OPTS, group=GROUP)
    conf.register_opts(UPGRADE_OPTS, group=UPGRADE_GROUP)
