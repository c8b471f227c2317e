"""The configuration file that is shipped for clouds, and its filters."""

from __future__ import annotations

import configparser
import re

from tests.support.nova_cloud import NovaCloud
from tests.support.paths import ROOT

COMPUTE = ROOT / 'etc/scheduler_service/compute.conf'


def filters() -> list[str]:
    """Return the filters that the file enables; none of them is of zones."""
    shipped = configparser.ConfigParser(strict=False, interpolation=None)
    shipped.read_string(COMPUTE.read_text())
    names = shipped['filter_scheduler']['enabled_filters'].split(',')
    assert 'AvailabilityZoneFilter' not in names
    return names


def of_cloud(cloud: NovaCloud, database: str, queues: str) -> str:
    """Return the file with the addresses of a cloud.

    :param database: of the daemon
    :param queues: options on queues
    """
    text = COMPUTE.read_text()
    own = cloud.placement.options.partition('\n')[2]
    for pattern, value in (
        (r'rabbit://\S+', cloud.bus),
        (r'mysql\+pymysql://scheduler\S+', database),
        (r'mysql\+pymysql://reader\S+', cloud.databases.api),
        (r'(?s)auth_type.*?region_name = RegionOne\n', own),
        (r'amqp_durable_queues(.*\n){2}', queues),
    ):
        text, count = re.subn(pattern, lambda _, v=value: v, text)
        assert count == 1, pattern
    return text
