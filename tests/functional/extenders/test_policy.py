"""Policy files of kube-scheduler."""

import pytest
import urllib3

from scheduler_service import errors
from scheduler_service.cmd.process import write_report
from tests.support import extenders
from tests.support.documents import CONTEXT
from tests.support.extenders import Reply
from tests.support.servers import free_port


def test_filters_and_weighers_are_replaced_when_a_policy_names_some(
    serve_with,
):
    service = serve_with(policy={
        'kind': 'Policy', 'apiVersion': 'v1',
        'predicates': [{'name': 'PodFitsResources'}],
        'priorities': [{'name': 'MostRequestedPriority', 'weight': 2}],
    })  # fmt: skip
    pipeline = service.daemon.scheduler._hosts.pipeline
    assert [one.name for one in pipeline.filters] == [
        'ComputeFilter', 'CoreFilter', 'RamFilter', 'DiskFilter',
    ]  # fmt: skip
    assert pipeline.settings.ram_weight_multiplier == -2.0
    assert service.select_hosts() == ['compute-1']


@pytest.mark.parametrize(
    ('policy', 'text'),
    [
        ({'kind': 'Policy', 'predicates': [{'name': 'NoDiskConflict'}]},
         'NoDiskConflict: no filter or weigher is equivalent'),
        ({'kind': 'Policy', 'priorities': [
            {'name': 'ImageLocalityPriority', 'weight': 1}]},
         'ImageLocalityPriority'),
        ({'kind': 'Policy', 'priorities': [{'name': 'EqualPriority'}]},
         'priorities[0].weight: expected a positive'),
        ({'kind': 'Other'}, 'kind: expected Policy'),
        ({'kind': 'Policy', 'extenders': [{'urlPrefix': 'ftp://x'}]},
         'extenders[0].urlPrefix'),
        ({'kind': 'Policy', 'extenders': [
            {'urlPrefix': 'http://x', 'httpTimeout': '5s'}]},
         'extenders[0].httpTimeout: expected nanoseconds'),
        ({'kind': 'Policy', 'predicates': [
            {'name': 'HostName', 'argument': {'a': 1}}]},
         'predicates[0]: HostName with an argument is not supported'),
    ],
)  # fmt: skip
def test_start_is_refused_when_a_policy_cannot_be_followed(
    serve_with, policy, text
):
    with pytest.raises(errors.ConfigurationError) as caught:
        serve_with(policy=policy)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    'answers',
    [extenders.pass_only('compute-1'), lambda *about: Reply(status=503)],
)
def test_credentials_of_an_extender_are_shown_to_nobody(
    answers, serve_with, tmp_path, caplog
):
    with extenders.extender(answers) as server:
        url = server.url.replace('//', '//operator-7:hunter2@')
        port = free_port()
        service = serve_with(
            {'urlPrefix': url, 'filterVerb': 'filter'}, http__bind_port=port
        )
        told = ''
        try:
            service.select_hosts()
        except errors.ExtenderFailed as error:
            told = f'{error} {error.facts}'
        told += str(service.client.ping(CONTEXT))
        metrics = urllib3.request('GET', f'http://127.0.0.1:{port}/metrics')
        told += metrics.data.decode()
        service.conf.set_override('log_dir', str(tmp_path), 'oslo_reports')
        write_report(service.daemon)
        (report,) = tmp_path.glob('*gurumeditation*')
        assert report.stat().st_mode & 0o777 == 0o600
        told += report.read_text() + caplog.text
    assert server.url in told
    assert 'hunter2' not in told
    assert 'operator-7' not in told
