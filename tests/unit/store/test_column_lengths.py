"""No text that a caller sends is longer than the column that it lands in."""

from __future__ import annotations

import uuid

import pytest
import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.model import (
    ENCODED_FIELDS,
    FLAG_FIELDS,
    Aggregate,
    Instance,
    Pool,
    ServerGroup,
    documents,
)
from scheduler_service.model.limits import TEXT_LENGTH
from scheduler_service.rpc.endpoints import credentials
from scheduler_service.rpc.server import stored_id
from scheduler_service.store import schema

UUID = str(uuid.UUID(int=7))
# Written by the service itself, from a fixed set or a hash.
OURS = {
    'compatible_versions.version': 'versions of our migrations',
    'counters.name': 'names of our counters',
    'changes.lineage': 'random digits of ours',
    **{f'hosts.{name}': 'one of two words' for name in FLAG_FIELDS},
    'instances.state': 'one of three words',
    'instances.kind': 'one of two words',
    'server_groups.policy': 'one of four words',
    'quarantine.method': 'cut to its length',
    'quarantine.message': 'cut to its length',
    'refused_reports.reason': 'cut to its length',
    'outcomes.instance_uuid': 'uuid of an instance of a request',
    'outcomes.kind': 'one of four words',
    'outcomes.document': 'a reply of ours',
    'releases.instance_uuid': 'a uuid, checked by the method',
    'releases.kind': 'one of two words and a digest',
    'leases.name': 'names of our leases',
    'leases.holder': 'cut to its length',
    'stage_records.stage': 'name of a stage',
    'stage_records.document': 'amounts of a request, or a plug-in writes it',
    'stage_records.instance_uuid': 'uuid of an instance of a request',
    'stage_records.undone_by': 'random digits of ours',
    'decisions.kind': 'name of a method',
    'events.event': 'one of a few words',
    'events.who': 'name of a daemon or of a user of the operating system',
    'events.detail': 'a text of ours, or a command line',
    'decisions.outcome': 'name of an error',
    'decisions.caller_request_id': 'left out where it is longer',
    'decisions.global_request_id': 'left out where it is longer',
    'decisions.user_id': 'cut to its length',
    'decisions.filter': 'name of a filter',
    'decisions.hosts': 'a line for each instance of one request',
    'decisions.instances': 'a line for each instance of one request',
    'shadow_verdicts.verdict': 'one of a few words',
    'shadow_verdicts.cause': 'name of a filter, a weigher or an error',
    'shadow_verdicts.example': 'id of a request, of its length',
    'daemons.id': 'uuid of ours',
    'daemons.name': 'cut to its length',
    'daemons.version': 'cut to its length',
    'daemons.fingerprint': 'digits of ours',
    'daemons.elsewhere': 'names that are cut to their length',
    'daemons.degraded': 'sentences of ours, a few',
    'decision_rates.daemon': 'cut to its length',
    'decision_rates.document': 'numbers of ours',
    'zone_usage.zone': 'cut to its length',
    'zone_usage.resource_class': 'stored for a host before',
    'configurations.daemon': 'cut to its length',
    'configurations.version': 'cut to its length',
    'configurations.fingerprint': 'digits of ours',
    'configurations.document': 'options of a file',
    # The size of a message is limited: max_message_kib and MEDIUMTEXT.
    'changes.touched': 'ids of what changed',
    'hosts.document': 'nested values of one message',
    'instances.document': 'nested values of one message',
    'instances.placement': 'a reply of ours',
    'moves.placement': 'a reply of ours',
    'decisions.document': 'a reply of ours',
}


def parser(kind):
    return lambda document: documents.parse(document, kind)


def host(**fields):
    return documents.host_report, {'host': 'a', **fields}


def aggregate(**fields):
    return parser(Aggregate), {'id': 1, **fields}


def instance(**fields):
    return parser(Instance), {'uuid': UUID, 'host': 'a', **fields}


def group(**fields):
    return parser(ServerGroup), {'uuid': UUID, **fields}


def pool(**fields):
    return parser(Pool), {'id': UUID, 'name': 'a', **fields}


def request(**fields):
    return documents.request, fields


def zone(**fields):
    return documents.zone, {'name': 'a', **fields}


def context(**fields):
    return credentials, {'user_id': 'a', **fields}


def host_field(name):
    return lambda text: host(**{name: text})


def resource(name):
    return host(resources={name: {'total': 1}})


