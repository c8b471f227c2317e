"""Create all tables"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Connection

revision = '0001'
down_revision = None
branch_labels = None
depends_on = None

_BIG = sa.BigInteger()
_DOCUMENT = sa.Text().with_variant(mysql.MEDIUMTEXT(), 'mysql')
# Collations that compare by bytes and tell names apart by blanks at their
# end: of MariaDB, and of MySQL since 8.0.17. A MySQL before has none.
_UNPADDED = 'utf8mb4_nopad_bin', 'utf8mb4_0900_bin'
# PostgreSQL compresses rows of more than 2 kB. A decision's document is a
# little larger than that; compressing it costs a fifth of writing it.
_UNCOMPRESSED = 'decisions', 'instances', 'moves', 'outcomes'


def upgrade() -> None:
    conn = op.get_bind()
    name = _name_type(conn)
    _create(
        'aggregate_hosts',
        sa.Column(
            'aggregate_id', sa.Integer(), primary_key=True, autoincrement=False
        ),
        sa.Column('host', name, primary_key=True),
    )
    _create(
        'aggregate_metadata',
        sa.Column(
            'aggregate_id', sa.Integer(), primary_key=True, autoincrement=False
        ),
        sa.Column('key', name, primary_key=True),
        sa.Column('value', sa.Text(), nullable=False),
    )
    _create(
        'aggregates',
        sa.Column('id', sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column('uuid', sa.String(36), nullable=False, unique=True),
        sa.Column('name', name, nullable=False),
    )
    _create(
        'allocations',
        sa.Column('consumer_uuid', sa.String(36), primary_key=True),
        sa.Column('host_id', _BIG, primary_key=True, autoincrement=False),
        sa.Column('resource_class', sa.String(255), primary_key=True),
        sa.Column('amount', _BIG, nullable=False),
        sa.Index(None, 'host_id'),
    )
    _create(
        'changes',
        sa.Column('revision', _BIG, primary_key=True, autoincrement=False),
        sa.Column('touched', _DOCUMENT, nullable=False),
        sa.Column('lineage', sa.String(16), nullable=False),
        sa.Column('created_at', sa.Double(), nullable=False),
    )
    _create(
        'compatible_versions',
        sa.Column('version', sa.String(32), primary_key=True),
    )
    _create(
        'configurations',
        sa.Column(
            'id',
            _BIG.with_variant(sa.Integer(), 'sqlite'),
            primary_key=True,
            autoincrement=True,
        ),
        sa.Column('daemon', sa.String(255), nullable=False),
        sa.Column('version', sa.String(64), nullable=False),
        sa.Column('fingerprint', sa.String(16), nullable=False),
        sa.Column('document', _DOCUMENT, nullable=False),
        sa.Column('created_at', sa.Double(), nullable=False),
    )
    _create(
        'counters',
        sa.Column('name', sa.String(32), primary_key=True),
        sa.Column('value', _BIG, nullable=False),
    )
    _create(
        'daemons',
        sa.Column('id', sa.String(36), primary_key=True),
        sa.Column('name', sa.String(255), nullable=False),
        sa.Column('version', sa.String(64), nullable=False),
        sa.Column('fingerprint', sa.String(16), nullable=False),
        sa.Column('started_at', sa.Double(), nullable=False),
        sa.Column('seen_at', sa.Double(), nullable=False),
        sa.Column('elsewhere', _DOCUMENT, nullable=False),
        sa.Column('degraded', _DOCUMENT),
    )
    _create(
        'decisions',
        sa.Column(
            'id',
            _BIG.with_variant(sa.Integer(), 'sqlite'),
            primary_key=True,
            autoincrement=True,
        ),
        sa.Column('request_id', sa.String(255), nullable=False),
        sa.Column('kind', sa.String(32), nullable=False),
        sa.Column('outcome', sa.String(64), nullable=False),
        sa.Column('document', _DOCUMENT, nullable=False),
        sa.Column('created_at', sa.Double(), nullable=False),
        sa.Column('caller_request_id', sa.String(255)),
        sa.Column('global_request_id', sa.String(255)),
        sa.Column('project_id', name),
        sa.Column('filter', sa.String(255)),
        sa.Column('hosts', _DOCUMENT),
        sa.Column('instances', _DOCUMENT),
        sa.Column('times', sa.Integer(), nullable=False, server_default='1'),
        sa.Column('first_at', sa.Double()),
        sa.Column('run', _BIG),
        sa.Column('block', _BIG),
        sa.Column('place', _BIG),
        sa.Index(None, 'caller_request_id'),
        sa.Index(None, 'global_request_id'),
        sa.Index(None, 'project_id'),
        sa.Index(None, 'request_id'),
    )
    _create(
        'events',
        sa.Column(
            'id',
            _BIG.with_variant(sa.Integer(), 'sqlite'),
            primary_key=True,
            autoincrement=True,
        ),
        sa.Column('event', sa.String(16), nullable=False),
        sa.Column('who', sa.String(255), nullable=False),
        sa.Column('detail', _DOCUMENT, nullable=False),
        sa.Column('begun_at', sa.Double(), nullable=False),
        sa.Column('ended_at', sa.Double()),
        sa.Index(None, 'begun_at'),
    )
    _create(
        'heartbeats',
        sa.Column('host', name, primary_key=True),
        sa.Column('seen_at', sa.Double(), nullable=False),
        sa.Index(None, 'seen_at'),
    )
    _create(
        'history',
        sa.Column('run', _BIG, primary_key=True, autoincrement=False),
        sa.Column('number', _BIG, primary_key=True, autoincrement=False),
        sa.Column('begins', sa.Integer(), nullable=False),
        sa.Column('size', _BIG, nullable=False),
        sa.Column('created_at', sa.Double(), nullable=False),
        sa.Column(
            'data',
            sa.LargeBinary().with_variant(mysql.MEDIUMBLOB(), 'mysql'),
            nullable=False,
        ),
        sa.Index(None, 'begins'),
        sa.Index(None, 'size'),
    )
    _create(
        'hosts',
        sa.Column('id', _BIG, primary_key=True, autoincrement=False),
        sa.Column('uuid', sa.String(36), nullable=False, unique=True),
        sa.Column('host', name, nullable=False),
        sa.Column('node', name, nullable=False),
        sa.Column('status', sa.String(16), nullable=False),
        sa.Column('disabled_reason', sa.Text()),
        sa.Column('state', sa.String(16), nullable=False),
        sa.Column('hypervisor_type', sa.String(255)),
        sa.Column('hypervisor_version', _BIG),
        sa.Column('host_ip', sa.String(64)),
        sa.Column('cell_uuid', sa.String(255)),
        sa.Column('num_io_ops', _BIG, nullable=False),
        sa.Column('failed_builds', _BIG, nullable=False),
        sa.Column('instances_other', _BIG, nullable=False),
        sa.Column('document', _DOCUMENT, nullable=False),
        sa.UniqueConstraint('host', 'node'),
    )
    _create(
        'instances',
        sa.Column('uuid', sa.String(36), primary_key=True),
        sa.Column('host', name, nullable=False),
        sa.Column('node', name, nullable=False),
        sa.Column('state', sa.String(16), nullable=False),
        sa.Column(
            'kind',
            sa.String(16),
            nullable=False,
            server_default='instance',
        ),
        sa.Column('project_id', sa.String(255)),
        sa.Column('request_id', sa.String(255)),
        sa.Column('document', _DOCUMENT, nullable=False),
        sa.Column('placement', _DOCUMENT),
        sa.Column('created_at', sa.Double(), nullable=False),
        sa.Column('idempotency_key', sa.String(96)),
        sa.Index(None, 'host'),
    )
    _create(
        'inventories',
        sa.Column('host_id', _BIG, primary_key=True, autoincrement=False),
        sa.Column('resource_class', sa.String(255), primary_key=True),
        sa.Column('total', _BIG, nullable=False),
        sa.Column('reserved', _BIG, nullable=False),
        sa.Column('min_unit', _BIG, nullable=False),
        sa.Column('max_unit', _BIG, nullable=False),
        sa.Column('step_size', _BIG, nullable=False),
        sa.Column('allocation_ratio', sa.Double()),
        sa.Column('used', _BIG, nullable=False),
        sa.Column('reported', _BIG, nullable=False),
        sa.Column('available_least', _BIG),
    )
    _create(
        'leases',
        sa.Column('name', sa.String(32), primary_key=True),
        sa.Column('holder', sa.String(255), nullable=False),
        sa.Column('expires_at', sa.Double(), nullable=False),
    )
    _create(
        'moves',
        sa.Column('instance_uuid', sa.String(36), primary_key=True),
        sa.Column('host_id', _BIG, nullable=False),
        sa.Column('host', name, nullable=False),
        sa.Column('node', name, nullable=False),
        sa.Column('request_id', sa.String(255)),
        sa.Column('placement', _DOCUMENT, nullable=False),
        sa.Column('created_at', sa.Double(), nullable=False),
        sa.Column('idempotency_key', sa.String(96)),
        sa.Index(None, 'host'),
    )
    _create(
        'outcomes',
        sa.Column('idempotency_key', sa.String(96), primary_key=True),
        sa.Column('instance_uuid', sa.String(36), primary_key=True),
        sa.Column('kind', sa.String(16), nullable=False),
        sa.Column('document', _DOCUMENT),
        sa.Column('created_at', sa.Double(), nullable=False),
        sa.Index(None, 'created_at'),
    )
    _create(
        'pool_attributes',
        sa.Column('pool_id', sa.String(36), primary_key=True),
        sa.Column('key', name, primary_key=True),
        sa.Column('value', sa.Text(), nullable=False),
    )
    _create(
        'pools',
        sa.Column('id', sa.String(36), primary_key=True),
        sa.Column('name', name, nullable=False, unique=True),
        sa.Column('description', sa.Text()),
    )
    _create(
        'refused_reports',
        sa.Column('host', name, primary_key=True),
        sa.Column('reason', sa.Text(), nullable=False),
        sa.Column('refused', _BIG, nullable=False),
        sa.Column('refused_at', sa.Double(), nullable=False),
    )
    _create(
        'releases',
        sa.Column('instance_uuid', sa.String(36), primary_key=True),
        sa.Column('kind', sa.String(16), primary_key=True),
        sa.Column('revision', _BIG, nullable=False),
        sa.Column('released_at', sa.Double(), nullable=False),
        sa.Column('sent_at', sa.Double()),
        sa.Column('project_id', sa.String(255)),
        sa.Index(None, 'released_at'),
    )
    _create(
        'server_group_members',
        sa.Column('group_uuid', sa.String(36), primary_key=True),
        sa.Column('instance_uuid', sa.String(36), primary_key=True),
        sa.Index(None, 'instance_uuid'),
    )
    _create(
        'server_groups',
        sa.Column('uuid', sa.String(36), primary_key=True),
        sa.Column('name', name, nullable=False),
        sa.Column('project_id', sa.String(255)),
        sa.Column('policy', sa.String(32), nullable=False),
        sa.Column('max_server_per_host', sa.Integer()),
    )
    _create(
        'stage_records',
        sa.Column('stage', sa.String(64), primary_key=True),
        sa.Column('instance_uuid', sa.String(36), primary_key=True),
        sa.Column('host_id', _BIG, primary_key=True, autoincrement=False),
        sa.Column('made_at', sa.Double()),
        sa.Column('document', _DOCUMENT, nullable=False),
        sa.Column('asked_at', sa.Double()),
        sa.Column('call_until', sa.Double()),
        sa.Column('looks', sa.Integer(), nullable=False, server_default='0'),
        sa.Column('absent', sa.Integer(), nullable=False, server_default='0'),
        sa.Column('look_at', sa.Double()),
        sa.Column('undone_at', sa.Double()),
        sa.Column('undone_by', sa.String(32)),
        sa.Column('undone_until', sa.Double()),
    )
    _create(
        'quarantine',
        sa.Column('message_id', sa.String(64), primary_key=True),
        sa.Column('deliveries', sa.Integer(), nullable=False),
        sa.Column('quarantined', sa.Integer(), nullable=False),
        sa.Column('method', sa.String(64), nullable=False),
        sa.Column('message', _DOCUMENT, nullable=False),
        sa.Column('changed_at', sa.Double(), nullable=False),
    )
    _create(
        'traits',
        sa.Column('host_id', _BIG, primary_key=True, autoincrement=False),
        sa.Column('name', sa.String(255), primary_key=True),
    )
    _create(
        'zones',
        sa.Column('id', sa.String(36), primary_key=True),
        sa.Column('name', name, nullable=False),
        sa.Column('pool_id', sa.String(36), nullable=False),
        sa.Column('project_id', sa.String(255)),
        sa.Column('request_id', sa.String(255)),
        sa.Column('created_at', sa.Double(), nullable=False),
        sa.Index(None, 'pool_id'),
    )
    if conn.dialect.name == 'postgresql':
        for table in _UNCOMPRESSED:
            op.execute(f'ALTER TABLE {table} SET (toast_tuple_target = 8160)')
        # It is compressed.
        op.execute('ALTER TABLE history ALTER data SET STORAGE EXTERNAL')


def _name_type(conn: Connection) -> Any:
    """Return the type of columns of names that people give."""
    plain = sa.String(255)
    if conn.dialect.name != 'mysql':
        return plain
    collation = conn.scalar(
        sa.text(
            'SELECT collation_name FROM information_schema.collations '
            'WHERE collation_name IN :names'
        ).bindparams(sa.bindparam('names', _UNPADDED, expanding=True))
    )
    if collation is None:
        return plain
    return mysql.VARCHAR(255, charset='utf8mb4', collation=collation)


def _create(table: str, *parts: Any) -> None:
    op.create_table(
        table,
        *parts,
        mysql_charset='utf8mb4',
        mysql_collate='utf8mb4_bin',
        mysql_engine='InnoDB',
    )
