"""The tables, for SQLite, PostgreSQL and MariaDB; read by any thread."""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from scheduler_service.model import HOST_ATTRIBUTES, HostColumn, limits
from scheduler_service.store import clock

_DOCUMENT = sa.Text().with_variant(mysql.MEDIUMTEXT(), 'mysql')
_BIG = sa.BigInteger()
_NAME = sa.String(limits.NAME_LENGTH)
_UUID = sa.String(limits.UUID_LENGTH)
# One of a few words.
_WORD = sa.String(16)
# The id of a message and the index of an entry.
_KEY = sa.String(96)


def _table(name: str, *parts: Any) -> sa.Table:
    return sa.Table(
        name,
        metadata,
        *parts,
        mysql_engine='InnoDB',
        mysql_charset='utf8mb4',
        # Compares with case, as the other databases do. The migration gives
        # names another collation, which compares blanks at their end, too.
        mysql_collate='utf8mb4_bin',
    )


def _id(name: str, kind: Any = _BIG) -> sa.Column[int]:
    """Return a key that the database does not count up."""
    return sa.Column(name, kind, primary_key=True, autoincrement=False)


def _serial() -> sa.Column[Any]:
    """Return a key that the database counts up."""
    return sa.Column(
        'id',
        _BIG.with_variant(sa.Integer(), 'sqlite'),
        primary_key=True,
        autoincrement=True,
    )


def _time(name: str = 'created_at', **more: Any) -> sa.Column[float]:
    """Return a column that gets the database's time at each insert."""
    return sa.Column(
        name, sa.Double(), nullable=False, default=clock.NOW, **more
    )


def _attribute_column(field: msgspec.structs.FieldInfo) -> sa.Column[Any]:
    """Return the column of a host's attribute: as the document declares it.

    It has the document's length, and is nullable where null is accepted.
    """
    declared = msgspec.inspect.type_info(field.type)
    nullable = isinstance(declared, msgspec.inspect.UnionType)
    if isinstance(declared, msgspec.inspect.UnionType):
        declared, _none = declared.types
    kind: sa.types.TypeEngine[Any] = _BIG
    if isinstance(declared, msgspec.inspect.LiteralType):
        kind = _WORD
    elif isinstance(declared, msgspec.inspect.StrType):
        length = declared.max_length
        kind = sa.Text() if length == limits.TEXT_LENGTH else sa.String(length)
    return sa.Column(field.name, kind, nullable=nullable)


metadata = sa.MetaData(
    naming_convention={
        'ix': 'ix_%(table_name)s_%(column_0_name)s',
        'uq': 'uq_%(table_name)s_%(column_0_name)s',
        'pk': 'pk_%(table_name)s',
    }
)

# The migration that makes these tables.
VERSION = '0004'

# Versions of which the releases may use the tables as they are now: this one,
# and those before it for which the migrations are declared safe.
compatible_versions = _table(
    'compatible_versions',
    sa.Column('version', sa.String(32), primary_key=True),
)

counters = _table(
    'counters',
    sa.Column('name', sa.String(32), primary_key=True),
    sa.Column('value', _BIG, nullable=False),
)

changes = _table(
    'changes',
    _id('revision'),
    sa.Column('touched', _DOCUMENT, nullable=False),
    # A random token by which readers know the change again: after the
    # database went back in time, another change has the revision.
    sa.Column('lineage', sa.String(16), nullable=False),
    _time(),
)

hosts = _table(
    'hosts',
    _id('id'),
    sa.Column('uuid', _UUID, nullable=False, unique=True),
    sa.Column('host', _NAME, nullable=False),
    sa.Column('node', _NAME, nullable=False),
    *(
        _attribute_column(field)
        for field, column in HOST_ATTRIBUTES
        if column is not HostColumn.JSON
    ),
    # How many instances the host has that are not in ``instances``.
    sa.Column('instances_other', _BIG, nullable=False),
    # JSON of the attributes that have no column: CPU, devices and so on.
    sa.Column('document', _DOCUMENT, nullable=False),
    sa.UniqueConstraint('host', 'node'),
)

# Of a host or, below 0, of an aggregate: ``provider_of``.
inventories = _table(
    'inventories',
    _id('host_id'),
    sa.Column('resource_class', _NAME, primary_key=True),
    sa.Column('total', _BIG, nullable=False),
    sa.Column('reserved', _BIG, nullable=False),
    sa.Column('min_unit', _BIG, nullable=False),
    sa.Column('max_unit', _BIG, nullable=False),
    sa.Column('step_size', _BIG, nullable=False),
    # NULL: the configured default applies.
    sa.Column('allocation_ratio', sa.Double()),
    # Always ``reported`` plus the sum of the allocations.
    sa.Column('used', _BIG, nullable=False),
    sa.Column('reported', _BIG, nullable=False),
    # Free disk as the host measured it, minus what was claimed since.
    sa.Column('available_least', _BIG),
)
# A class that is not offered any more keeps its row, with a total and a
# ``max_unit`` of 0, until its last allocation is gone.
IS_OFFERED = inventories.c.max_unit > sa.literal_column('0')

