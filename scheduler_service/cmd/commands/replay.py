"""``scheduler-manage replay``: what a configuration would have decided."""

from __future__ import annotations

import contextlib
import csv
import functools
import math
import multiprocessing
import os
import random
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import msgspec
from sqlalchemy.engine import Connection

from scheduler_service import errors, moments, texts
from scheduler_service.cmd import adapters, output
from scheduler_service.cmd.commands import why
from scheduler_service.cmd.connections import open_store, read
from scheduler_service.cmd.program import WrongUsage
from scheduler_service.conf import effective
from scheduler_service.model import Request, client_documents, documents
from scheduler_service.model.document_text import read_all
from scheduler_service.pipeline import HostPipeline
from scheduler_service.planning.simulation import Simulation
from scheduler_service.store import clock
from scheduler_service.store.reading.snapshot import load_snapshot
from scheduler_service.store.records import decisions, playback
from scheduler_service.store.records.steps import Differing, Onward, Steps

# How many steps that differ a table has of each configuration.
_PRINTED = 10
# How often progress is shown, in seconds.
_EVERY_S = 0.5
_DEFAULT_SINCE = '24h'
_NAMES = 'a', 'b'
PARTS = 'steps', 'onward'
_COLUMNS = 'part', 'figure', 'a', 'b'


class Job(NamedTuple):
    """What a process decides again.

    :ivar number: of the configuration
    :ivar own: its file; None: what was in force
    :ivar store: files and folders of the configuration of the command
    :ivar since: seconds since the epoch; *until* likewise
    :ivar parts: which of *steps* and *onward*
    """

    number: int
    own: str | None
    store: tuple[Sequence[str], Sequence[str]]
    since: float
    until: float
    trace: str | None
    seed: int
    parts: Sequence[str]


class Result(NamedTuple):
    """What came of a job.

    :ivar figures: of each part
    :ivar differing: the steps that differ
    :ivar unread: blocks that cannot be read
    :ivar remarks: sentences
    """

    figures: dict[str, dict[str, Any]]
    differing: Sequence[Differing]
    unread: Sequence[playback.Unread]
    remarks: Sequence[str]


RunJobs = Callable[[Sequence[Job]], list[Result]]


def replay(args: Any, conf: Any) -> int:
    """Print what two configurations make of the same requests.

    :return: 1: a part of the time is not recorded
    :raises ConfigurationError: a configuration cannot be used
    :raises InvalidRequest: the trace has something else
    """
    if args.trace and (args.since or args.until or args.parts == ['steps']):
        raise WrongUsage(
            'argument --trace: not with --since, --until or --steps'
        )
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
            ['onward'] if args.trace else args.parts or PARTS,
        )
        for number, own in enumerate((first, second))
    ]
    with _processes(len(jobs)) as run:
        results = run(jobs)
    lacks = [] if args.trace else _missing(conf, jobs[0], results[0].unread)
    remarks = [text for each in results for text in each.remarks]
    for text in dict.fromkeys((*lacks, *remarks)):
        output.remark(text)
    report = compared(results)
    if args.format == 'table':
        _print(report)
    elif args.format == 'csv':
        lines = csv.writer(sys.stdout, lineterminator='\n')
        lines.writerow(_COLUMNS)
        for row in _rows_of(report):
            lines.writerow(texts.csv_cell(row[name]) for name in _COLUMNS)
    else:
        output.document(report, args.format)
    return int(bool(lacks))


def _missing(
    conf: Any, job: Job, unread: Iterable[playback.Unread]
) -> list[str]:
    """Return what of the time is not recorded, after a remark on its begin."""
    since, until = job.since, job.until
    with open_store(conf) as store, store.reading() as conn:
        runs = playback.runs(conn)
        begins = [each.began_at for run in runs for each in run.stretches]
        output.say_oldest(min(begins, default=None), since)
        lacks = [
            gap.sentence()
            for gap in playback.missing(conn, runs)
            if gap.began_at < until and since < (gap.ended_at or math.inf)
        ]
        every = decisions.count_recorded(conn, since, until)
        for lost in dict.fromkeys(unread):
            count = decisions.count_recorded(conn, since, until, lost[:3])
            lacks.append(
                f'{count:,} of {every:,} requests are left out: {lost.why}'
            )
    return lacks


