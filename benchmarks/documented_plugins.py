"""The plug-ins that the contributor's guide shows, enabled in a daemon.

Their source is taken from the guide as it stands, so that what is measured
is what readers copy.
"""

from __future__ import annotations

import pathlib
import re
import textwrap

from benchmarks import common
from scheduler_service import conf as options
from scheduler_service.cmd import adapters

_GUIDE = common.ROOT / 'doc' / 'source' / 'contributor' / 'plugins.rst'
_MODULE = 'documented_plugins'
_FILTER = 'GoldenHostsFilter'
_WEIGHER = 'FailedBuildsWeigher'
_LITERAL_BLOCK = re.compile(
    r'(?:::|\.\. code-block:: python)\n\n((?:(?: {3,}.*)?\n)+)'
)
# A filter for one host at a time, as the guide describes it in words.
_LOOP_FILTER = '''

class RoomyHostsFilter:
    """Passes hosts with free memory, one at a time."""

    def host_passes(self, host_state, spec):
        return host_state.free_ram_mb > 0
'''


def source() -> str:
    """Return a module with the documented filter and weigher.

    :raises LookupError: the guide does not show one of them any more
    """
    blocks = _LITERAL_BLOCK.findall(_GUIDE.read_text())
    shown = []
    for name in (_FILTER, _WEIGHER):
        for block in blocks:
            if f'class {name}' in block:
                shown.append(textwrap.dedent(block))
                break
        else:
            raise LookupError(f'{_GUIDE} shows no class {name}')
    return '\n'.join(shown) + _LOOP_FILTER


def enable(folder: pathlib.Path, loop: bool) -> str:
    """Write the plug-ins' module into a folder; return their configuration.

    :param loop: enable the filter for one host at a time, too
    """
    (folder / f'{_MODULE}.py').write_text(source())
    conf = adapters.new_config()
    options.parse(conf, [], default_config_files=[], default_config_dirs=[])
    group = conf.filter_scheduler
    names = [_FILTER, *(['RoomyHostsFilter'] if loop else [])]
    available = [*group.available_filters, *(f'{_MODULE}.{n}' for n in names)]
    enabled = [*group.enabled_filters, *names]
    weighers = [*group.weight_classes, f'{_MODULE}.{_WEIGHER}']
    lines = [
        '[filter_scheduler]',
        *(f'available_filters = {path}' for path in available),
        f'enabled_filters = {",".join(enabled)}',
        f'weight_classes = {",".join(weighers)}',
    ]
    return '\n'.join(lines) + '\n'
