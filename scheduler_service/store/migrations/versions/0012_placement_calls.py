"""Keep which calls for allocations have ended, and who undoes them"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = '0012'
down_revision = '0011'
branch_labels = None
depends_on = None
# They insert records without these times, whose calls are taken to have
# ended, and undo what they find without saying so, as before.
safe_for_older_releases = True

TABLE = 'placement_claims'


def _columns() -> list[sa.Column[Any]]:
    return [
        sa.Column('asked_at', sa.Double()),
        sa.Column('call_until', sa.Double()),
        sa.Column('looks', sa.Integer(), nullable=False, server_default='0'),
        sa.Column('absent', sa.Integer(), nullable=False, server_default='0'),
        sa.Column('look_at', sa.Double()),
        sa.Column('undone_by', sa.String(32)),
        sa.Column('undone_until', sa.Double()),
    ]


def upgrade() -> None:
    # MariaDB commits each statement: a migration that was cut off runs again.
    there = sa.inspect(op.get_bind())
    known = {one['name'] for one in there.get_columns(TABLE)}
    for column in _columns():
        if column.name not in known:
            op.add_column(TABLE, column)
