"""What a run of scheduler-manage printed."""

from __future__ import annotations

import json
from typing import Any


def printed_json(result: tuple[int, str, str]) -> Any:
    """Parse the output of a command: (exit status, output, errors)."""
    assert result[0] == 0, result
    return json.loads(result[1])
