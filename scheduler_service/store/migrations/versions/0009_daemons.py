"""Let daemons that share the store know of each other"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = '0009'
down_revision = '0008'
branch_labels = None
depends_on = None
# They do not register.
safe_for_older_releases = True

_TABLE: Any = {
    'mysql_charset': 'utf8mb4',
    'mysql_collate': 'utf8mb4_bin',
    'mysql_engine': 'InnoDB',
}
_DOCUMENT = sa.Text().with_variant(mysql.MEDIUMTEXT(), 'mysql', 'mariadb')


def upgrade() -> None:
    op.create_table(
        'daemons',
        sa.Column('id', sa.String(length=36), nullable=False),
        sa.Column('name', sa.String(length=255), nullable=False),
        sa.Column('version', sa.String(length=64), nullable=False),
        sa.Column('fingerprint', sa.String(length=16), nullable=False),
        sa.Column('document', _DOCUMENT, nullable=False),
        sa.Column('started_at', sa.Double(), nullable=False),
        sa.Column('seen_at', sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint('id', name=op.f('pk_daemons')),
        if_not_exists=True,
        **_TABLE,
    )
