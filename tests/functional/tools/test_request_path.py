"""``tools.request_path`` prints what a request executes, and totals."""

import contextlib

import pytest

from tests.support import servers
from tools import request_path


def run(capsys, *argv):
    """Run the tool; return its output, and name -> counts of its totals."""
    request_path.main(argv)
    text = capsys.readouterr().out
    lines = [line.rsplit(maxsplit=4) for line in text.splitlines()[-30:]]
    head = lines.index(['functions', 'files', 'functions', 'files'])
    *totals, classes = lines[head + 1 :]
    assert classes[0] == 'classes'
    return text, {name: [*map(int, counts)] for name, *counts in totals}


def functions_of(thread, text):
    """Return (file, function) of the lines of one thread."""
    section = text.partition(f'{thread}:\n')[2].partition('\n\n')[0]
    return [tuple(line.split()) for line in section.splitlines()]


def test_it_prints_functions_and_totals(capsys):
    text, totals = run(capsys, '--embedded', '--verb', 'extender')
    functions = functions_of('http', text)
    assert ('kube/evaluator.py', 'PodEvaluator.filter') in functions
    assert ' kube.evaluator:PodFilterResult ' in text
    assert totals['http'][:2] == [
        len(functions),
        len({path for path, _ in functions}),
    ]
    everything, files, own, own_files = totals.pop('all threads')
    assert everything >= own > 50
    assert files >= own_files > 10
    assert everything <= sum(counts[0] for counts in totals.values())
    # What works from time to time is left out.
    assert {'daemon-register', 'host-state-writer'} & {*totals} == set()


@pytest.mark.broker
@pytest.mark.db
def test_it_runs_a_daemon_on_real_servers(
    capsys, monkeypatch, rabbitmq, postgresql
):
    monkeypatch.setattr(request_path, '_IDLE_S', 1.0)
    # It starts servers of its own, which are here already.
    bus = servers.new_vhost(*rabbitmq)
    for name, found in (
        ('rabbitmq', (rabbitmq[0], bus)),
        ('postgresql', postgresql),
    ):
        monkeypatch.setattr(
            request_path.servers, name,
            lambda found=found: contextlib.nullcontext(found),
        )  # fmt: skip
    text, totals = run(capsys)
    assert {'bus', 'engine', 'decision-recorder'} <= {*totals}
    assert ' model.request:Request ' in text
    paths = {path for path, _ in functions_of('engine', text)}
    assert {'pipeline/hosts.py', 'bus/consumer.py'} <= paths
    assert 'store/claims/pg_claims.py' in paths
