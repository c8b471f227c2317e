"""Give changes a lineage, and name the versions that may use the tables"""

import sqlalchemy as sa
from alembic import op

revision = '0005'
down_revision = '0004'
branch_labels = None
depends_on = None
# They write no lineage, and do not read it.
safe_for_older_releases = True


def upgrade() -> None:
    # MariaDB commits each statement: a migration that was cut off runs again.
    there = sa.inspect(op.get_bind())
    if 'lineage' not in {one['name'] for one in there.get_columns('changes')}:
        op.add_column(
            'changes',
            sa.Column(
                'lineage', sa.String(16), nullable=False, server_default=''
            ),
        )
    if not there.has_table('compatible_versions'):
        op.create_table(
            'compatible_versions',
            sa.Column('version', sa.String(32), nullable=False),
            sa.PrimaryKeyConstraint(
                'version', name=op.f('pk_compatible_versions')
            ),
            mysql_charset='utf8mb4',
            mysql_collate='utf8mb4_bin',
            mysql_engine='InnoDB',
        )
