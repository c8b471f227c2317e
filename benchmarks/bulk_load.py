"""Many hosts in a store at once, faster than an import of them all.

Some hosts are imported as a document; the database then copies their rows
under new numbers and names. What the copies offer is what the originals do.
"""

from __future__ import annotations

import pathlib
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from benchmarks import common
from tests.support.paths import PROGRAMS

ORIGINALS = 10_000
# Columns of a copied row that differ from its original's. ``copy`` is the
# number of the copy, ``:step`` how many hosts there are of the originals.
_NAME = (
    "'node-' || lpad((substr({column}, 6)::bigint + copy * :step)::text, "
    "6, '0')"
)
_COPIED: dict[str, dict[str, str]] = {
    'hosts': {
        'id': 'id + copy * :step',
        'uuid': 'md5(uuid || copy)::uuid::text',
        'host': _NAME.format(column='host'),
        'node': _NAME.format(column='node'),
    },
    'inventories': {'host_id': 'host_id + copy * :step'},
    'traits': {'host_id': 'host_id + copy * :step'},
    'aggregate_hosts': {'host': _NAME.format(column='host')},
}


def originals(hosts: int) -> int:
    """Return how many hosts are to be imported, to have *hosts* in the end.

    :raises ValueError: the number cannot be reached by copying
    """
    if hosts > ORIGINALS and hosts % ORIGINALS:
        raise ValueError(
            f'--hosts {hosts}: above {ORIGINALS} expected a multiple of it'
        )
    return min(hosts, ORIGINALS)


def load(
    config: pathlib.Path,
    database_url: str,
    hosts: int,
    document: dict[str, Any],
    programs: pathlib.Path = PROGRAMS,
) -> None:
    """Fill an empty database with a number of hosts.

    :param document: inventory of as many hosts as :func:`originals` says
    :param programs: make the tables and import the document
    """
    common.import_inventory(config, document, programs)
    step = len(document['hosts'])
    engine = sa.create_engine(database_url)
    with engine.begin() as conn:
        if hosts > step:
            for table, changed in _COPIED.items():
                _copy(conn, table, changed, step, hosts // step - 1)
            conn.execute(
                sa.text(
                    'UPDATE counters SET value = value * :times '
                    "WHERE name = 'host_id'"
                ),
                {'times': hosts // step},
            )
        # Without statistics the first claims are planned badly.
        conn.exec_driver_sql('ANALYZE')
    engine.dispose()


def _copy(
    conn: Connection,
    table: str,
    changed: dict[str, str],
    step: int,
    copies: int,
) -> None:
    names = [column['name'] for column in sa.inspect(conn).get_columns(table)]
    values = ', '.join(changed.get(name, f'"{name}"') for name in names)
    columns = ', '.join(f'"{name}"' for name in names)
    conn.execute(
        sa.text(
            f'INSERT INTO {table} ({columns}) SELECT {values} FROM {table}, '
            'generate_series(1, :copies) AS copy'
        ),
        {'step': step, 'copies': copies},
    )
