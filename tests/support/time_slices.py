"""Requests that are selected for in turns."""

from __future__ import annotations

import random

from scheduler_service import time_slice
from scheduler_service.columns import Overlay


def one_turn(chain, found, asked, placed):
    """Select for one instance; return the result, None before the last."""
    overlay = Overlay(found)
    try:
        time_slice.begin(0, lambda: True)
        return chain.select(overlay, asked, random.Random(1), placed=placed)
    except time_slice.TimeSliceOver:
        return None
    finally:
        time_slice.end()


def in_turns(chain, found, asked, between=lambda turn: None):
    placed = {}
    for turn in range(100):
        result = one_turn(chain, found, asked, placed)
        if result is not None:
            return result
        between(turn)
    raise AssertionError('it takes no end')
