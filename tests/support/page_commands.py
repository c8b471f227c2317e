"""Command lines on the pages, and where each of them runs.

A literal block without a language is of lines for a shell, and so is one of
the language ``console``; every other block names its language.
"""

from __future__ import annotations

import pathlib
import re
import textwrap
from typing import NamedTuple

from tests.support.pages import pages
from tests.support.paths import ROOT

_SHELL = ('', 'console')
_DIRECTIVE = re.compile(r'^( *)\.\. code-block:: (\w+)$')
_BARE = re.compile(r'^( *)(?!\.\. )\S?.*::$')
_CONFIG = re.compile(r' --config-file \S+')


class Block(NamedTuple):
    """A literal block.

    :ivar language: empty where it names none
    :ivar text: without its indentation
    """

    language: str
    text: str


def page(name: str) -> pathlib.Path:
    """Return the path of a page for operators, such as ``install``."""
    return ROOT / 'doc/source/admin' / f'{name}.rst'


def blocks(path: pathlib.Path) -> list[Block]:
    """Return the literal blocks of a page, in order."""
    lines = path.read_text().splitlines()
    found = []
    at = 0
    while at < len(lines):
        begin = _DIRECTIVE.match(lines[at]) or _BARE.match(lines[at])
        at += 1
        if begin is None:
            continue
        inside: list[str] = []
        while at < len(lines) and _belongs(lines[at], inside, len(begin[1])):
            inside.append(lines[at])
            at += 1
        language = begin[2] if begin.re is _DIRECTIVE else ''
        text = textwrap.dedent('\n'.join(inside)).strip('\n')
        found.append(Block(language, text))
    return found


def _belongs(line: str, inside: list[str], indent: int) -> bool:
    """Whether a line is one of a block.

    :param inside: the lines of the block so far
    :param indent: of the line that begins it
    """
    first = next(filter(str.strip, inside), '')
    needed = _indent(first) if first else indent + 1
    return not line.strip() or _indent(line) >= needed


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def of_language(path: pathlib.Path, language: str) -> list[str]:
    """Return the texts of the blocks of one language."""
    return [block.text for block in blocks(path) if block.language == language]


def shell_blocks(path: pathlib.Path) -> list[list[str]]:
    """Return the command lines of each block, without prompts."""
    return [
        [
            re.sub(r'^[$#] ', '', line)
            for line in re.sub(r'\\\n\s*', '', block.text).splitlines()
            if line.strip()
        ]
        for block in blocks(path)
        if block.language in _SHELL
    ]


def lines(path: pathlib.Path, *programs: str) -> list[str]:
    """Return the command lines of a page.

    :param programs: only theirs
    """
    return [
        line
        for block in shell_blocks(path)
        for line in block
        if not programs or line.split()[0] in programs
    ]


def plain(line: str) -> str:
    """Return a line without the configuration file that it names."""
    return _CONFIG.sub('', line)


# Which test runs all lines of a page, but for those listed below.
RUN_BY = {
    'install': 'tests/functional/packaging/test_install_page.py',
    'backup': 'tests/functional/docs/test_backup_page.py',
    'kubernetes': 'tests/interop/test_kube_deployment.py',
    'security': 'tests/functional/rpc/test_broker_permissions.py',
    **dict.fromkeys(
        (
            'commands',
            'compute',
            'hosts',
            'maintenance',
            'moving',
            'questions',
            'replay',
            'upgrade',
        ),
        'tests/functional/docs/test_commands_page.py',
    ),
}
# Lines of other pages, and what runs them or the same.
RUN_ELSEWHERE = {
    'tools/test.sh': '.ci/run',
    # The wheel of the tree is built and installed.
    'pip install .': 'tests/functional/packaging/conftest.py',
    'pip install ./designate_scheduler_service': 'tests/support/designate.py',
    '.venv-test/bin/reno new what-changes': 'tests/unit/docs/'
    'test_page_commands.py',
    'scheduler-manage inventory import /etc/designate/pools.yaml': (
        'tests/functional/cmd/test_client_documents.py'
    ),
}
# Lines that ask a daemon are run where the page on installing has started one.
ASKING = ('ping', 'select', 'top')
_NO_CLOUD = (
    'there is no cloud that its client could ask; what it prints is imported '
    'in tests/functional/cmd/test_client_documents.py'
)
# What no test can run, and why.
NOT_RUN = {
    **dict.fromkeys(
        (
            'openstack hypervisor show -f json compute-1 '
            '| scheduler-manage inventory import -',
            'openstack aggregate show -f json rack-1 '
            '| scheduler-manage inventory import -',
        ),
        _NO_CLOUD,
    ),
    'systemctl daemon-reload': 'there is no systemd that runs as process 1',
    'systemctl kill --signal=SIGUSR2 --kill-whom=main scheduler-service': (
        'there is no systemd that runs as process 1; that the signal writes '
        'a report is tested in tests/functional/daemon/test_signals.py'
    ),
    'docker build -f Containerfile -t '
    'registry.example.org/scheduler-service:1 ../..': (
        'no program that builds images can be expected'
    ),
    'docker push registry.example.org/scheduler-service:1': (
        'there is no registry'
    ),
    'kubectl -n scheduler-service wait --for=condition=Available '
    'deployment/scheduler-service': (
        'there is no kubelet that would start the pod'
    ),
    'kubectl -n scheduler-service wait --for=condition=Ready certificate '
    '--all': 'there is no cert-manager that would make certificates',
    'kubectl -n scheduler-service port-forward '
    'deployment/scheduler-service 9393 &': (
        'there is no kubelet: the daemon itself is asked'
    ),
    'tools/quickstart.sh': (
        'it downloads all libraries; what it starts at its end is run by '
        'tests/functional/packaging/test_wheel.py'
    ),
}
# What runs without a part of it, and why.
RUN_IN_PART = {
    'systemctl enable --now scheduler-service': (
        'the unit is enabled; there is no systemd that would start it now, '
        'so what it starts is started by itself'
    ),
}


def runs_at(path: pathlib.Path, line: str) -> str:
    """Return where a line of a page runs; empty if it does not."""
    if line in RUN_ELSEWHERE:
        return RUN_ELSEWHERE[line]
    if path.parent == page('').parent and path.stem in RUN_BY:
        return RUN_BY[path.stem]
    words = plain(line)
    for name in RUN_BY:
        if words in {plain(line) for line in lines(page(name))}:
            return RUN_BY[name]
    return ''


def asks_a_daemon(line: str) -> bool:
    """Whether a command waits for the reply of a daemon."""
    words = plain(line).split()
    return words[1] in ASKING and '--local' not in words


def all_pages() -> list[pathlib.Path]:
    """Return the pages that may have command lines."""
    return [*pages(), ROOT / 'HACKING.rst',
            ROOT / 'designate_scheduler_service/README.rst']  # fmt: skip
