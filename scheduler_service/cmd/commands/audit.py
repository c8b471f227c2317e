"""``scheduler-manage audit``: what does not agree in the store."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from scheduler_service import plugins
from scheduler_service.cmd import adapters, output
from scheduler_service.cmd.commands.resources import default_ratios
from scheduler_service.cmd.connections import open_store
from scheduler_service.store.records import audit as auditing


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
