"""The files in deploy/kubernetes, as kubectl renders them."""

from __future__ import annotations

import base64
import functools
import json
import pathlib
import re
import subprocess
from typing import Any

import pytest
import yaml

from tests.support import requirements
from tests.support.paths import ROOT
from tests.support.waiting import LIMIT_S

FOLDER = ROOT / 'deploy' / 'kubernetes'
PAGE = ROOT / 'doc/source/admin/kubernetes.rst'
# The first that takes a folder among resources.
_KUBECTL = (1, 21)
_EXAMPLE = re.compile(
    r'(?m)^( *)\.\. code-block:: yaml\n\n((?:\1 {3}.*\n|\n)+)'
)


@functools.cache
def need_kubectl() -> None:
    """Go on only with a kubectl that renders the files.

    One that is too old skips the test also where what is missing is a
    failure: it is what the distribution has.
    """
    requirements.need_program('kubectl')
    told = subprocess.run(
        ['kubectl', 'version', '--client', '-o', 'json'],
        check=True, capture_output=True, text=True, timeout=LIMIT_S,
    ).stdout  # fmt: skip
    name = json.loads(told)['clientVersion']['gitVersion']
    found = tuple(map(int, re.findall(r'\d+', name)[:2]))
    if found < _KUBECTL:
        pytest.skip(f'kubectl 1.21 or later is needed, this is {name}')


def rendered(folder: pathlib.Path) -> list[dict[str, Any]]:
    """Return the objects of a kustomization.

    Skips the test as :func:`need_kubectl` does.
    """
    need_kubectl()
    done = subprocess.run(
        ['kubectl', 'kustomize', str(folder)],
        check=False, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def examples() -> list[dict[str, Any]]:
    """Return the YAML examples of the page, in order."""
    return [
        yaml.safe_load(re.sub(f'(?m)^{indent}   ', '', text))
        for indent, text in _EXAMPLE.findall(PAGE.read_text())
    ]


def pods() -> dict[str, dict[str, Any]]:
    """Return the pods of the page by their names."""
    return {
        example['metadata']['name']: example
        for example in examples()
        if example['kind'] == 'Pod'
    }


def settings(objects: list[dict[str, Any]]) -> dict[str, str]:
    """Return the configuration files of the daemon, by name."""
    files: dict[str, str] = {}
    for one in objects:
        if one['kind'] == 'ConfigMap':
            files.update(one['data'])
        elif one['kind'] == 'Secret':
            files.update(
                (name, base64.b64decode(text).decode())
                for name, text in one['data'].items()
            )
    return files