# Of hosts and aggregates alike.
allocations = _table(
    'allocations',
    sa.Column('consumer_uuid', _UUID, primary_key=True),
    _id('host_id'),
    sa.Column('resource_class', _NAME, primary_key=True),
    sa.Column('amount', _BIG, nullable=False),
    sa.Index(None, 'host_id'),
)

traits = _table(
    'traits',
    _id('host_id'),
    sa.Column('name', _NAME, primary_key=True),
)

aggregates = _table(
    'aggregates',
    _id('id', sa.Integer()),
    sa.Column('uuid', _UUID, nullable=False, unique=True),
    sa.Column('name', _NAME, nullable=False),
)

aggregate_hosts = _table(
    'aggregate_hosts',
    _id('aggregate_id', sa.Integer()),
    sa.Column('host', _NAME, primary_key=True),
)

aggregate_metadata = _table(
    'aggregate_metadata',
    _id('aggregate_id', sa.Integer()),
    sa.Column('key', _NAME, primary_key=True),
    sa.Column('value', sa.Text(), nullable=False),
)

instances = _table(
    'instances',
    sa.Column('uuid', _UUID, primary_key=True),
    sa.Column('host', _NAME, nullable=False),
    sa.Column('node', _NAME, nullable=False),
    # reported: a host has it; claimed: it was scheduled to a host;
    # confirmed: both.
    sa.Column('state', _WORD, nullable=False),
    # instance, or pod: of a cluster, which its watch confirms and releases.
    sa.Column('kind', _WORD, nullable=False, server_default='instance'),
    sa.Column('project_id', _NAME),
    sa.Column('request_id', _NAME),
    # JSON of the inventory's document, without uuid, host and node.
    sa.Column('document', _DOCUMENT, nullable=False),
    # JSON of the reply, which a repeated request gets again.
    sa.Column('placement', _DOCUMENT),
    _time(),
    # Of the request that claimed it; see ``outcomes``.
    sa.Column('idempotency_key', _KEY),
    sa.Index(None, 'host'),
)

# The second claim of an instance that moves, beside its present place.
moves = _table(
    'moves',
    sa.Column('instance_uuid', _UUID, primary_key=True),
    sa.Column('host_id', _BIG, nullable=False),
    sa.Column('host', _NAME, nullable=False),
    sa.Column('node', _NAME, nullable=False),
    sa.Column('request_id', _NAME),
    sa.Column('placement', _DOCUMENT, nullable=False),
    _time(),
    sa.Column('idempotency_key', _KEY),
    sa.Index(None, 'host'),
)

# What became of each request that is not to be processed twice. A claim is
# its own outcome as long as its row of ``instances`` or ``moves`` exists.
outcomes = _table(
    'outcomes',
    # The message's id, and the index of the entry of schedule_many.
    sa.Column('idempotency_key', _KEY, primary_key=True),
    # The instance of a placement; empty: of the whole request.
    sa.Column('instance_uuid', _UUID, primary_key=True),
    # refused, result, placement, expired
    sa.Column('kind', _WORD, nullable=False),
    sa.Column('document', _DOCUMENT),
    _time(),
    sa.Index(None, 'created_at'),
)

# When each project last released claims of an instance, and when that was done
# for all projects: their requests that were sent before must not claim for it
# any more.
releases = _table(
    'releases',
    sa.Column('instance_uuid', _UUID, primary_key=True),
    # all: of its claim and its move; move: of its move alone. Then, if a
    # project released it, a colon and a digest of the project: there is a row
    # for each.
    sa.Column('kind', _WORD, primary_key=True),
    # Of the change that released.
    sa.Column('revision', _BIG, nullable=False),
    # By the database's clock.
    sa.Column('released_at', sa.Double(), nullable=False),
    # By the caller's clock; NULL: not given.
    sa.Column('sent_at', sa.Double()),
    # NULL: for all projects.
    sa.Column('project_id', _NAME),
    sa.Index(None, 'released_at'),
)

