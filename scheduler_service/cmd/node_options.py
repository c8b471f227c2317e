"""How nodes of a cluster become hosts, as the options say."""

from __future__ import annotations

from typing import Any

from scheduler_service.extender.nodes import NodeReader


def node_reader(conf: Any) -> NodeReader:
    """Return what makes hosts of nodes.

    :raises ConfigurationError: an option cannot be used
    """
    group = conf.kubernetes
    return NodeReader(
        conf.extender.domain, group.labels, group.disabling_taints
    )
