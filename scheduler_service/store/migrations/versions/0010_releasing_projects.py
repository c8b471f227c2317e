"""Keep which project released an instance"""

import sqlalchemy as sa
from alembic import op

revision = '0010'
down_revision = '0009'
branch_labels = None
depends_on = None
# They insert releases without a project, which concern all as before, and
# take those of projects for releases that concern all.
safe_for_older_releases = True


def upgrade() -> None:
    # MariaDB commits each statement: a migration that was cut off runs again.
    there = sa.inspect(op.get_bind())
    columns = {one['name'] for one in there.get_columns('releases')}
    if 'project_id' not in columns:
        op.add_column(
            'releases', sa.Column('project_id', sa.String(length=255))
        )
