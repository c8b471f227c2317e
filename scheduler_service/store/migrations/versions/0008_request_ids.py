"""Keep the ids that callers know a decision's request by"""

import sqlalchemy as sa
from alembic import op

revision = '0008'
down_revision = '0007'
branch_labels = None
depends_on = None
# They write none of these ids, and do not read them.
safe_for_older_releases = True


def upgrade() -> None:
    # MariaDB commits each statement: a migration that was cut off runs again.
    there = sa.inspect(op.get_bind())
    columns = {one['name'] for one in there.get_columns('decisions')}
    indexes = {one['name'] for one in there.get_indexes('decisions')}
    for name in ('caller_request_id', 'global_request_id'):
        if name not in columns:
            op.add_column('decisions', sa.Column(name, sa.String(length=255)))
        index = op.f(f'ix_decisions_{name}')
        if index not in indexes:
            op.create_index(index, 'decisions', [name])
