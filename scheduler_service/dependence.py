"""What a plug-in's verdict depends on, said in one way by all plug-ins.

A key is what a plug-in reads of a request. With the same key, and as long as
hosts and aggregates stay what they are, it says the same about every host:
the pipeline then asks it once and keeps the answer.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable
from typing import Final


class _EachTime(enum.Enum):
    """The type of :data:`EACH_TIME`."""

    EACH_TIME = 'each time'


#: The default: the plug-in is asked for every request.
EACH_TIME: Final = _EachTime.EACH_TIME
Key = Hashable
