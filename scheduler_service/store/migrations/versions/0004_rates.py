"""Add the rates of decisions and the use of zones"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = '0004'
down_revision = '0003'
branch_labels = None
depends_on = None
# They neither read nor write the tables.
safe_for_older_releases = True

_BIG = sa.BigInteger()
_DOCUMENT = sa.Text().with_variant(mysql.MEDIUMTEXT(), 'mysql')


def upgrade() -> None:
    tables = sa.inspect(op.get_bind())
    # MariaDB commits each statement: a migration that was cut off runs again.
    existing = tables.get_table_names()
    hosts = tables.get_columns('hosts')
    names = next(each['type'] for each in hosts if each['name'] == 'host')
    if 'decision_rates' not in existing:
        _create(
            'decision_rates',
            sa.Column('minute', _BIG, primary_key=True, autoincrement=False),
            sa.Column('run', _BIG, primary_key=True, autoincrement=False),
            sa.Column('daemon', sa.String(255), nullable=False),
            sa.Column('document', _DOCUMENT, nullable=False),
        )
    if 'zone_usage' not in existing:
        _create(
            'zone_usage',
            # Of the same collation: zones are told apart as hosts are.
            sa.Column('zone', names, primary_key=True),
            sa.Column('resource_class', sa.String(255), primary_key=True),
            sa.Column('period', _BIG, primary_key=True, autoincrement=False),
            sa.Column('capacity', _BIG, nullable=False),
            sa.Column('used', _BIG, nullable=False),
            sa.Column('unavailable', _BIG, nullable=False),
            sa.Index('ix_zone_usage_period', 'period'),
        )


def _create(table: str, *parts: Any) -> None:
    op.create_table(
        table,
        *parts,
        mysql_charset='utf8mb4',
        mysql_collate='utf8mb4_bin',
        mysql_engine='InnoDB',
    )
