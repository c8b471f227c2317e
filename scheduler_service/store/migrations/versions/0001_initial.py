"""Create all tables

Those of later migrations, too: these look at what is there already, since
MariaDB commits each statement, and a migration that was cut off runs again.
"""

from alembic import op

from scheduler_service.store import schema

revision = '0001'
down_revision = None
branch_labels = None
depends_on = None

# PostgreSQL compresses rows of more than 2 kB. A decision's document is a
# little larger than that; compressing it costs a fifth of writing it.
_UNCOMPRESSED = 'decisions', 'instances', 'moves', 'outcomes'


def upgrade() -> None:
    conn = op.get_bind()
    schema.metadata.create_all(conn)
    if conn.dialect.name == 'postgresql':
        for table in _UNCOMPRESSED:
            op.execute(f'ALTER TABLE {table} SET (toast_tuple_target = 8160)')
