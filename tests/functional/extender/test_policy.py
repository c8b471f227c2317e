"""Policy files of kube-scheduler."""

from __future__ import annotations

import pytest

from scheduler_service import errors


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
         'extenders[0].httpTimeout: expected a int'),
    ],
)  # fmt: skip
def test_start_is_refused_when_a_policy_cannot_be_followed(
    serve_with, policy, text
):
    with pytest.raises(errors.ConfigurationError) as caught:
        serve_with(policy=policy)
    assert text in str(caught.value)
