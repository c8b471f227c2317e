"""Add the host reports that were refused"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = '0004'
down_revision = '0003'
branch_labels = None
depends_on = None
safe_for_older_releases = True

_TABLE: Any = {
    'mysql_charset': 'utf8mb4',
    'mysql_collate': 'utf8mb4_bin',
    'mysql_engine': 'InnoDB',
}


def upgrade() -> None:
    op.create_table(
        'refused_reports',
        sa.Column('host', sa.String(length=255), nullable=False),
        sa.Column('reason', sa.Text(), nullable=False),
        sa.Column('refused', sa.BigInteger(), nullable=False),
        sa.Column('refused_at', sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint('host', name=op.f('pk_refused_reports')),
        **_TABLE,
    )
