"""The set for packing, and the benchmark that compares it with others."""

import random
import xml.etree.ElementTree as ET

import pytest

from benchmarks import packing
from benchmarks.packing import Size
from scheduler_service import conf as options
from scheduler_service.cmd import adapters
from scheduler_service.conf import option_names

LARGE = Size(16_000, 65_536, 0)
SMALL = Size(4_000, 16_384, 0)
WITH_DEVICES = Size(16_000, 65_536, 4_000)
HOSTS = [SMALL] * 12 + [LARGE] * 8 + [WITH_DEVICES] * 6
PODS = [Size(500, 2_048, 0), Size(1_500, 4_096, 0)] * 40
FOR_DEVICES = [Size(2_000, 2_048, 1_000), Size(1_000, 1_024, 500)] * 16


def used(name, pods, hosts=HOSTS):
    """Return the hosts in use, and how much of their devices is."""
    table, refused = packing.place(
        packing.make_pipeline(name), hosts, pods, random.Random(1)
    )
    assert not refused
    numbers = (table.number('num_instances') > 0).nonzero()[0].tolist()
    return [hosts[at] for at in numbers], table.resources['VGPU'].used


def test_set_names_only_options_that_there_are():
    conf = adapters.new_config()
    options.parse(
        conf,
        [],
        default_config_files=[str(packing.PACKING)],
        default_config_dirs=[],
    )
    assert option_names.unknown(conf) == []


def test_few_large_hosts_are_used_and_those_with_devices_stay_free():
    hosts, _ = used('packing.conf', PODS)
    assert {*hosts} == {LARGE}
    # One of three hosts is drawn.
    assert 5 <= len(hosts) <= 5 + 2
    assert packing.bound(HOSTS, PODS) == 5
    assert len(used('negative multipliers', PODS)[0]) > 7
    assert len(used('defaults', PODS)[0]) == 26 - 12


def test_devices_are_taken_where_the_fewest_are_left():
    _, devices = used('packing.conf', FOR_DEVICES)
    assert sorted(devices.tolist(), reverse=True)[:7] == [4_000] * 6 + [0]
    _, devices = used('packing.conf', FOR_DEVICES[:5])
    assert (devices > 0).sum() <= 1 + 2
    _, devices = used('defaults', FOR_DEVICES[:5])
    assert (devices > 0).sum() == 5


def test_pods_arrive_until_all_devices_are_asked_for():
    rng = random.Random(1)
    pods = packing.arrivals(FOR_DEVICES[:4] + PODS, 20_000, rng)
    asked = [pod.devices for pod in pods]
    assert sum(asked) >= 20_000 > sum(asked[:-1])
    assert {*pods} <= {*FOR_DEVICES, *PODS}


@pytest.fixture
def trace(tmp_path):
    rows = [f'n{at},{h.cores},{h.memory_mb},{h.devices // 1000}'
            for at, h in enumerate(HOSTS)]  # fmt: skip
    lines = ['sn,cpu_milli,memory_mib,gpu', *rows]
    (tmp_path / 'nodes.csv').write_text('\n'.join(lines))
    rows = [f'{p.cores},{p.memory_mb},{1 if p.devices else 0},{p.devices}'
            for p in PODS + FOR_DEVICES]  # fmt: skip
    lines = ['cpu_milli,memory_mib,num_gpu,gpu_milli', *rows]
    (tmp_path / 'pods.csv').write_text('\n'.join(lines))
    return tmp_path


def test_figures_of_every_set_and_their_picture(trace):
    hosts, pods = packing.read(trace)
    assert (hosts, pods) == (HOSTS, PODS + FOR_DEVICES)
    told = packing.figures(hosts, pods, 1)
    for case in packing.CASES:
        assert {*told[case]} - {'bound'} == {*packing.SETS}
    assert told['mixed']['packing.conf']['mean'] >= told['mixed']['bound']
    root = ET.fromstring(packing.picture(told))
    texts = [each.text for each in root.iter() if each.text]
    assert texts.count('packing.conf') == 3


def test_without_a_trace_nothing_is_measured(monkeypatch, capsys, tmp_path):
    folder = tmp_path / 'none'
    monkeypatch.setattr('sys.argv', ['packing', '--trace', str(folder)])
    packing.main()
    assert (
        capsys.readouterr().out == f'Skipped: there is no trace in {folder}\n'
    )
