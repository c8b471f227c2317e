"""Scopes and reasons where there are a great many aggregates."""

import random
import uuid

import pytest

from scheduler_service import errors
from scheduler_service.columns import Overlay
from scheduler_service.model import documents
from scheduler_service.pipeline import HostPipeline
from scheduler_service.request_filters import scope_of
from scheduler_service.settings import Settings
from tests.support.plugins import table

MANY = 2000
SETTINGS = Settings(
    enable_isolated_aggregate_filtering=True,
    limit_tenants_to_placement_aggregate=True,
    query_placement_for_availability_zone=True,
)


def number(at: int) -> str:
    return str(uuid.UUID(int=at))


@pytest.fixture(scope='module')
def hosts():
    """A host in a reserved aggregate, one in a project's, one in a zone."""
    aggregates = [
        {
            'id': at,
            'uuid': number(at),
            'metadata': {f'trait:CUSTOM_{at % 40}': 'required'},
            'hosts': ['reserved'] if at == 7 else [],
        }
        for at in range(1, MANY + 1)
    ]
    aggregates += [
        {'id': MANY + 1, 'uuid': number(MANY + 1), 'hosts': ['owned'],
         'metadata': {'filter_tenant_id_1': 'p'}},
        {'id': MANY + 2, 'uuid': number(MANY + 2), 'hosts': ['zoned'],
         'metadata': {'availability_zone': 'z'}},
    ]  # fmt: skip
    return table(
        {
            'hosts': [
                {'host': name} for name in ('reserved', 'owned', 'zoned')
            ],
            'aggregates': aggregates,
        }
    )


def ask(**request):
    return documents.request(request).with_ids()


def masks_of(hosts, **request):
    """Return the masks of the aggregates for two requests that ask it."""
    filtering = HostPipeline([], [], SETTINGS)._filtering
    return [
        verdict
        for _ in range(2)
        for one, _, verdict, _ in filtering.steps(hosts, ask(**request))
        if one.name == 'aggregates'
    ]


def test_the_mask_is_kept_when_there_are_many_isolated_aggregates(hosts):
    first, second = masks_of(hosts)
    assert first.tolist() == [False, True, True]
    assert first is second


def test_a_required_trait_opens_its_aggregates_alone(hosts):
    specs = {'trait:CUSTOM_7': 'required', 'trait:OTHER': 'required'}
    request = ask(flavor={'extra_specs': specs})
    scope = scope_of(request, hosts.topology.aggregates, SETTINGS)
    opened = {number(at) for at in range(1, MANY + 1) if at % 40 == 7}
    everything = {number(at) for at in range(1, MANY + 1)}
    assert scope.forbidden_aggregates == everything - opened


def test_the_reason_names_the_aggregate_and_not_thousands(hosts):
    request = ask(force_hosts=[], flavor={'vcpus': 1})
    pipeline = HostPipeline([], [], SETTINGS)
    results = pipeline.filter_results(hosts, request)
    [mask] = [r.mask for r in results if r.filter.name == 'aggregates']
    assert mask.tolist() == [False, True, True]
    with pytest.raises(errors.NoValidHost) as refused:
        pipeline.select(
            Overlay(hosts),
            ask(project_id='p', availability_zone='z', lenient=True),
            random.Random(1),
        )  # fmt: skip
    text = str(refused.value)
    assert f'aggregate-7 ({number(7)})' in text
    assert len(text) < 400
    assert refused.value.to_dict()['facts']['query'].endswith(
        f'({MANY - 20:,} more)&required=!COMPUTE_STATUS_DISABLED'
    )
