"""The nodes of the tests with a cluster, and pods for some of them."""

from __future__ import annotations

import json
from typing import Any

from tests.support import kube

# More than an API server lists in one page, and than a kube-scheduler scores.
NODES = 600
LARGER = range(5)
# These have an FPGA, those a label that becomes a trait.
WITH_FPGA = range(10, 18)
WITH_SSD = range(0, NODES, 10)
FPGA = 'example.com/fpga'
SSD = 'example.com/ssd'
SSD_NODES = {f'node-{number}' for number in WITH_SSD}
FPGA_NODES = {f'node-{number}' for number in WITH_FPGA}


def new_node(number: int) -> dict[str, Any]:
    """Return a node of the cluster by its number."""
    size = {}
    if number in LARGER:
        size['memory'] = '128Gi'
    if number in WITH_FPGA:
        size[FPGA] = '1'
    labels = {'topology.kubernetes.io/zone': f'zone-{number % 3}'}
    if number in WITH_SSD:
        labels[SSD] = 'true'
    return kube.node(f'node-{number}', size, labels)


def asking_for_ssd(name: str, **more: Any) -> dict[str, Any]:
    """Return a pod that requires a trait in its annotation."""
    asked = {'flavor': {'extra_specs': {'trait:CUSTOM_SSD': 'required'}}}
    text = json.dumps(asked)
    annotations = {'scheduler-service.local/request': text}
    return kube.pod(name, annotations=annotations, **more)
