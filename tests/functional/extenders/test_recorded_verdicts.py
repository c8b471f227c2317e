"""What a real kube-scheduler made of extenders' replies, and what we do."""

import contextlib
import copy
import json
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from scheduler_service import errors
from scheduler_service.extenders import policy_file
from scheduler_service.extenders.chain import Chain, ExtenderArgs
from tests.support import extenders
from tests.support.extenders import Reply
from tests.support.paths import recorded


def expected(case: dict[str, Any]) -> dict[str, Any]:
    both = case['kube_scheduler']
    found: dict[str, Any] = both.get('1.36') or both['1.25']
    return found


def begins_with_preemption(case: dict[str, Any]) -> bool:
    """Whether a recording is of a verb that is never called."""
    calls = expected(case).get('calls') or [(0, '', ())]
    return bool(calls[0][1] == 'preempt')


VERDICTS = [
    case
    for case in recorded('verdicts.json')
    if not begins_with_preemption(case)
]
API = 'kubescheduler.config.k8s.io/v1'


# Where we are stricter, and say so: a node that was not sent is refused in
# both forms, and an extender without an address at the start.
STRICTER = {'nodes-12-filter-unknown-node', 'cfg-07-no-urlprefix'}


def node(name: str) -> dict[str, Any]:
    return {'metadata': {'name': name}, 'status': {}, 'spec': {}}


class Script:
    """The replies of a case, each verb's in order, the last again."""

    def __init__(self, case: dict[str, Any], index: int) -> None:
        self._name = case['case']
        self._mine = [
            one for one in case.get('replies', ()) if one['extender'] == index
        ]
        self.others: dict[str, str] = {}

    def __call__(self, path: str, asked: Any) -> Reply:
        listed = [one for one in self._mine if one['verb'] == path]
        if not listed:
            # Later attempts of the recording are not played again.
            return extenders.pass_all(path, asked)
        told = listed[0]
        if len(listed) > 1:
            self._mine.remove(told)
        headers = dict(told.get('headers', {}))
        for name, value in headers.items():
            for old, new in self.others.items():
                headers[name] = value = value.replace(old, new)
        if headers.get('Content-Encoding') == 'gzip':
            return extenders.zipped(
                {'NodeNames': asked['NodeNames'], 'Nodes': asked['Nodes']}
            )
        raw = told.get('raw')
        if 'trailing-garbage' in self._name:
            # The recording is cut short.
            return Reply(raw=extenders.pass_all(path, asked).body + b' }x')
        return Reply(
            document=_whole(told.get('json'), asked),
            status=told['status'],
            raw=None if raw is None else raw.encode(),
            headers=headers,
            delay=told.get('delay_s', 0.0),
        )


def _whole(document: Any, asked: Any) -> Any:
    """Put the nodes as they were sent where the recording has dots."""
    sent = ((asked.get('Nodes') or {}).get('items')) or []
    by_name = {one['metadata']['name']: one for one in sent}
    if isinstance(document, dict) and '...' in document:
        name = document['metadata']['name']
        return by_name.get(name, node(name))
    if isinstance(document, dict):
        return {key: _whole(value, asked) for key, value in document.items()}
    if isinstance(document, list):
        return [_whole(one, asked) for one in document]
    return document


@pytest.fixture(scope='module')
def certs(tmp_path_factory):
    return extenders.certificates(tmp_path_factory.mktemp('certs'))


def with_files(case: dict[str, Any], certs: Any) -> list[dict[str, Any]]:
    """Return the configuration with certificates that are here."""
    listed = copy.deepcopy(case['extenders'])
    for one in listed:
        tls = one.get('tlsConfig') or {}
        if 'caFile' in tls:
            tls['caFile'] = str(certs.ca)
        if 'caData' in tls:
            import base64

            tls['caData'] = base64.b64encode(certs.ca.read_bytes()).decode()
    return listed


def read(listed: list[dict[str, Any]]) -> policy_file.PolicyFile:
    document = {
        'apiVersion': API,
        'kind': 'KubeSchedulerConfiguration',
        'extenders': listed,
    }
    return policy_file.read(json.dumps(document).encode(), 'policy')


