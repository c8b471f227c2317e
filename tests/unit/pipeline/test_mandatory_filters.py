"""What every request is filtered by, whatever filters are configured."""

import pytest

from scheduler_service.model import documents
from scheduler_service.pipeline.mandatory_filters import (
    ForceHosts,
    IgnoreHosts,
    RequestedDestination,
    Traits,
)
from scheduler_service.settings import Settings
from scheduler_service.testing import table
from tests.support.plugins import inventory, passing


@pytest.mark.parametrize(
    ('destination', 'hosts'),
    [
        ({'cell': 'x'}, ['a']),
        ({'cell': 'x', 'allow_cross_cell_move': True}, ['a', 'b', 'c']),
        ({'allow_cross_cell_move': False}, ['a', 'b', 'c']),
        ({'host': 'b', 'cell': 'x'}, ['b']),
    ],
)
def test_a_cell_is_insisted_on_unless_a_move_may_leave_it(destination, hosts):
    document = inventory(a={'cell_uuid': 'x'}, b={'cell_uuid': 'y'}, c={})
    request = {'requested_destination': destination}
    assert passing(RequestedDestination(), document, request) == hosts


NODES = {
    'hosts': [
        {'host': 'a', 'hypervisor_hostname': 'a1'},
        {'host': 'a', 'hypervisor_hostname': 'a2'},
        {'host': 'b', 'hypervisor_hostname': 'b1'},
    ]
}


def nodes_left(host_filter, request):
    """Return the nodes that a filter leaves of those above."""
    hosts = table(NODES)
    parsed = documents.request(request).with_ids()
    mask = host_filter.mask(hosts, parsed, Settings())
    assert mask is not None
    return [hosts.node_at(row) for row in mask.nonzero()[0]]


@pytest.mark.parametrize(
    ('request_', 'nodes'),
    [
        ({'ignore_hosts': ['A']}, ['b1']),
        ({'ignore_nodes': [['a', 'a2']]}, ['a1', 'b1']),
        ({'ignore_nodes': [['a', 'A2'], ['b', 'a1']]}, ['a1', 'a2', 'b1']),
        ({'ignore_hosts': ['b'], 'ignore_nodes': [['a', 'a1']]}, ['a2']),
        ({'ignore_hosts': ['c']}, ['a1', 'a2', 'b1']),
    ],
)
def test_hosts_are_ignored_in_any_case_and_nodes_by_exact_name(
    request_, nodes
):
    assert nodes_left(IgnoreHosts(), request_) == nodes


@pytest.mark.parametrize(
    ('request_', 'nodes'),
    [
        ({'force_hosts': ['A']}, ['a1', 'a2']),
        ({'force_nodes': ['a2', 'b1']}, ['a2', 'b1']),
        ({'force_nodes': ['A2']}, []),
        ({'force_hosts': ['a'], 'force_nodes': ['a2', 'b1']}, ['a2']),
        ({'force_hosts': ['c']}, []),
    ],
)
def test_forced_hosts_and_nodes_have_both_to_be_met(request_, nodes):
    assert nodes_left(ForceHosts(), request_) == nodes


TPM = ['COMPUTE_SECURITY_TPM_2_0', 'COMPUTE_SECURITY_TPM_TIS']
OF_HOST = {'hw:tpm_secret_security': 'host'}
SECRETS = 'COMPUTE_SECURITY_TPM_SECRET_SECURITY_'


@pytest.mark.parametrize(
    ('specs', 'reported', 'hosts'),
    [
        # No compute service reports how it keeps secrets: all are as before.
        ({}, {}, ['a', 'b', 'c']),
        ({}, {'a': 'USER', 'b': 'HOST'}, ['a']),
        ({}, {'b': 'DEPLOYMENT'}, []),
        (OF_HOST, {'a': 'USER', 'b': 'HOST'}, ['b']),
        (OF_HOST, {}, []),
        ({'hw:tpm_version': ''}, {'a': 'USER'}, ['a', 'b', 'c']),
    ],
)
def test_secrets_of_a_tpm_are_the_users_once_hosts_report_them(
    specs, reported, hosts
):
    document = inventory(
        **{
            host: {'traits': [*TPM, SECRETS + reported[host]]}
            if host in reported
            else {'traits': TPM}
            for host in 'abc'
        }
    )
    specs = {'hw:tpm_version': '2.0', **specs}
    request = {'flavor': {'extra_specs': specs}}
    assert passing(Traits(), document, request) == hosts
