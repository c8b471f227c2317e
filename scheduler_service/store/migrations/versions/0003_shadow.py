"""Add the verdicts of a shadow"""

import sqlalchemy as sa
from alembic import op

revision = '0003'
down_revision = '0002'
branch_labels = None
depends_on = None
# They neither read nor write the table.
safe_for_older_releases = True


def upgrade() -> None:
    inspector = sa.inspect(op.get_bind())
    # Of the same collation as all names.
    types = {c['name']: c['type'] for c in inspector.get_columns('decisions')}
    op.create_table(
        'shadow_verdicts',
        sa.Column('hour', sa.BigInteger(), autoincrement=False),
        sa.Column('verdict', sa.String(16)),
        sa.Column('cause', types['filter']),
        sa.Column('requests', sa.BigInteger(), nullable=False),
        sa.Column('spent_ms', sa.Double(), nullable=False),
        sa.Column('slowest_ms', sa.Double(), nullable=False),
        sa.Column('example', types['request_id']),
        sa.PrimaryKeyConstraint('hour', 'verdict', 'cause'),
        if_not_exists=True,
        mysql_engine='InnoDB',
        mysql_charset='utf8mb4',
        mysql_collate='utf8mb4_bin',
    )
