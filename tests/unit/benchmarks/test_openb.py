"""Hosts and requests of the openb trace, from a small one."""

import pathlib

import pytest

from benchmarks import openb
from scheduler_service.model import documents

NODES = """\
sn,cpu_milli,memory_mib,gpu,model
n0,32000,262144,0,
n1,96000,393216,8,G2
n2,16000,122880,2,P100
"""
PODS = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,\
creation_time,deletion_time,scheduled_time
late,12000,16384,1,1000,,LS,Running,9,10,9
early,6500,12288,2,460,G2,BE,Running,1,10,1
"""


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / 'nodes.csv').write_text(NODES)
    (tmp_path / 'pods.csv').write_text(PODS)
    return tmp_path


def test_nodes_are_repeated_up_to_the_number_of_hosts(folder) -> None:
    hosts = documents.inventory(openb.inventory(5, folder)).hosts
    assert [host.vcpus for host in hosts] == [32, 96, 16, 32, 96]
    assert len({host.host for host in hosts}) == 5
    assert hosts[1].resources[openb.RESOURCE].total == 8000
    assert hosts[1].traits == ['CUSTOM_GPU_G2']
    assert not hosts[0].resources


def test_pods_are_requests_in_the_order_of_their_creation(folder) -> None:
    early, late = (
        documents.request(request.document)
        for request in openb.requests(folder)
    )
    assert early.resources == {
        'VCPU': 7,
        'MEMORY_MB': 12288,
        openb.RESOURCE: 920,
    }
    assert early.forbidden_traits == {'CUSTOM_GPU_P100'}
    assert late.resources[openb.RESOURCE] == 1000
    assert not late.forbidden_traits
