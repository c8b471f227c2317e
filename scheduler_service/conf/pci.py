"""Options of the [pci] group: aliases of PCI devices."""

from __future__ import annotations

from oslo_config import cfg

GROUP = 'pci'

OPTS = [
    cfg.MultiStrOpt(
        'alias',
        default=[],
        help="""
An alias of PCI devices for the extra spec ``pci_passthrough:alias``.

The option may be set several times, each time to a JSON object.

Possible values:

* ``{"name": "a1", "vendor_id": "8086", "product_id": "154d",
  "device_type": "type-PCI", "numa_policy": "required"}``

The name and both ids are required. Further keys are ``live_migratable``, and
``resource_class`` and ``traits``, which only the compute service asks for.
Several aliases of one name, with one device type and one policy, are
alternatives.
""",
    ),
]
