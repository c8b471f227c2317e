"""Which requests cannot be claimed in the placement service.

Those whose flavor or image asks for more than it says in amounts of the
host's own provider. Any thread may call this.
"""

from __future__ import annotations

import re

from scheduler_service import errors
from scheduler_service.model import Request

# Extra specs that the compute service turns into more than an amount of the
# host's own provider.
_UNSUPPORTED = re.compile(
    r'(resources|trait|member_of|in_tree)[^:]+:.*'
    r'|group_policy|same_subtree.*|accel:.*|hw:pmem|hw:mem_encryption'
    r'|hw:tpm_.*|member_of|in_tree'
)
_PINNED = ('dedicated', 'mixed')
_PINNING = ('hw:cpu_policy', 'hw_cpu_policy')


def check_claimable(request: Request) -> None:
    """Check that a request says itself all that it asks for.

    :raises InvalidRequest: its extra specs or its image ask for more
    """
    if request.amounts is not None:
        return
    specs = request.flavor.extra_specs
    for name in specs:
        if _UNSUPPORTED.fullmatch(name):
            raise _unsupported(name)
    for name, value in (*specs.items(), *request.image_properties.items()):
        if name in _PINNING and value in _PINNED:
            raise _unsupported(f'{name}={value}')


def _unsupported(what: str) -> errors.InvalidRequest:
    return errors.InvalidRequest(
        f'{what} is not supported with claims in the placement service: only '
        "amounts of the host's own provider are",
        at=what,
    )
