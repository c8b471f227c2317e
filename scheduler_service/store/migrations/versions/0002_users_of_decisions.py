"""Add the user of a decision"""

import sqlalchemy as sa
from alembic import op

revision = '0002'
down_revision = '0001'
branch_labels = None
depends_on = None
# They neither read nor write the column.
safe_for_older_releases = True


def upgrade() -> None:
    found = sa.inspect(op.get_bind()).get_columns('decisions')
    types = {column['name']: column['type'] for column in found}
    # MariaDB commits each statement: a migration that was cut off runs again.
    if 'user_id' not in types:
        # Of the same collation: users are told apart as projects are.
        op.add_column('decisions', sa.Column('user_id', types['project_id']))
