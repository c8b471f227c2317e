"""The resource classes of Kubernetes' extended resources.

Stateless.
"""

from __future__ import annotations

import re

from scheduler_service.model.inventory import STANDARD_CLASSES

_CLASS = re.compile(r'[A-Z0-9_]{1,255}')
# Kubernetes' own resources have names without a domain, or with a domain of
# its own; resources of quotas are not those of nodes.
_OWN_DOMAIN = 'kubernetes.io/'
_QUOTA = 'requests.'
_LONGEST_CLASS = 255


def class_of(name: str, domain: str) -> str | None:
    """Return the resource class of a resource; None: it is not extended.

    ``DOMAIN/CLASS`` is the class itself, except for a standard class, for
    which Kubernetes has names of its own. Any other ``example.com/fpga`` is
    ``CUSTOM_EXAMPLE_COM_FPGA``.

    :param domain: of the resources that are ours
    """
    prefix, slash, short = name.partition('/')
    if not slash or _OWN_DOMAIN in name or name.startswith(_QUOTA):
        return None
    if (
        prefix == domain
        and short not in STANDARD_CLASSES
        and _CLASS.fullmatch(short)
    ):
        return short
    made = re.sub(r'[^A-Z0-9]', '_', name.upper())
    return f'CUSTOM_{made}'[:_LONGEST_CLASS]
