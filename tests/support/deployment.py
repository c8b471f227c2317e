"""The files in deploy/kubernetes, as kubectl renders them."""

from __future__ import annotations

import base64
import pathlib
import re
import shutil
import subprocess
from typing import Any

import yaml

from tests.support.paths import ROOT

FOLDER = ROOT / 'deploy' / 'kubernetes'
PAGE = ROOT / 'doc/source/admin/kubernetes.rst'
_EXAMPLE = re.compile(
    r'(?m)^( *)\.\. code-block:: yaml\n\n((?:\1 {3}.*\n|\n)+)'
)


def kubectl() -> str:
    """Return why files cannot be rendered; empty if they can."""
    if shutil.which('kubectl') is None:
        return 'kubectl is not installed (package kubernetes-client)'
    return ''


def rendered(folder: pathlib.Path) -> list[dict[str, Any]]:
    """Return the objects of a kustomization."""
    done = subprocess.run(
        ['kubectl', 'kustomize', str(folder)],
        check=False, capture_output=True, text=True, timeout=60,
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
