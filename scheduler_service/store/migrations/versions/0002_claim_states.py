"""Add moves, index heartbeats by time, count redelivered messages"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = '0002'
down_revision = '0001'
branch_labels = None
depends_on = None

_TABLE: Any = {
    'mysql_charset': 'utf8mb4',
    'mysql_collate': 'utf8mb4_bin',
    'mysql_engine': 'InnoDB',
}
_DOCUMENT = sa.Text().with_variant(mysql.MEDIUMTEXT(), 'mysql', 'mariadb')


def upgrade() -> None:
    op.create_table(
        'moves',
        sa.Column('instance_uuid', sa.String(length=36), nullable=False),
        sa.Column('host_id', sa.BigInteger(), nullable=False),
        sa.Column('host', sa.String(length=255), nullable=False),
        sa.Column('node', sa.String(length=255), nullable=False),
        sa.Column('request_id', sa.String(length=255)),
        sa.Column('placement', _DOCUMENT, nullable=False),
        sa.Column('created_at', sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint('instance_uuid', name=op.f('pk_moves')),
        **_TABLE,
    )
    op.create_index(op.f('ix_moves_host'), 'moves', ['host'])
    op.create_index(op.f('ix_heartbeats_seen_at'), 'heartbeats', ['seen_at'])
    op.create_table(
        'suspects',
        sa.Column('message_id', sa.String(length=64), nullable=False),
        sa.Column('deliveries', sa.Integer(), nullable=False),
        sa.Column('put_aside', sa.Integer(), nullable=False),
        sa.Column('method', sa.String(length=64), nullable=False),
        sa.Column('message', _DOCUMENT, nullable=False),
        sa.Column('changed_at', sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint('message_id', name=op.f('pk_suspects')),
        **_TABLE,
    )