# Column -> the document that brings a text there.
DOORS = {
    'hosts.uuid': lambda text: host(uuid=text),
    'hosts.host': lambda text: host(host=text),
    'hosts.node': lambda text: host(hypervisor_hostname=text),
    **{
        f'hosts.{name}': host_field(name)
        for name in ENCODED_FIELDS
        if isinstance(schema.hosts.c[name].type, sa.String)
    },
    'inventories.resource_class': resource,
    # Only what hosts offer is claimed, for instances and classes alike.
    'allocations.consumer_uuid': lambda text: request(instance_uuids=[text]),
    'allocations.resource_class': resource,
    'traits.name': lambda text: host(traits=[text]),
    'aggregates.uuid': lambda text: aggregate(uuid=text),
    'aggregates.name': lambda text: aggregate(name=text),
    'aggregate_hosts.host': lambda text: aggregate(hosts=[text]),
    'aggregate_metadata.key': lambda text: aggregate(metadata={text: ''}),
    'aggregate_metadata.value': lambda text: aggregate(metadata={'a': text}),
    'instances.uuid': lambda text: instance(uuid=text),
    'instances.host': lambda text: instance(host=text),
    'instances.node': lambda text: instance(hypervisor_hostname=text),
    'instances.project_id': lambda text: instance(project_id=text),
    'instances.request_id': lambda text: request(request_id=text),
    'moves.instance_uuid': lambda text: request(instance_uuids=[text]),
    'moves.host': lambda text: host(host=text),
    'moves.node': lambda text: host(hypervisor_hostname=text),
    'moves.request_id': lambda text: request(request_id=text),
    'releases.project_id': lambda text: context(project_id=text),
    'server_groups.uuid': lambda text: group(uuid=text),
    'server_groups.name': lambda text: group(name=text),
    'server_groups.project_id': lambda text: group(project_id=text),
    'server_group_members.group_uuid': lambda text: group(uuid=text),
    'server_group_members.instance_uuid': lambda text: group(members=[text]),
    'pools.id': lambda text: pool(id=text),
    'pools.name': lambda text: pool(name=text),
    'pools.description': lambda text: pool(description=text),
    'pool_attributes.pool_id': lambda text: pool(id=text),
    'pool_attributes.key': lambda text: pool(attributes={text: ''}),
    'pool_attributes.value': lambda text: pool(attributes={'a': text}),
    'zones.id': lambda text: zone(id=text),
    'zones.name': lambda text: zone(name=text),
    'zones.pool_id': lambda text: pool(id=text),
    'zones.project_id': lambda text: zone(project_id=text),
    'zones.request_id': lambda text: zone(request_id=text),
    'heartbeats.host': lambda text: host(host=text),
    # A name that is refused is not recorded.
    'refused_reports.host': lambda text: host(host=text),
    'decisions.request_id': lambda text: request(request_id=text),
    'decisions.project_id': lambda text: request(project_id=text),
}
# Fields of requests that land in the same column as those of reports.
MORE = {
    'instances.project_id': lambda text: request(project_id=text),
    'decisions.request_id': lambda text: zone(request_id=text),
}
CHECKED = {'quarantine.message_id'}
# The id of a message as it is stored, and the index of an entry.
KEYS = {
    'instances.idempotency_key',
    'moves.idempotency_key',
    'outcomes.idempotency_key',
}
COLUMNS = {
    f'{table.name}.{column.name}': column.type.length or TEXT_LENGTH
    for table in schema.metadata.tables.values()
    for column in table.columns
    if isinstance(column.type, sa.String)
}


def test_every_column_of_text_is_known():
    assert set(COLUMNS) == {*OURS, *DOORS, *CHECKED, *KEYS}


@pytest.mark.parametrize(
    ('column', 'document'),
    [
        *(pytest.param(*one, id=one[0]) for one in DOORS.items()),
        *(pytest.param(*one, id=f'{one[0]} again') for one in MORE.items()),
    ],
)
def test_a_text_is_refused_when_it_is_longer_than_its_column(column, document):
    length = COLUMNS[column]
    # The longest text that fits: a uuid, or capitals, as resource classes.
    fitting = UUID if length == len(UUID) else 'A' * length
    parse, longest = document(fitting)
    parse(longest)
    parse, longer = document(fitting + fitting[-1])
    with pytest.raises((errors.InvalidRequest, errors.InvalidInventory)) as e:
        parse(longer)
    assert e.value.facts['at']


@pytest.mark.parametrize('end', ['\n', ' '])
def test_a_uuid_is_refused_when_something_follows_it(end):
    with pytest.raises(errors.InvalidRequest):
        documents.request({'instance_uuids': [UUID + end]})


@pytest.mark.parametrize('sent', [UUID, 'x' * 5000, 'a\0', None])
def test_the_id_of_a_message_fits_its_column(sent):
    stored = stored_id(sent)
    assert len(stored) <= COLUMNS['quarantine.message_id']
    assert '\0' not in stored
    assert stored_id(UUID) == UUID
    longest = f'{stored_id("x" * 5000)}/999'
    assert all(len(longest) <= COLUMNS[column] for column in KEYS)
