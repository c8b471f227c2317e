"""Remember the outcome of each message, and which instances were released"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = '0006'
down_revision = '0005'
branch_labels = None
depends_on = None
# They neither write outcomes nor read them.
safe_for_older_releases = True

_TABLE: Any = {
    'mysql_charset': 'utf8mb4',
    'mysql_collate': 'utf8mb4_bin',
    'mysql_engine': 'InnoDB',
}
_DOCUMENT = sa.Text().with_variant(mysql.MEDIUMTEXT(), 'mysql', 'mariadb')


def upgrade() -> None:
    # MariaDB commits each statement: a migration that was cut off runs again.
    there = sa.inspect(op.get_bind())
    for table in ('instances', 'moves'):
        columns = {one['name'] for one in there.get_columns(table)}
        if 'idempotency_key' not in columns:
            op.add_column(table, sa.Column('idempotency_key', sa.String(96)))
    if not there.has_table('outcomes'):
        _create_outcomes()
    if not there.has_table('releases'):
        _create_releases()


def _create_outcomes() -> None:
    op.create_table(
        'outcomes',
        sa.Column('idempotency_key', sa.String(length=96), nullable=False),
        sa.Column('instance_uuid', sa.String(length=36), nullable=False),
        sa.Column('kind', sa.String(length=16), nullable=False),
        sa.Column('document', _DOCUMENT),
        sa.Column('created_at', sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint(
            'idempotency_key', 'instance_uuid', name=op.f('pk_outcomes')
        ),
        **_TABLE,
    )
    op.create_index(op.f('ix_outcomes_created_at'), 'outcomes', ['created_at'])
    if op.get_bind().dialect.name == 'postgresql':
        op.execute('ALTER TABLE outcomes SET (toast_tuple_target = 8160)')


def _create_releases() -> None:
    op.create_table(
        'releases',
        sa.Column('instance_uuid', sa.String(length=36), nullable=False),
        sa.Column('kind', sa.String(length=16), nullable=False),
        sa.Column('released_at', sa.Double(), nullable=False),
        sa.Column('sent_at', sa.Double()),
        sa.PrimaryKeyConstraint(
            'instance_uuid', 'kind', name=op.f('pk_releases')
        ),
        **_TABLE,
    )
    op.create_index(
        op.f('ix_releases_released_at'), 'releases', ['released_at']
    )
