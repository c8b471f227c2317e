"""Let one daemon at a time do a piece of work; note claims in placement"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = '0007'
down_revision = '0006'
branch_labels = None
depends_on = None
# They do none of this work, and make no claims in placement.
safe_for_older_releases = True

_TABLE: Any = {
    'mysql_charset': 'utf8mb4',
    'mysql_collate': 'utf8mb4_bin',
    'mysql_engine': 'InnoDB',
}
_DOCUMENT = sa.Text().with_variant(mysql.MEDIUMTEXT(), 'mysql', 'mariadb')


def upgrade() -> None:
    op.create_table(
        'leases',
        sa.Column('name', sa.String(length=32), nullable=False),
        sa.Column('holder', sa.String(length=255), nullable=False),
        sa.Column('expires_at', sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint('name', name=op.f('pk_leases')),
        if_not_exists=True,
        **_TABLE,
    )
    op.create_table(
        'placement_claims',
        sa.Column('instance_uuid', sa.String(length=36), nullable=False),
        sa.Column(
            'host_id', sa.BigInteger(), autoincrement=False, nullable=False
        ),
        sa.Column('made_at', sa.Double()),
        sa.Column('resources', _DOCUMENT, nullable=False),
        sa.PrimaryKeyConstraint(
            'instance_uuid', 'host_id', name=op.f('pk_placement_claims')
        ),
        if_not_exists=True,
        **_TABLE,
    )
