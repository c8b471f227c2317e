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
    for name in ('caller_request_id', 'global_request_id'):
        op.add_column('decisions', sa.Column(name, sa.String(length=255)))
        op.create_index(op.f(f'ix_decisions_{name}'), 'decisions', [name])