def compared(results: Sequence[Result]) -> dict[str, Any]:
    """Return by part what two configurations make of the same requests."""
    report: dict[str, Any] = {}
    for part in results[0].figures:
        both = (each.figures[part] for each in results)
        report[part] = dict(zip(_NAMES, both, strict=True))
    if 'steps' in report:
        report['steps']['first_differing'] = [
            {'configuration': name, **step._asdict()}
            for name, each in zip(_NAMES, results, strict=True)
            for step in each.differing
        ]
    return report


@contextlib.contextmanager
def _processes(count: int) -> Iterator[RunJobs]:
    """Yield what simulates in processes, and shows how far they are."""
    context = multiprocessing.get_context('spawn')
    shares = context.Array('d', count)
    with (
        output.progress() as show,
        futures.ProcessPoolExecutor(count, context, _share, (shares,)) as pool,
    ):

        def run(jobs: Sequence[Job]) -> list[Result]:
            running = [pool.submit(decide, job) for job in jobs]
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


def decide(job: Job) -> Result:
    """Decide the requests by one configuration."""
    figures: dict[str, dict[str, Any]] = {}
    differing: list[Differing] = []
    remarks: list[str] = []
    unread: list[playback.Unread] = []
    present = adapters.load(*job.store)
    with open_store(present) as store, store.reading() as conn:
        pipeline_of = _pipelines(conn, job.own, present, remarks)
        if 'steps' in job.parts:
            steps = Steps(conn, job.since, job.until, pipeline_of)
            _tell(job, 'steps', _shares_of(job, steps.play()))
            figures['steps'], differing = steps.figures(), steps.listed
            unread += steps.unread
        if 'onward' in job.parts:
            simulation = simulate(conn, job, pipeline_of, unread)
            figures['onward'] = simulation.figures()
    return Result(figures, differing, unread, remarks)


def simulate(
    conn: Connection,
    job: Job,
    pipeline_of: Callable[[str], HostPipeline],
    unread: list[playback.Unread],
) -> Simulation:
    """Return what the hosts would have become.

    :param unread: gets the blocks that cannot be read
    """
    # Not for secrets.
    simulation = Simulation(random.Random(job.seed))  # noqa: S311
    if job.trace is not None:
        simulation.go_on(load_snapshot(conn).hosts)
        share = _of_trace(job.trace, simulation, pipeline_of(''))
        _tell(job, 'onward', share)
    else:
        onward = Onward(conn, job.since, job.until, simulation, pipeline_of)
        _tell(job, 'onward', _shares_of(job, onward.play()))
        unread += onward.unread
    return simulation


def _shares_of(job: Job, times: Iterable[float]) -> Iterator[float]:
    span = max(job.until - job.since, 1.0)
    return ((at - job.since) / span for at in times)


def _tell(job: Job, part: str, shares: Iterable[float]) -> None:
    """Go through a part of a job, and tell how far it is."""
    before, count = job.parts.index(part), len(job.parts)
    for share in shares:
        if _shares is not None:
            _shares[job.number] = (before + min(max(share, 0.0), 1.0)) / count


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
        engine, reason = why.configuration_as_of(conn, of_then, present)
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


def _rows_of(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {'part': part, 'figure': name, 'a': value, 'b': both['b'][name]}
        for part, both in report.items()
        for name, value in both['a'].items()
    ]


def _print(report: Mapping[str, Any]) -> None:
    output.table(_rows_of(report), _COLUMNS)
    if rows := report.get('steps', {}).get('first_differing'):
        columns = ['configuration', *Differing._fields]
        for name in _NAMES:
            own = [row for row in rows if row['configuration'] == name]
            if own:
                output.table(
                    own[:_PRINTED],
                    columns,
                    title=f'The first that differ: {name}',
                )
