"""Options of the [pci] group: what the names of devices stand for."""

from __future__ import annotations

from typing import Any

from oslo_config import cfg

GROUP = 'pci'

OPTS = [
    cfg.MultiStrOpt(
        'alias',
        default=[],
        help="""
What a name in the extra spec ``pci_passthrough:alias`` stands for.

May be given several times, each a JSON object.

Possible values:

* ``{"name": "a1", "vendor_id": "8086", "product_id": "154d",
  "device_type": "type-PCI"}``; all but the name may be absent
""",
    ),
]


def register_opts(conf: Any) -> None:
    """Register this module's options on *conf*."""
    conf.register_opts(OPTS, group=GROUP)
