"""``scheduler-manage replay``: what a configuration would have decided."""

from __future__ import annotations

import contextlib
import csv
import functools
import math
import multiprocessing
import os
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import msgspec
from sqlalchemy.engine import Connection

from scheduler_service import errors, moments
from scheduler_service.cmd import adapters, output, past_configuration
from scheduler_service.cmd.connections import open_store, read
from scheduler_service.cmd.program import WrongUsage
from scheduler_service.conf import effective
from scheduler_service.engine.simulation import Decision, Simulation, Verdict
from scheduler_service.model import Request, client_documents, documents
from scheduler_service.model.document_text import read_all
from scheduler_service.pipeline import HostPipeline
from scheduler_service.store import clock
from scheduler_service.store.reading.snapshot import load_snapshot
from scheduler_service.store.records.replaying import Player

# How many differing decisions are explained.
_EXPLAINED = 10
# How often progress is shown, in seconds.
_EVERY_S = 0.5
_DEFAULT_SINCE = '24h'
_NAMES = 'a', 'b'


class Job(NamedTuple):
    """What a process simulates.

    :ivar number: of the configuration
    :ivar own: its file; None: what was in force
    :ivar store: files and folders of the configuration of the command
    :ivar since: seconds since the epoch; *until* likewise
    :ivar differing: as of a :class:`Simulation`; the last one ends it
    """

    number: int
    own: str | None
    store: tuple[Sequence[str], Sequence[str]]
    since: float
    until: float
    trace: str | None
    seed: int
    differing: Mapping[int, tuple[Decision, Decision]]


class Result(NamedTuple):
    decisions: list[Decision | None]
    verdicts: dict[int, Verdict]
    figures: dict[str, Any]
    gaps: list[str]
    remarks: list[str]


Run = Callable[[Sequence[Job]], list[Result]]


def replay(args: Any, conf: Any) -> int:
    """Print what two configurations make of the same requests.

    :return: 1: a part of the time is not recorded
    :raises ConfigurationError: a configuration cannot be used
    :raises InvalidRequest: the trace has something else
    """
    if args.trace and (args.since or args.until):
        raise WrongUsage('argument --trace: not with --since or --until')
    if len(args.config) > len(_NAMES):
        raise WrongUsage('argument --config: at most two')
    for path in args.config:
        adapters.engine(adapters.load([path]))
    second, first = [*args.config, None][: len(_NAMES)]
    now = read(conf, clock.read)
    since = moments.stamp(args.since or moments.past(_DEFAULT_SINCE), now)
    until = moments.stamp(args.until, now) if args.until else now
    jobs = [
        Job(
            number,
            own,
            (args.config_file, args.config_dir),
            since,
            until,
            args.trace,
            args.seed,
            {},
        )
        for number, own in enumerate((first, second))
    ]
    with _processes(len(jobs)) as run:
        report, gaps, remarks = compared(jobs, run)
    for text in (*gaps, *remarks):
        output.remark(text)
    if args.format != 'table':
        output.document(report, args.format)
    else:
        _print(report)
    return int(bool(gaps))


def compared(
    jobs: Sequence[Job], run: Run
) -> tuple[dict[str, Any], list[str], list[str]]:
    """Return what two configurations make of the same requests.

    :param run: simulates both
    :return: the report, what is not recorded, and remarks
    """
    first, second = run(jobs)
    pairs = [*zip(first.decisions, second.decisions, strict=True)]
    differing = {
        number: (a, b)
        for number, (a, b) in enumerate(pairs)
        if a and b and a.hosts != b.hosts
    }
    explained = dict([*differing.items()][:_EXPLAINED])
    results = run([
        jobs[0]._replace(differing=explained),
        jobs[1]._replace(
            differing={n: pair[::-1] for n, pair in explained.items()}
        ),
    ]) if explained else []  # fmt: skip
    rows = []
    for number, (a, b) in explained.items():
        verdicts = [each.verdicts[number] for each in results]
        parted = _parted_by(*verdicts) or a.refused_by or b.refused_by
        rows.append({
            'request_id': a.request_id,
            'a': verdicts[0].own,
            'b': verdicts[1].own,
            'parted_by': parted,
        })  # fmt: skip
    report = {
        'a': first.figures,
        'b': second.figures,
        'differing': len(differing),
        'first_differing': rows,
    }
    return report, first.gaps, first.remarks


def _parted_by(a: Verdict, b: Verdict) -> str:
    """Return the first filter or weigher that parts two decisions."""
    if a.rejected_by or b.rejected_by:
        return a.rejected_by or b.rejected_by
    for name in {**a.margins, **b.margins}:
        ahead, behind = a.margins.get(name, 0.0), b.margins.get(name, 0.0)
        if not math.isclose(ahead, -behind, abs_tol=1e-9):
            return name
    return ''


