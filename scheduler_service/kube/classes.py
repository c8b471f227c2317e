"""Resource classes of the extended resources of nodes and pods. Stateless."""

from __future__ import annotations

import functools
import re

from scheduler_service.model import STANDARD_CLASSES

_CLASS = re.compile(r'[A-Z0-9_]{1,255}')
# Kubernetes' own resources have names without a domain, or with one of its
# domains; those of quotas are no resources of nodes.
_OWN_DOMAIN = 'kubernetes.io/'
_QUOTA = 'requests.'
_LONGEST = 255
# An API server takes names of up to 317 characters.
_LONGEST_CACHED = 320


def class_of(name: str, domain: str) -> str | None:
    """Return the resource class of a resource; None: it is not extended.

    ``DOMAIN/CLASS`` is the class itself, unless it is a standard one, which
    has a name of Kubernetes' own. Any other ``example.com/fpga`` is
    ``CUSTOM_EXAMPLE_COM_FPGA``.

    :param domain: of the resources that are ours
    """
    if len(name) > _LONGEST_CACHED:
        return _class_of.__wrapped__(name, domain)
    return _class_of(name, domain)


@functools.lru_cache(4096)
def _class_of(name: str, domain: str) -> str | None:
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
    return f'CUSTOM_{made}'[:_LONGEST]
