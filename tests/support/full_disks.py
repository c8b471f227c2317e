"""Databases on small file systems of their own, which can be filled.

Each is a tmpfs, which only root may mount.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import shutil
import subprocess
import uuid
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from tests.support.databases import (
    TEMPLATE,
    migrated_database,
    tables_of_mariadb,
)
from tests.support.servers import Server

_CHUNK = 4096


@dataclasses.dataclass
class Disk:
    """A small file system.

    :ivar folder: where it is mounted
    """

    folder: pathlib.Path

    def fill(self) -> None:
        """Leave no room on it."""
        # Without room a write fails.
        with (
            contextlib.suppress(OSError),
            self._ballast.open('ab', buffering=0) as file,
        ):
            while True:
                file.write(bytes(_CHUNK))

    def free(self) -> None:
        """Make room again."""
        self._ballast.unlink()

    @property
    def _ballast(self) -> pathlib.Path:
        return self.folder / 'ballast'


@contextlib.contextmanager
def disk(folder: pathlib.Path, user: str | None = None) -> Iterator[Disk]:
    """Mount a file system of 48 MiB in a new folder; skip where none can be.

    :param user: whose it is to be
    """
    folder.mkdir()
    try:
        subprocess.run(
            ['mount', '-t', 'tmpfs', '-o', 'size=48m', 'tmpfs', str(folder)],
            check=True, capture_output=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError) as fault:
        folder.rmdir()
        pytest.skip(f'No file system can be mounted here: {fault}')
    try:
        if user:
            shutil.chown(folder, user)
        yield Disk(folder)
    finally:
        subprocess.run(['umount', '-l', str(folder)], check=True)
        folder.rmdir()


@contextlib.contextmanager
def database(
    kind: str, server: Server | None, base: str, folder: pathlib.Path
) -> Iterator[tuple[Disk, str]]:
    """Give a database with its tables on a disk of its own, and the disk.

    :param server: of the kind; not used for SQLite
    :param base: URL of the server without a database; not used for SQLite
    :param folder: for SQLite alone
    """
    name = f't{uuid.uuid4().hex[:12]}'
    if kind == 'sqlite':
        with disk(folder / name) as small:
            yield small, migrated_database(f'sqlite:///{small.folder}/')
        return
    assert server is not None
    with disk(server.folder / name, server.user) as small:
        move = _postgresql if kind == 'postgresql' else _mariadb
        with move(base, name, small):
            yield small, base + name


@contextlib.contextmanager
def _postgresql(base: str, name: str, small: Disk) -> Iterator[None]:
    """Make a database in a tablespace on the disk; the log stays outside."""
    # The template is there after this.
    migrated_database(base)
    _run(
        base + 'postgres',
        f"CREATE TABLESPACE {name} LOCATION '{small.folder}'",
        f'CREATE DATABASE {name} TEMPLATE {TEMPLATE} TABLESPACE {name}',
    )
    try:
        yield
    finally:
        _run(
            base + 'postgres',
            f'DROP DATABASE {name} WITH (FORCE)',
            f'DROP TABLESPACE {name}',
        )


@contextlib.contextmanager
def _mariadb(base: str, name: str, small: Disk) -> Iterator[None]:
    """Make a database of which the folder is on the disk."""
    _run(base, f'CREATE DATABASE {name}')
    place = small.folder.parent / 'data' / name
    for file in place.iterdir():
        shutil.move(file, small.folder)
    place.rmdir()
    place.symlink_to(small.folder)
    try:
        _run(base + name, *tables_of_mariadb(base))
        yield
    finally:
        tables = ', '.join(sa.inspect(_engine(base + name)).get_table_names())
        _run(base + name, f'DROP TABLE {tables}')
        place.unlink()


def _engine(url: str) -> sa.Engine:
    return sa.create_engine(
        url, isolation_level='AUTOCOMMIT', poolclass=sa.NullPool
    )


def _run(url: str, *statements: str) -> None:
    with _engine(url).connect() as conn:
        for statement in statements:
            conn.exec_driver_sql(statement)