server_groups = _table(
    'server_groups',
    sa.Column('uuid', _UUID, primary_key=True),
    sa.Column('name', _NAME, nullable=False),
    sa.Column('project_id', _NAME),
    sa.Column('policy', sa.String(32), nullable=False),
    sa.Column('max_server_per_host', sa.Integer()),
)

server_group_members = _table(
    'server_group_members',
    sa.Column('group_uuid', _UUID, primary_key=True),
    sa.Column('instance_uuid', _UUID, primary_key=True),
    # A release asks for the memberships of an instance.
    sa.Index(None, 'instance_uuid'),
)

pools = _table(
    'pools',
    sa.Column('id', _UUID, primary_key=True),
    sa.Column('name', _NAME, nullable=False, unique=True),
    sa.Column('description', sa.Text()),
)

pool_attributes = _table(
    'pool_attributes',
    sa.Column('pool_id', _UUID, primary_key=True),
    sa.Column('key', _NAME, primary_key=True),
    sa.Column('value', sa.Text(), nullable=False),
)

zones = _table(
    'zones',
    sa.Column('id', _UUID, primary_key=True),
    sa.Column('name', _NAME, nullable=False),
    sa.Column('pool_id', _UUID, nullable=False),
    sa.Column('project_id', _NAME),
    sa.Column('request_id', _NAME),
    _time(),
    sa.Index(None, 'pool_id'),
)

# Work that one daemon at a time does for all that share the store.
leases = _table(
    'leases',
    sa.Column('name', sa.String(32), primary_key=True),
    sa.Column('holder', _NAME, nullable=False),
    # By the database's clock; in the past: it is free.
    sa.Column('expires_at', sa.Double(), nullable=False),
)

# What stages of the cycle may have done for claims, and undo once these are
# held no more.
stage_records = _table(
    'stage_records',
    sa.Column('stage', sa.String(64), primary_key=True),
    sa.Column('instance_uuid', _UUID, primary_key=True),
    _id('host_id'),
    # All times by the database's clock. NULL: it may not be done yet.
    sa.Column('made_at', sa.Double()),
    # JSON that the stage undoes it by, such as amounts of allocations.
    sa.Column('document', _DOCUMENT, nullable=False),
    # When the call began that does it; NULL: it was answered, or its
    # connection was closed.
    sa.Column('asked_at', sa.Double()),
    # Until then a call without an answer may still be carried out.
    sa.Column('call_until', sa.Double()),
    # How often it was looked whether there is something to undo, how often in
    # a row nothing was there after the calls had ended, and when to look next.
    sa.Column('looks', sa.Integer(), nullable=False, server_default='0'),
    sa.Column('absent', sa.Integer(), nullable=False, server_default='0'),
    sa.Column('look_at', sa.Double()),
    # When it was undone last; a call may yet do it again.
    sa.Column('undone_at', sa.Double()),
    # The attempt that undoes it, and until when; no claim may be made for
    # the instance meanwhile.
    sa.Column('undone_by', sa.String(32)),
    sa.Column('undone_until', sa.Double()),
)

heartbeats = _table(
    'heartbeats',
    sa.Column('host', _NAME, primary_key=True),
    _time('seen_at'),
    sa.Index(None, 'seen_at'),
)

# Host reports that were refused, by service host, with the last reason.
refused_reports = _table(
    'refused_reports',
    sa.Column('host', _NAME, primary_key=True),
    sa.Column('reason', sa.Text(), nullable=False),
    sa.Column('refused', _BIG, nullable=False),
    sa.Column('refused_at', sa.Double(), nullable=False),
)

# Messages that the broker delivered again, with the number of deliveries.
quarantine = _table(
    'quarantine',
    sa.Column(
        'message_id', sa.String(limits.MESSAGE_ID_LENGTH), primary_key=True
    ),
    sa.Column('deliveries', sa.Integer(), nullable=False),
    # 1: no daemon works on it any more.
    sa.Column('quarantined', sa.Integer(), nullable=False),
    sa.Column('method', sa.String(64), nullable=False),
    sa.Column('message', _DOCUMENT, nullable=False),
    _time('changed_at', onupdate=clock.NOW),
)