@contextlib.contextmanager
def _processes(count: int) -> Iterator[Run]:
    """Yield what simulates in processes, and shows how far they are."""
    context = multiprocessing.get_context('spawn')
    shares = context.Array('d', count)
    with (
        output.progress() as show,
        futures.ProcessPoolExecutor(count, context, _share, (shares,)) as pool,
    ):

        def run(jobs: Sequence[Job]) -> list[Result]:
            running = [pool.submit(simulate, job) for job in jobs]
            while futures.wait(running, _EVERY_S).not_done:
                for name, share in zip(_NAMES, shares[:], strict=True):
                    show(f'configuration {name}', round(100 * share), 100)
            return [each.result() for each in running]

        yield run


_shares: Any = None


def _share(shares: Any) -> None:
    """Take where this process tells how far it is, and end with the command.

    A command that is killed, or over its ``--timeout``, ends no process.
    """
    global _shares
    _shares = shares
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def simulate(job: Job) -> Result:
    """Decide the requests by one configuration."""
    # Not for secrets.
    simulation = Simulation(random.Random(job.seed), job.differing)  # noqa: S311
    gaps: list[str] = []
    remarks: list[str] = []
    present = adapters.load(*job.store)
    with open_store(present) as store, store.reading() as conn:
        pipeline_of = _pipelines(conn, job.own, present, remarks)
        if job.trace is not None:
            simulation.go_on(load_snapshot(conn).hosts)
            steps = _of_trace(job.trace, simulation, pipeline_of(''))
        else:
            player = Player(
                conn, job.since, job.until, simulation, pipeline_of
            )
            gaps, span = player.gaps, max(job.until - job.since, 1.0)
            steps = ((at - job.since) / span for at in player.play())
        last = max(job.differing, default=math.inf)
        for share in steps:
            if _shares is not None:
                _shares[job.number] = max(share, 0.0)
            if len(simulation.decisions) > last:
                break
    figures = {} if job.differing else simulation.figures()
    return Result(
        simulation.decisions, simulation.verdicts, figures, gaps, remarks
    )


def _pipelines(
    conn: Connection, own: str | None, present: Any, remarks: list[str]
) -> Callable[[str], HostPipeline]:
    """Return what gives the pipeline for what a request was decided with.

    :param own: the file of the configuration; None: the one in force
    :param remarks: gets why the present one stands for that
    """

    @functools.cache
    def in_force(fingerprint: str) -> HostPipeline:
        of_then = fingerprint or effective.fingerprint(present)
        engine, reason = past_configuration.as_of(conn, of_then, present)
        if reason:
            remarks.append(f'{reason}: the present one stands for it')
        return engine.hosts

    if own is None:
        return in_force
    pipeline = adapters.engine(adapters.load([own])).hosts
    return lambda fingerprint: pipeline


def _of_trace(
    path: str, simulation: Simulation, pipeline: HostPipeline
) -> Iterator[float]:
    """Have the requests of a file come and go; yield the share of them."""
    # By time, departures first. No two have the same time, kind and number, so
    # that no requests are compared.
    events: list[tuple[float, bool, int, Request]] = []
    for number, row in enumerate(_rows(path), 1):
        try:
            request = _request(row['request']).with_ids(str(number))
            events.append((_time(row['arrival']), True, number, request))
            if row.get('departure') not in (None, ''):
                end = _time(row['departure'])
                events.append((end, False, number, request))
        except (
            KeyError,
            TypeError,
            ValueError,
            errors.InvalidRequest,
        ) as fault:
            raise errors.InvalidRequest(
                f'{path}: entry {number}: {fault}'
            ) from None
    for done, (_, comes, _, request) in enumerate(sorted(events)):
        if comes:
            request = request.offered_form(simulation.table.resources)
            simulation.arrive(request, {})
            simulation.decide(pipeline, request)
        else:
            for uuid in request.instance_uuids:
                simulation.follow(uuid)
        yield done / len(events)


def _rows(path: str) -> Iterable[Mapping[str, Any]]:
    with open(path, 'rb') as file:
        text = read_all(file).decode()
    if path.endswith('.csv'):
        return csv.DictReader(text.splitlines())
    return [msgspec.json.decode(line) for line in text.splitlines() if line]


def _request(value: Any) -> Request:
    """Return the request of a document, its JSON, or a flavor as a text."""
    if isinstance(value, str):
        value = (
            msgspec.json.decode(value)
            if value.startswith('{')
            else {'flavor': client_documents.flavor_of_text(value)}
        )
    return documents.checked_request(value)


def _time(value: Any) -> float:
    """Return a time of a trace: a number of seconds, or a date and time."""
    try:
        return float(value)
    except ValueError:
        return moments.stamp(moments.past(value), 0.0)


def _print(report: dict[str, Any]) -> None:
    rows = [
        {'figure': name, 'a': value, 'b': report['b'][name]}
        for name, value in report['a'].items()
    ]
    output.table(rows, ['figure', 'a', 'b'])
    output.say(f'Decisions that differ: {report["differing"]:,}')
    if report['first_differing']:
        output.table(
            report['first_differing'], ['request_id', 'a', 'b', 'parted_by'],
            title='The first that differ',
        )  # fmt: skip
