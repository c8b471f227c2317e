"""What tests need of the machine, and what becomes of them without it."""

from __future__ import annotations

import importlib.util
import os
import shutil
from typing import NoReturn

import pytest


def are_enforced() -> bool:
    """Whether what is missing is a failure, as in CI, and no skipped test."""
    return bool(os.environ.get('SCHEDULER_TEST_REQUIRE_SERVICES'))


def missing(reason: str) -> NoReturn:
    """Fail a test for what the set-up installs, or skip it.

    :param reason: what is missing
    """
    if are_enforced():
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def need_program(name: str) -> None:
    """Go on only where a program of the distribution is installed."""
    if shutil.which(name) is None:
        missing(f'{name} is not installed: see bindep.txt')


def need_library(name: str) -> None:
    """Go on only where a library of the test extra can be imported."""
    if importlib.util.find_spec(name) is None:
        missing(f'the library {name} is not installed')