def play(case: Any, told: Any, chain: Chain, made: list[Any]) -> None:
    """Run one attempt as a scheduler does, and compare."""
    calls = told['calls']
    wanted = case.get('pod_asks_for', '')
    resources = frozenset(['example.com/fpga'] if 'fpga' in wanted else [])
    names = sorted({'node-0', 'node-1'})
    filters = [call for call in calls if call[1] == 'filter']
    if filters:
        names = sorted(filters[0][2])
    if not calls and told['outcome']['a'].get('reason') == 'Unschedulable':
        # No node passed the scheduler's own filters: nothing is asked.
        names = []
    asked = ExtenderArgs(
        {'metadata': {'name': 'a', 'namespace': 'default', 'uid': 'u'}},
        resources,
        lambda some: [node(one) for one in some],
    )
    outcome = told['outcome'].get('a') or told['outcome'].get('high') or {}
    bound = outcome.get('bound_to')
    try:
        chosen = attempt(chain, asked, names)
    except errors.ExtenderFailed as error:
        failed = error.facts['verb']
    else:
        failed = None
    if failed is not None:
        # Since 1.30 the default binder helps an ignorable one out.
        assert bound is None or failed == 'bind' or case['case'] in STRICTER
        return
    if bound is None:
        assert (
            chosen is None
            or outcome == {}
            or ('bind' in [call[1] for call in calls])
        ), chosen
    else:
        assert chosen in case.get('one_of', [bound, *names])
    check_calls(calls, made)


def attempt(chain: Chain, asked: ExtenderArgs, names: list[str]) -> str | None:
    if not names:
        return None
    passed, _ = chain.filter(asked, names)
    if not passed:
        return None
    scores = dict.fromkeys(passed, 0.0)
    if len(passed) > 1:
        scores = chain.prioritize(asked, passed)
    most = max(scores.values())
    chosen = random.choice([n for n, s in scores.items() if s == most])
    chain.bind(asked, chosen)
    return chosen


def check_calls(calls: list[Any], made: list[Any]) -> None:
    """The same extenders were asked the same verbs about the same nodes."""
    first: dict[tuple[int, str], Any] = {}
    for index, verb, nodes in calls:
        if verb in ('filter', 'prioritize'):
            first.setdefault((index, verb), set(nodes))
    seen: dict[tuple[int, str], Any] = {}
    for index, one in enumerate(made):
        for verb, asked in one.calls:
            if verb in ('filter', 'prioritize'):
                names = asked['NodeNames'] or [
                    n['metadata']['name'] for n in asked['Nodes']['items']
                ]
                seen.setdefault((index, verb), set(names))
    asked_verbs = {key for key in first if key[1] == 'filter'}
    assert {key for key in seen if key[1] == 'filter'} == asked_verbs
    for key in asked_verbs:
        assert seen[key] == first[key]


@pytest.mark.parametrize('case', VERDICTS, ids=lambda case: case['case'])
def test_outcome_is_that_of_a_real_scheduler_when_recorded(case, certs):
    told = expected(case)
    listed = with_files(case, certs)
    if 'refused_at_start' in told or case['case'] == 'cfg-07-no-urlprefix':
        with pytest.raises(errors.ConfigurationError):
            read(listed)
        return
    with contextlib.ExitStack() as stack:
        scripts = [Script(case, index) for index in range(2)]
        made = []
        for index, script in enumerate(scripts):
            secure = index < len(listed) and listed[index].get(
                'urlPrefix', ''
            ).startswith('https')
            context = certs.server_context() if secure else None
            made.append(
                stack.enter_context(extenders.extender(script, context))
            )
        places = {18888: made[0], 18890: made[0], 18889: made[1]}
        for script in scripts:
            script.others = {
                f'127.0.0.1:{port}': f'127.0.0.1:{one.port}'
                for port, one in places.items()
            }
        for one in listed:
            for port, server in places.items():
                one['urlPrefix'] = one['urlPrefix'].replace(
                    f':{port}', f':{server.port}'
                )
        if case['case'] != 'x-20-connection-refused':
            policy = read(listed)
        else:
            listed[0]['urlPrefix'] = 'http://127.0.0.1:9/ext'
            policy = read(listed)
        pool = stack.enter_context(ThreadPoolExecutor(8))
        chain = Chain(policy.extenders, pool)
        stack.callback(chain.close)
        play(case, told, chain, made)
