"""Find the memberships of an instance by an index"""

import sqlalchemy as sa
from alembic import op

revision = '0011'
down_revision = '0010'
branch_labels = None
depends_on = None
safe_for_older_releases = True

TABLE = 'server_group_members'


def upgrade() -> None:
    # MariaDB commits each statement: a migration that was cut off runs again.
    there = sa.inspect(op.get_bind())
    name = op.f('ix_server_group_members_instance_uuid')
    if name not in {one['name'] for one in there.get_indexes(TABLE)}:
        op.create_index(name, TABLE, ['instance_uuid'])
