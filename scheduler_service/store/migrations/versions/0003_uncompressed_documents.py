"""Let PostgreSQL store documents uncompressed where a row fits a page

PostgreSQL compresses rows of more than 2 kB. A decision's document is a
little larger than that; compressing it cost a fifth of writing it.
"""

from alembic import op

revision = '0003'
down_revision = '0002'
branch_labels = None
depends_on = None


def upgrade() -> None:
    if op.get_bind().dialect.name != 'postgresql':
        return
    for table in ('decisions', 'instances', 'moves'):
        op.execute(f'ALTER TABLE {table} SET (toast_tuple_target = 8160)')