decisions = _table(
    'decisions',
    _serial(),
    sa.Column('request_id', _NAME, nullable=False),
    sa.Column('kind', sa.String(32), nullable=False),
    # 'chosen', or the name of the error.
    sa.Column('outcome', sa.String(64), nullable=False),
    sa.Column('document', _DOCUMENT, nullable=False),
    _time(),
    # What the caller's log, and the logs of all services, know it by.
    sa.Column('caller_request_id', _NAME),
    sa.Column('global_request_id', _NAME),
    # What lists show of the document. Names of several are a line each.
    sa.Column('project_id', _NAME),
    sa.Column('user_id', _NAME),
    sa.Column('filter', _NAME),
    sa.Column('hosts', _DOCUMENT),
    sa.Column('instances', _DOCUMENT),
    # How often it was made, and when first; null: once.
    sa.Column('times', sa.Integer(), nullable=False, server_default='1'),
    sa.Column('first_at', sa.Double()),
    # What it was made on: where it is in ``history``; null: not recorded.
    sa.Column('run', _BIG),
    sa.Column('block', _BIG),
    sa.Column('place', _BIG),
    sa.Index(None, 'request_id'),
    sa.Index(None, 'caller_request_id'),
    sa.Index(None, 'global_request_id'),
    sa.Index(None, 'project_id'),
)

# What each daemon decided in each minute, for a week; see ``records.rates``.
decision_rates = _table(
    'decision_rates',
    # Since the epoch, by the database's clock.
    _id('minute'),
    # A random number for each run of a daemon.
    _id('run'),
    sa.Column('daemon', _NAME, nullable=False),
    # JSON: numbers by outcome, filter and duration.
    sa.Column('document', _DOCUMENT, nullable=False),
)

# How full zones were, every ten minutes, for a week.
zone_usage = _table(
    'zone_usage',
    sa.Column('zone', _NAME, primary_key=True),
    sa.Column('resource_class', _NAME, primary_key=True),
    # The number of the ten minutes since the epoch.
    _id('period'),
    # In the unit of the class; unavailable: what is left on hosts that are
    # down or disabled.
    sa.Column('capacity', _BIG, nullable=False),
    sa.Column('used', _BIG, nullable=False),
    sa.Column('unavailable', _BIG, nullable=False),
    sa.Index(None, 'period'),
)

# What daemons saw and decided; see ``store.records.recordings``.
history = _table(
    'history',
    # A random number for each run of a daemon, and the blocks of that in turn.
    _id('run'),
    _id('number'),
    # Whether a stretch begins here, and whether the one before leads to it.
    sa.Column('begins', sa.Integer(), nullable=False),
    # Of the data, in bytes.
    sa.Column('size', _BIG, nullable=False),
    _time(),
    sa.Column(
        'data',
        sa.LargeBinary().with_variant(mysql.MEDIUMBLOB(), 'mysql'),
        nullable=False,
    ),
    sa.Index(None, 'begins'),
    sa.Index(None, 'size'),
)

# How decisions of a shadow compare with what really came, by the hour; see
# ``store.records.shadow``.
shadow_verdicts = _table(
    'shadow_verdicts',
    # Its begin, in seconds since the epoch.
    _id('hour'),
    sa.Column('verdict', _WORD, primary_key=True),
    sa.Column('cause', _NAME, primary_key=True),
    sa.Column('requests', _BIG, nullable=False),
    # How long the decisions took, all together and the longest.
    sa.Column('spent_ms', sa.Double(), nullable=False),
    sa.Column('slowest_ms', sa.Double(), nullable=False),
    # The request id of one of them.
    sa.Column('example', _NAME),
)

# Daemons that use these tables.
daemons = _table(
    'daemons',
    sa.Column('id', sa.String(36), primary_key=True),
    sa.Column('name', _NAME, nullable=False),
    sa.Column('version', sa.String(64), nullable=False),
    sa.Column('fingerprint', sa.String(16), nullable=False),
    sa.Column('started_at', sa.Double(), nullable=False),
    sa.Column('seen_at', sa.Double(), nullable=False),
    # Daemons on the same topic with another store: names as JSON.
    sa.Column('elsewhere', _DOCUMENT, nullable=False),
    # What does not work on it, as JSON: (text, for how many seconds).
    # An earlier release writes none.
    sa.Column('degraded', _DOCUMENT),
)

# The configurations that daemons started with or changed to, oldest first.
configurations = _table(
    'configurations',
    _serial(),
    sa.Column('daemon', _NAME, nullable=False),
    sa.Column('version', sa.String(64), nullable=False),
    sa.Column('fingerprint', sa.String(16), nullable=False),
    # group -> option -> value and source; without secrets.
    sa.Column('document', _DOCUMENT, nullable=False),
    _time(),
)

# What happened to daemons, and operators' commands.
events = _table(
    'events',
    _serial(),
    sa.Column('event', _WORD, nullable=False),
    # A daemon, or a user of the operating system.
    sa.Column('who', _NAME, nullable=False),
    sa.Column('detail', _DOCUMENT, nullable=False),
    _time('begun_at'),
    sa.Column('ended_at', sa.Double()),
    sa.Index(None, 'begun_at'),
)
