"""The tables, for SQLite, PostgreSQL and MariaDB; read by any thread."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

_TABLE: dict[str, Any] = {
    'mysql_engine': 'InnoDB',
    'mysql_charset': 'utf8mb4',
    # Compares names with case, as the other databases do.
    'mysql_collate': 'utf8mb4_bin',
}
_DOCUMENT = sa.Text().with_variant(mysql.MEDIUMTEXT(), 'mysql', 'mariadb')
_BIG = sa.BigInteger()

metadata = sa.MetaData(
    naming_convention={
        'ix': 'ix_%(table_name)s_%(column_0_name)s',
        'uq': 'uq_%(table_name)s_%(column_0_name)s',
        'pk': 'pk_%(table_name)s',
    }
)

counters = sa.Table(
    'counters',
    metadata,
    sa.Column('name', sa.String(32), primary_key=True),
    sa.Column('value', _BIG, nullable=False),
    **_TABLE,
)

changes = sa.Table(
    'changes',
    metadata,
    sa.Column('revision', _BIG, primary_key=True, autoincrement=False),
    sa.Column('touched', _DOCUMENT, nullable=False),
    sa.Column('created_at', sa.Double(), nullable=False),
    **_TABLE,
)

hosts = sa.Table(
    'hosts',
    metadata,
    sa.Column('id', _BIG, primary_key=True, autoincrement=False),
    sa.Column('uuid', sa.String(36), nullable=False, unique=True),
    sa.Column('host', sa.String(255), nullable=False),
    sa.Column('node', sa.String(255), nullable=False),
    sa.Column('status', sa.String(16), nullable=False),
    sa.Column('disabled_reason', sa.Text()),
    sa.Column('state', sa.String(16), nullable=False),
    sa.Column('hypervisor_type', sa.String(255)),
    sa.Column('hypervisor_version', _BIG),
    sa.Column('host_ip', sa.String(64)),
    sa.Column('cell_uuid', sa.String(255)),
    sa.Column('num_io_ops', _BIG, nullable=False),
    sa.Column('failed_builds', _BIG, nullable=False),
    # How many instances the host has that are not in ``instances``.
    sa.Column('instances_other', _BIG, nullable=False),
    # JSON of what is read as a whole: CPU, devices, metrics and so on.
    sa.Column('document', _DOCUMENT, nullable=False),
    sa.UniqueConstraint('host', 'node'),
    **_TABLE,
)

inventories = sa.Table(
    'inventories',
    metadata,
    sa.Column('host_id', _BIG, primary_key=True, autoincrement=False),
    sa.Column('resource_class', sa.String(255), primary_key=True),
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
    **_TABLE,
)

allocations = sa.Table(
    'allocations',
    metadata,
    sa.Column('consumer_uuid', sa.String(36), primary_key=True),
    sa.Column('host_id', _BIG, primary_key=True, autoincrement=False),
    sa.Column('resource_class', sa.String(255), primary_key=True),
    sa.Column('amount', _BIG, nullable=False),
    sa.Index(None, 'host_id'),
    **_TABLE,
)

traits = sa.Table(
    'traits',
    metadata,
    sa.Column('host_id', _BIG, primary_key=True, autoincrement=False),
    sa.Column('name', sa.String(255), primary_key=True),
    **_TABLE,
)

aggregates = sa.Table(
    'aggregates',
    metadata,
    sa.Column('id', sa.Integer(), primary_key=True, autoincrement=False),
    sa.Column('uuid', sa.String(36), nullable=False, unique=True),
    sa.Column('name', sa.String(255), nullable=False),
    **_TABLE,
)

aggregate_hosts = sa.Table(
    'aggregate_hosts',
    metadata,
    sa.Column(
        'aggregate_id', sa.Integer(), primary_key=True, autoincrement=False
    ),
    sa.Column('host', sa.String(255), primary_key=True),
    **_TABLE,
)

aggregate_metadata = sa.Table(
    'aggregate_metadata',
    metadata,
    sa.Column(
        'aggregate_id', sa.Integer(), primary_key=True, autoincrement=False
    ),
    sa.Column('key', sa.String(255), primary_key=True),
    sa.Column('value', sa.Text(), nullable=False),
    **_TABLE,
)

instances = sa.Table(
    'instances',
    metadata,
    sa.Column('uuid', sa.String(36), primary_key=True),
    sa.Column('host', sa.String(255), nullable=False),
    sa.Column('node', sa.String(255), nullable=False),
    # reported: a host has it; claimed: it was scheduled to a host;
    # confirmed: both.
    sa.Column('state', sa.String(16), nullable=False),
    sa.Column('project_id', sa.String(255)),
    sa.Column('request_id', sa.String(255)),
    # JSON of the inventory's document, without uuid, host and node.
    sa.Column('document', _DOCUMENT, nullable=False),
    # JSON of the reply, which a repeated request gets again.
    sa.Column('placement', _DOCUMENT),
    sa.Column('created_at', sa.Double(), nullable=False),
    sa.Index(None, 'host'),
    **_TABLE,
)

# The second claim of an instance that moves, beside its present place.
moves = sa.Table(
    'moves',
    metadata,
    sa.Column('instance_uuid', sa.String(36), primary_key=True),
    sa.Column('host_id', _BIG, nullable=False),
    sa.Column('host', sa.String(255), nullable=False),
    sa.Column('node', sa.String(255), nullable=False),
    sa.Column('request_id', sa.String(255)),
    sa.Column('placement', _DOCUMENT, nullable=False),
    sa.Column('created_at', sa.Double(), nullable=False),
    sa.Index(None, 'host'),
    **_TABLE,
)

server_groups = sa.Table(
    'server_groups',
    metadata,
    sa.Column('uuid', sa.String(36), primary_key=True),
    sa.Column('name', sa.String(255), nullable=False),
    sa.Column('project_id', sa.String(255)),
    sa.Column('policy', sa.String(32), nullable=False),
    sa.Column('max_server_per_host', sa.Integer()),
    **_TABLE,
)

server_group_members = sa.Table(
    'server_group_members',
    metadata,
    sa.Column('group_uuid', sa.String(36), primary_key=True),
    sa.Column('instance_uuid', sa.String(36), primary_key=True),
    **_TABLE,
)

pools = sa.Table(
    'pools',
    metadata,
    sa.Column('id', sa.String(36), primary_key=True),
    sa.Column('name', sa.String(255), nullable=False, unique=True),
    sa.Column('description', sa.Text()),
    **_TABLE,
)

pool_attributes = sa.Table(
    'pool_attributes',
    metadata,
    sa.Column('pool_id', sa.String(36), primary_key=True),
    sa.Column('key', sa.String(255), primary_key=True),
    sa.Column('value', sa.Text(), nullable=False),
    **_TABLE,
)

zones = sa.Table(
    'zones',
    metadata,
    sa.Column('id', sa.String(36), primary_key=True),
    sa.Column('name', sa.String(255), nullable=False),
    sa.Column('pool_id', sa.String(36), nullable=False),
    sa.Column('project_id', sa.String(255)),
    sa.Column('request_id', sa.String(255)),
    sa.Column('created_at', sa.Double(), nullable=False),
    sa.Index(None, 'pool_id'),
    **_TABLE,
)

heartbeats = sa.Table(
    'heartbeats',
    metadata,
    sa.Column('host', sa.String(255), primary_key=True),
    # By the database's clock: daemons may have different clocks.
    sa.Column('seen_at', sa.Double(), nullable=False),
    sa.Index(None, 'seen_at'),
    **_TABLE,
)

# Messages that the broker delivered again, with the number of deliveries.
quarantine = sa.Table(
    'suspects',
    metadata,
    sa.Column('message_id', sa.String(64), primary_key=True),
    sa.Column('deliveries', sa.Integer(), nullable=False),
    # 1: put aside, no daemon works on it any more.
    sa.Column('put_aside', sa.Integer(), nullable=False),
    sa.Column('method', sa.String(64), nullable=False),
    sa.Column('message', _DOCUMENT, nullable=False),
    sa.Column('changed_at', sa.Double(), nullable=False),
    **_TABLE,
)

decisions = sa.Table(
    'decisions',
    metadata,
    sa.Column(
        'id',
        _BIG.with_variant(sa.Integer(), 'sqlite'),
        primary_key=True,
        autoincrement=True,
    ),
    sa.Column('request_id', sa.String(255), nullable=False),
    sa.Column('kind', sa.String(32), nullable=False),
    # 'chosen', or the name of the error.
    sa.Column('outcome', sa.String(64), nullable=False),
    sa.Column('document', _DOCUMENT, nullable=False),
    sa.Column('created_at', sa.Double(), nullable=False),
    sa.Index(None, 'request_id'),
    **_TABLE,
)
