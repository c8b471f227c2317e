"""nova-compute whose hypervisor can fail; runs where nova is installed.

A server with the metadata ``fails: first`` cannot be built by the host that
tries first, and one with ``fails: always`` by none. Arguments are those of
nova-compute; the environment's ``FAILED_BUILDS`` is a folder that all hosts
share, with a file for each server that failed: the hosts that tried.
"""

import os
import pathlib

from nova.cmd import compute

from nova import exception  # isort: skip - the command prepares threads
from nova.virt import fake  # isort: skip


class FailingDriver(fake.SmallFakeDriver):
    """nova's own fake hypervisor, but for servers that are to fail."""

    def spawn(self, context, instance, *args, **kwargs):
        """Build a server, or fail as a hypervisor without room does."""
        fails = instance.metadata.get('fails')
        path = pathlib.Path(os.environ['FAILED_BUILDS'], instance.uuid)
        if fails == 'always' or (fails == 'first' and not path.exists()):
            with path.open('a') as file:
                file.write(f'{instance.host}\n')
            raise exception.ComputeResourcesUnavailable(reason='a test')
        super().spawn(context, instance, *args, **kwargs)


if __name__ == '__main__':
    # Drivers are looked up by name in nova's own package.
    fake.FailingDriver = FailingDriver
    compute.main()
