"""``scheduler-manage db`` and ``audit``: the tables, and faults in them."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import sqlalchemy as sa
from alembic import util
from oslo_db import exception as db_exception

from scheduler_service import errors, moments, plugins
from scheduler_service.cmd import adapters, output
from scheduler_service.cmd.commands.resources import default_ratios
from scheduler_service.cmd.connections import open_store
from scheduler_service.store import clock, migrate, schema, version
from scheduler_service.store.connection import Store
from scheduler_service.store.driver_errors import (
    first_line,
    translate_errors,
)
from scheduler_service.store.records import audit as auditing
from scheduler_service.store.records import decisions, rates

_FAULTS = (util.CommandError, db_exception.DBError, sa.exc.SQLAlchemyError)


def sync(args: Any, conf: Any) -> int:
    """Create or upgrade the tables; return 1 if they are damaged."""
    with _open(conf) as store:
        migrate.sync(store)
        return _compare(store)


def show_version(args: Any, conf: Any) -> None:
    with _open(conf) as store:
        current = migrate.current(store)
    print(f'tables {current or "none"}, release {schema.VERSION}')


def check(args: Any, conf: Any) -> int:
    """Compare the tables with what this release needs; return 1 if not."""
    with _open(conf) as store:
        return _compare(store)


def purge(args: Any, conf: Any) -> None:
    """Delete decisions before a time, batch by batch, and their rates.

    An interrupt undoes no finished batch.
    """
    deleted = 0
    with open_store(conf) as store:
        with store.reading() as conn:
            now = clock.read(conn)
        before = moments.stamp(args.before, now)
        while True:
            count = store.write(
                lambda writer: decisions.purge(writer, before, args.batch)
            )
            deleted += count
            if not count:
                break
        store.write(lambda writer: rates.prune(writer, before))
    print(f'{deleted} decisions were deleted.')


@contextlib.contextmanager
def _open(conf: Any) -> Iterator[Store]:
    """Open the store with tables of any version.

    :raises SchemaMismatch: the code inside fails; with the fault's first line
    """
    with open_store(conf, any_version=True) as store:
        try:
            with translate_errors():
                yield store
        except _FAULTS as fault:
            raise errors.SchemaMismatch(
                'The tables cannot be upgraded or compared: '
                + first_line(fault)
            ) from fault


def _compare(store: Store) -> int:
    needed = schema.VERSION
    with store.reading() as conn:
        current = version.check_version(conn)
        if current is None:
            print(
                f'There are no tables yet, this release needs {needed}: run '
                '"scheduler-manage db sync".'
            )
            return 1
        differences = version.damage(conn)
    if current == needed:
        differences = differences or migrate.differences(store)
    for difference in differences:
        print(difference)
    if differences:
        return 1
    if current == needed:
        print(f'The tables are at {current}, as this release needs.')
    else:
        print(
            f'The tables are at {current}, newer than {needed} of this '
            'release, which can use them.'
        )
    return 0


def audit(args: Any, conf: Any) -> int:
    """Print what does not agree in the store; return 1 if there is any."""
    fallback = default_ratios(conf)
    with open_store(conf) as store:
        fixed = store.write(auditing.fix) if args.fix else 0
        stages = {s.name for s in plugins.stages(conf.scheduler.stages)}
        stages |= adapters.recorded_stages(conf)
        with store.reading() as conn:
            report = auditing.audit(conn, fallback, stages)
        report.findings += adapters.audit(conf, store)
    findings = [*report.findings, *report.unmatched]
    status = 1 if findings else 0
    if args.format != 'table':
        output.document(
            {'mended': fixed, **msgspec.to_builtins(report)}, args.format
        )
        return status
    if fixed:
        print(f'{fixed} rows fixed')
    for finding in findings:
        parts = (
            finding.server_group, finding.host, finding.aggregate,
            finding.resource_class, finding.consumer,
        )  # fmt: skip
        place = ' '.join(part for part in parts if part)
        output.say(f'{finding.kind}: {place}: {finding.text}')
    counts = Counter(finding.kind for finding in findings)
    kinds = ', '.join(f'{number} {kind}' for kind, number in counts.items())
    print(
        f'{len(findings)} differences in {report.inventories} inventories, '
        f'{report.allocations} allocations, {report.claims} claims, '
        f'{report.server_groups} server groups{kinds and ": " + kinds}'
    )
    return status
