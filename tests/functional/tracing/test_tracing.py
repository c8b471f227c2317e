"""Spans of requests, at a collector."""

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from scheduler_service import errors
from tests.support import extenders
from tests.support.collector import Collector, collector
from tests.support.documents import CONTEXT, SMALL
from tests.support.processes import on_topic
from tests.support.servers import free_port
from tests.support.services import BUSES, hosts_of
from tests.support.waiting import LIMIT_S

CALLER = '0af7651916cd43dd8448eb211c80319c'
PARENT = 'b7ad6b7169203331'
SAMPLED = {'traceparent': f'00-{CALLER}-{PARENT}-01'}
UNSAMPLED = {'traceparent': f'00-{CALLER}-{PARENT}-00'}
STAGES = ('wait', 'filter', 'weigh', 'claim', 'reply')


@pytest.fixture
def spans() -> Iterator[Collector]:
    with collector() as found:
        yield found


@pytest.fixture
def traced(make_service, spans):
    """Give a function that starts a service that sends spans."""

    def make(*args, ratio=0.0, **more):
        return make_service(
            *args,
            tracing__enabled=True,
            tracing__endpoint=spans.endpoint,
            tracing__sample_ratio=ratio,
            **more,
        )

    return make


@pytest.mark.parametrize('bus', BUSES)
def test_a_request_has_a_span_for_each_stage(traced, spans, bus):
    service = traced(bus)
    service.client.select_destinations(
        {**CONTEXT, **SAMPLED}, {'flavor': SMALL, 'num_instances': 2}
    )
    found = spans.wait_for('select_destinations', *STAGES)
    whole = found['select_destinations']
    assert (whole.trace, whole.parent) == (CALLER, PARENT)
    assert whole.attributes['scheduler.outcome'] == 'answered'
    stages = [found[name] for name in STAGES]
    for stage in stages:
        assert (stage.trace, stage.parent) == (CALLER, whole.id)
        assert stage.start <= stage.end
    for before, after in itertools.pairwise(stages):
        assert before.start <= after.start
    assert found['filter'].attributes['scheduler.hosts'] == 4
    assert found['filter'].attributes['scheduler.passed'] == 4
    assert found['weigh'].attributes['scheduler.instances'] == 2
    assert found['claim'].attributes['scheduler.instances'] == 2
    assert found['claim'].attributes['scheduler.requests'] == 1


def test_a_refusal_says_which_filter_left_how_many(traced, spans):
    service = traced()
    with pytest.raises(errors.NoValidHost):
        service.client.select_destinations(
            {**CONTEXT, **SAMPLED}, {'flavor': {**SMALL, 'memory_mb': 10**6}}
        )
    found = spans.wait_for('select_destinations', 'filter', 'reply')
    outcome = found['select_destinations'].attributes['scheduler.outcome']
    assert outcome == 'NoValidHost'
    assert found['filter'].attributes['scheduler.passed'] == 0
    filters = found['filter'].attributes['scheduler.filters'].values
    assert [one.string_value for one in filters][-1] == 'RamFilter: 0'
    assert spans.named('claim') == []


def test_what_the_caller_does_not_sample_is_not_traced(traced, spans):
    service = traced(ratio=1.0)
    for context in ({**CONTEXT, **UNSAMPLED}, CONTEXT):
        service.client.ping(context)
    spans.wait_for('ping')
    (only,) = spans.named('ping')
    assert only.trace != CALLER
    assert only.parent == ''


@pytest.mark.parametrize(
    'context', [{'traceparent': 7}, {'traceparent': '00-x-y-z'}]
)
def test_a_context_that_is_none_begins_a_trace(traced, spans, context):
    service = traced(ratio=1.0)
    service.client.ping({**CONTEXT, **context})
    assert spans.wait_for('ping')['ping'].parent == ''


def test_extenders_and_the_receivers_of_casts_get_the_context(
    traced, spans, tmp_path
):
    with extenders.extender() as server:
        policy = tmp_path / 'policy.json'
        entry = extenders.entry(server, prioritizeVerb='prioritize', weight=1)
        policy.write_text(
            json.dumps(
                {
                    'apiVersion': 'kubescheduler.config.k8s.io/v1',
                    'kind': 'KubeSchedulerConfiguration',
                    'extenders': [entry],
                }
            )
        )
        service = traced(extender__policy_file=str(policy))
        service.client.select_destinations(
            {**CONTEXT, **SAMPLED}, {'flavor': SMALL}
        )
        whole = spans.wait_for('select_destinations')['select_destinations']
        wanted = f'00-{CALLER}-{whole.id}-01'
        assert server.verbs() == ['filter', 'prioritize']
        for headers in server.headers:
            assert headers['traceparent'] == wanted


def test_an_http_request_is_traced(make_service, serve_http, spans):
    http = serve_http(
        tracing__enabled=True,
        tracing__endpoint=spans.endpoint,
        tracing__sample_ratio=0.0,
    )
    http.send('GET', '/readyz')
    http.send('GET', '/healthcheck', None, **SAMPLED)
    http.send('GET', '/v1/decisions', None, **SAMPLED)
    found = spans.wait_for('/v1/decisions', '/healthcheck')
    assert found['/v1/decisions'].parent == PARENT
    assert found['/v1/decisions'].attributes['scheduler.outcome'] == '200'
    assert spans.named('/readyz') == []


def test_nothing_is_imported_where_tracing_is_off(tmp_path):
    done = subprocess.run(
        [sys.executable, '-c', _TOUR, str(tmp_path)],
        capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == '[]'


# A whole daemon and requests, in one process.
_TOUR = """
import sys
from scheduler_service.cmd import quickstart
assert quickstart.main(['--folder', sys.argv[1]]) == 0
print([name for name in sys.modules if 'opentelemetry' in name])
"""


@pytest.mark.broker
def test_a_collector_that_is_not_there_holds_nothing_up(
    launch, connect, ready_sqlite, rabbitmq
):
    topic = 'no-collector'
    daemon = launch(
        ready_sqlite,
        rabbitmq[1],
        f'{on_topic(topic)}[tracing]\nenabled = true\nsample_ratio = 1.0\n'
        f'endpoint = http://127.0.0.1:{free_port()}\n',
    )
    daemon.wait_for('Ready')
    client = connect(rabbitmq[1], topic)
    for _ in range(3):
        assert hosts_of(client.select_destinations(CONTEXT, {'flavor': SMALL}))
    assert daemon.end() == 0
    assert daemon.count('Traceback') == 0
