"""Where the project lies, and the recordings beside it."""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]
# The programs that this tree is installed with.
PROGRAMS = pathlib.Path(sys.executable).parent
# Cases of other implementations; not part of the project.
SHARED = ROOT.parent / 'shared' / 'conformance'
# Requests and replies of real extenders and of a real kube-scheduler.
RECORDINGS = SHARED / 'extender'

# Messages of a real compute service, and what became of them.
NOVA_WIRE = SHARED / 'nova_wire'


def recorded(name: str) -> list[Any]:
    """Return a list of recordings; none where they are not at hand."""
    path = RECORDINGS / name
    return json.loads(path.read_text()) if path.exists() else []
