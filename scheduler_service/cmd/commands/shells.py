"""``scheduler-manage completion``: scripts for shells."""

from __future__ import annotations

from typing import Any

from scheduler_service.cmd import completion as scripts
from scheduler_service.cmd import parser


def completion(args: Any, conf: Any) -> None:
    """Print the script with which a shell completes command lines."""
    found = scripts.places(parser.build())
    print(scripts.script('scheduler-manage', found, args.shell), end='')
