"""A release after this one: it has one migration more, which adds a column."""

from __future__ import annotations

import contextlib
import pathlib
import shutil
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from scheduler_service.store import migrate, schema
from tests.support.paths import ROOT

VERSION = f'{int(schema.VERSION) + 1:04}'
# What follows the columns of the table.
_LAST = "    sa.UniqueConstraint('host', 'node'),\n"
_MIGRATION = '''"""Add a column that this release does not need"""

import sqlalchemy as sa
from alembic import op

revision = '{version}'
down_revision = '{before}'
branch_labels = None
depends_on = None
safe_for_older_releases = {safe}


def upgrade() -> None:
    # MariaDB commits each statement: a migration that was cut off runs again.
    there = sa.inspect(op.get_bind())
    if 'colour' not in {{column['name'] for column in there.get_columns('hosts')}}:
        op.add_column('hosts', sa.Column('colour', sa.String(8)))
'''  # noqa: E501


def add_migration(folder: pathlib.Path, safe: bool = True) -> None:
    """Add the migration to a folder of migrations.

    :param safe: whether it is declared safe for the release before it
    """
    text = _MIGRATION.format(version=VERSION, before=schema.VERSION, safe=safe)
    (folder / 'versions' / f'{VERSION}_colour.py').write_text(text)


@contextlib.contextmanager
def in_process(
    monkeypatch: pytest.MonkeyPatch, folder: pathlib.Path, safe: bool = True
) -> Iterator[None]:
    """Let this process be the next release meanwhile.

    :param folder: for its migrations
    """
    shutil.copytree(migrate._HERE, folder)
    add_migration(folder, safe)
    column: sa.Column[str] = sa.Column('colour', sa.String(8))
    with monkeypatch.context() as patches:
        patches.setattr(migrate, '_HERE', folder)
        patches.setattr(schema, 'VERSION', VERSION)
        schema.hosts.append_column(column)
        try:
            yield
        finally:
            schema.hosts._columns.remove(column)  # type: ignore[attr-defined]


def copy_package(folder: pathlib.Path) -> pathlib.Path:
    """Return a folder for PYTHONPATH with the package of the next release."""
    package = folder / 'scheduler_service'
    shutil.copytree(ROOT / package.name, package)
    add_migration(package / 'store/migrations')
    tables = package / 'store/schema.py'
    text = tables.read_text()
    for line, replacement in (
        (f"VERSION = '{schema.VERSION}'\n", f"VERSION = '{VERSION}'\n"),
        (_LAST, f"    sa.Column('colour', sa.String(8)),\n{_LAST}"),
    ):
        assert text.count(line) == 1
        text = text.replace(line, replacement)
    tables.write_text(text)
    return folder
