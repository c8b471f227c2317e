"""Tell names apart by blanks at their end, on MariaDB and MySQL"""

import sqlalchemy as sa
from alembic import op

revision = '0013'
down_revision = '0012'
branch_labels = None
depends_on = None
# They compare names with each other and with parameters only. What they
# compare with the columns of JSON_TABLE, for which they name a collation,
# stays as it is: uuids, keys and resource classes.
safe_for_older_releases = True

# Of MariaDB, and of MySQL since 8.0.17. Before, it has none that does not
# pad and compares by bytes: its tables stay as they are.
UNPADDED = 'utf8mb4_nopad_bin', 'utf8mb4_0900_bin'
# Each is a VARCHAR(255) that is not null.
NAMES = {
    'aggregate_hosts': ('host',),
    'aggregate_metadata': ('key',),
    'aggregates': ('name',),
    'heartbeats': ('host',),
    'hosts': ('host', 'node'),
    'instances': ('host', 'node'),
    'moves': ('host', 'node'),
    'pool_attributes': ('key',),
    'pools': ('name',),
    'refused_reports': ('host',),
    'server_groups': ('name',),
    'zones': ('name',),
}


def upgrade() -> None:
    conn = op.get_bind()
    if conn.dialect.name not in ('mysql', 'mariadb'):
        return
    known = conn.scalar(
        sa.text(
            'SELECT collation_name FROM information_schema.collations '
            'WHERE collation_name IN :names'
        ).bindparams(sa.bindparam('names', UNPADDED, expanding=True))
    )
    if known is None:
        return
    # MariaDB commits each statement: a migration that was cut off runs again.
    done = conn.execute(
        sa.text(
            'SELECT table_name, column_name FROM information_schema.columns '
            'WHERE table_schema = DATABASE() AND collation_name = :known'
        ),
        {'known': known},
    )
    there = {tuple(row) for row in done}
    for table, names in NAMES.items():
        if (table, names[0]) not in there:
            changes = ', '.join(
                f'MODIFY `{name}` VARCHAR(255) CHARACTER SET utf8mb4 '
                f'COLLATE {known} NOT NULL'
                for name in names
            )
            op.execute(f'ALTER TABLE {table} {changes}')
