"""Create all tables"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = '0001'
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        'aggregate_hosts',
        sa.Column(
            'aggregate_id', sa.Integer(), autoincrement=False, nullable=False
        ),
        sa.Column('host', sa.String(length=255), nullable=False),
        sa.PrimaryKeyConstraint(
            'aggregate_id', 'host', name=op.f('pk_aggregate_hosts')
        ),
        mysql_charset='utf8mb4',
        mysql_collate='utf8mb4_bin',
        mysql_engine='InnoDB',
    )
    op.create_table(
        'aggregate_metadata',
        sa.Column(
            'aggregate_id', sa.Integer(), autoincrement=False, nullable=False
        ),
        sa.Column('key', sa.String(length=255), nullable=False),
        sa.Column('value', sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint(
            'aggregate_id', 'key', name=op.f('pk_aggregate_metadata')
        ),
        mysql_charset='utf8mb4',
        mysql_collate='utf8mb4_bin',
        mysql_engine='InnoDB',
    )
    op.create_table(
        'aggregates',
        sa.Column('id', sa.Integer(), autoincrement=False, nullable=False),
        sa.Column('uuid', sa.String(length=36), nullable=False),
        sa.Column('name', sa.String(length=255), nullable=False),
        sa.PrimaryKeyConstraint('id', name=op.f('pk_aggregates')),
        sa.UniqueConstraint('uuid', name=op.f('uq_aggregates_uuid')),
        mysql_charset='utf8mb4',
        mysql_collate='utf8mb4_bin',
        mysql_engine='InnoDB',
    )
    op.create_table(
        'allocations',
        sa.Column('consumer_uuid', sa.String(length=36), nullable=False),
        sa.Column(
            'host_id', sa.BigInteger(), autoincrement=False, nullable=False
        ),
        sa.Column('resource_class', sa.String(length=255), nullable=False),
        sa.Column('amount', sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            'consumer_uuid',
            'host_id',
            'resource_class',
            name=op.f('pk_allocations'),
        ),
        mysql_charset='utf8mb4',
        mysql_collate='utf8mb4_bin',
        mysql_engine='InnoDB',
    )
    with op.batch_alter_table('allocations', schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f('ix_allocations_host_id'), ['host_id'], unique=False
        )

    op.create_table(
        'changes',
        sa.Column(
            'revision', sa.BigInteger(), autoincrement=False, nullable=False
        ),
        sa.Column(
            'touched',
            sa.Text()
            .with_variant(mysql.MEDIUMTEXT(), 'mariadb')
            .with_variant(mysql.MEDIUMTEXT(), 'mysql'),
            nullable=False,
        ),
        sa.Column('created_at', sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint('revision', name=op.f('pk_changes')),
        mysql_charset='utf8mb4',
        mysql_collate='utf8mb4_bin',
        mysql_engine='InnoDB',
    )
    op.create_table(
        'counters',
        sa.Column('name', sa.String(length=32), nullable=False),
        sa.Column('value', sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint('name', name=op.f('pk_counters')),
        mysql_charset='utf8mb4',
        mysql_collate='utf8mb4_bin',
        mysql_engine='InnoDB',
    )
    op.create_table(
        'decisions',
        sa.Column(
            'id',
            sa.BigInteger().with_variant(sa.Integer(), 'sqlite'),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column('request_id', sa.String(length=255), nullable=False),
        sa.Column('kind', sa.String(length=32), nullable=False),
        sa.Column('outcome', sa.String(length=64), nullable=False),
        sa.Column(
            'document',
            sa.Text()
            .with_variant(mysql.MEDIUMTEXT(), 'mariadb')
            .with_variant(mysql.MEDIUMTEXT(), 'mysql'),
            nullable=False,
        ),
        sa.Column('created_at', sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint('id', name=op.f('pk_decisions')),
        mysql_charset='utf8mb4',
        mysql_collate='utf8mb4_bin',
        mysql_engine='InnoDB',
    )
    with op.batch_alter_table('decisions', schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f('ix_decisions_request_id'), ['request_id'], unique=False
        )

    op.create_table(
        'heartbeats',
        sa.Column('host', sa.String(length=255), nullable=False),
        sa.Column('seen_at', sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint('host', name=op.f('pk_heartbeats')),
        mysql_charset='utf8mb4',
        mysql_collate='utf8mb4_bin',
        mysql_engine='InnoDB',
    )
    op.create_table(
        'hosts',
        sa.Column('id', sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column('uuid', sa.String(length=36), nullable=False),
        sa.Column('host', sa.String(length=255), nullable=False),
        sa.Column('node', sa.String(length=255), nullable=False),
        sa.Column('status', sa.String(length=16), nullable=False),
        sa.Column('disabled_reason', sa.Text(), nullable=True),
        sa.Column('state', sa.String(length=16), nullable=False),
        sa.Column('hypervisor_type', sa.String(length=255), nullable=True),
        sa.Column('hypervisor_version', sa.BigInteger(), nullable=True),
        sa.Column('host_ip', sa.String(length=64), nullable=True),
        sa.Column('cell_uuid', sa.String(length=255), nullable=True),
        sa.Column('num_io_ops', sa.BigInteger(), nullable=False),
        sa.Column('failed_builds', sa.BigInteger(), nullable=False),
        sa.Column('instances_other', sa.BigInteger(), nullable=False),
        sa.Column(
            'document',
            sa.Text()
            .with_variant(mysql.MEDIUMTEXT(), 'mariadb')
            .with_variant(mysql.MEDIUMTEXT(), 'mysql'),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint('id', name=op.f('pk_hosts')),
        sa.UniqueConstraint('host', 'node', name=op.f('uq_hosts_host')),
        sa.UniqueConstraint('uuid', name=op.f('uq_hosts_uuid')),
        mysql_charset='utf8mb4',
        mysql_collate='utf8mb4_bin',
        mysql_engine='InnoDB',
    )
    op.create_table(
        'instances',
        sa.Column('uuid', sa.String(length=36), nullable=False),
        sa.Column('host', sa.String(length=255), nullable=False),
        sa.Column('node', sa.String(length=255), nullable=False),
        sa.Column('state', sa.String(length=16), nullable=False),
        sa.Column('project_id', sa.String(length=255), nullable=True),
        sa.Column('request_id', sa.String(length=255), nullable=True),
        sa.Column(
            'document',
            sa.Text()
            .with_variant(mysql.MEDIUMTEXT(), 'mariadb')
            .with_variant(mysql.MEDIUMTEXT(), 'mysql'),
            nullable=False,
        ),
        sa.Column(
            'placement',
            sa.Text()
            .with_variant(mysql.MEDIUMTEXT(), 'mariadb')
            .with_variant(mysql.MEDIUMTEXT(), 'mysql'),
            nullable=True,
        ),
        sa.Column('created_at', sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint('uuid', name=op.f('pk_instances')),
        mysql_charset='utf8mb4',
        mysql_collate='utf8mb4_bin',
        mysql_engine='InnoDB',
    )
    with op.batch_alter_table('instances', schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f('ix_instances_host'), ['host'], unique=False
        )

    op.create_table(
        'inventories',
        sa.Column(
            'host_id', sa.BigInteger(), autoincrement=False, nullable=False
        ),
        sa.Column('resource_class', sa.String(length=255), nullable=False),
        sa.Column('total', sa.BigInteger(), nullable=False),
        sa.Column('reserved', sa.BigInteger(), nullable=False),
        sa.Column('min_unit', sa.BigInteger(), nullable=False),
        sa.Column('max_unit', sa.BigInteger(), nullable=False),
        sa.Column('step_size', sa.BigInteger(), nullable=False),
        sa.Column('allocation_ratio', sa.Double(), nullable=True),
        sa.Column('used', sa.BigInteger(), nullable=False),
        sa.Column('reported', sa.BigInteger(), nullable=False),
        sa.Column('available_least', sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint(
            'host_id', 'resource_class', name=op.f('pk_inventories')
        ),
        mysql_charset='utf8mb4',
        mysql_collate='utf8mb4_bin',
        mysql_engine='InnoDB',
    )
    op.create_table(
        'pool_attributes',
        sa.Column('pool_id', sa.String(length=36), nullable=False),
        sa.Column('key', sa.String(length=255), nullable=False),
        sa.Column('value', sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint(
            'pool_id', 'key', name=op.f('pk_pool_attributes')
        ),
        mysql_charset='utf8mb4',
        mysql_collate='utf8mb4_bin',
        mysql_engine='InnoDB',
    )
    op.create_table(
        'pools',
        sa.Column('id', sa.String(length=36), nullable=False),
        sa.Column('name', sa.String(length=255), nullable=False),
        sa.Column('description', sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint('id', name=op.f('pk_pools')),
        sa.UniqueConstraint('name', name=op.f('uq_pools_name')),
        mysql_charset='utf8mb4',
        mysql_collate='utf8mb4_bin',
        mysql_engine='InnoDB',
    )
    op.create_table(
        'server_group_members',
        sa.Column('group_uuid', sa.String(length=36), nullable=False),
        sa.Column('instance_uuid', sa.String(length=36), nullable=False),
        sa.PrimaryKeyConstraint(
            'group_uuid', 'instance_uuid', name=op.f('pk_server_group_members')
        ),
        mysql_charset='utf8mb4',
        mysql_collate='utf8mb4_bin',
        mysql_engine='InnoDB',
    )
    op.create_table(
        'server_groups',
        sa.Column('uuid', sa.String(length=36), nullable=False),
        sa.Column('name', sa.String(length=255), nullable=False),
        sa.Column('project_id', sa.String(length=255), nullable=True),
        sa.Column('policy', sa.String(length=32), nullable=False),
        sa.Column('max_server_per_host', sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint('uuid', name=op.f('pk_server_groups')),
        mysql_charset='utf8mb4',
        mysql_collate='utf8mb4_bin',
        mysql_engine='InnoDB',
    )
    op.create_table(
        'traits',
        sa.Column(
            'host_id', sa.BigInteger(), autoincrement=False, nullable=False
        ),
        sa.Column('name', sa.String(length=255), nullable=False),
        sa.PrimaryKeyConstraint('host_id', 'name', name=op.f('pk_traits')),
        mysql_charset='utf8mb4',
        mysql_collate='utf8mb4_bin',
        mysql_engine='InnoDB',
    )
    op.create_table(
        'zones',
        sa.Column('id', sa.String(length=36), nullable=False),
        sa.Column('name', sa.String(length=255), nullable=False),
        sa.Column('pool_id', sa.String(length=36), nullable=False),
        sa.Column('project_id', sa.String(length=255), nullable=True),
        sa.Column('request_id', sa.String(length=255), nullable=True),
        sa.Column('created_at', sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint('id', name=op.f('pk_zones')),
        mysql_charset='utf8mb4',
        mysql_collate='utf8mb4_bin',
        mysql_engine='InnoDB',
    )
    with op.batch_alter_table('zones', schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f('ix_zones_pool_id'), ['pool_id'], unique=False
        )
