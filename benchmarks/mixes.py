"""A cloud's mix of requests: seeded, and made without any server.

The mix has 40 flavors by Zipf's law, 200 projects and 30 images, three zones
or none, flavors with traits or extra specs, requests for several instances,
members of server groups of the four policies, and hosts to ignore. A few
requests cannot be satisfied by any host, and only those may be refused.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
import uuid
from typing import Any, Literal, NamedTuple

from benchmarks import common

FLAVORS, PROJECTS, IMAGES = 40, 200, 30
ZONES = (None, 'az0', 'az1', 'az2')
POLICIES = ('affinity', 'anti-affinity', 'soft-affinity', 'soft-anti-affinity')
# Shares of all requests. An unsatisfiable one is so by its extra specs.
WITH_EXTRA_SPECS = 0.12
UNSATISFIABLE = 0.01
SEVERAL_INSTANCES = 0.15
IN_GROUPS = 0.15
IGNORING_HOSTS = 0.05
# The same as shares of those requests that they are drawn for: members of
# groups are satisfiable, and those of affinity groups ignore no hosts.
_SATISFIABLE_SPECS = (WITH_EXTRA_SPECS - UNSATISFIABLE) / (1 - UNSATISFIABLE)
_UNSATISFIABLE_ALONE = UNSATISFIABLE / (1 - IN_GROUPS)
_MAY_IGNORE = IGNORING_HOSTS / (1 - IN_GROUPS / len(POLICIES))
# Groups of each policy that get members at the same time, and how many
# members one gets at most: an affinity group has to fit on one host.
OPEN_GROUPS = 75
MOST_MEMBERS = {'affinity': 6}
_MOST_MEMBERS = 10
_MOST_MEMORY_TOGETHER_MB = 8192

Outcome = Literal['placed', 'refused']

# Each set of extra specs is satisfied by some of the hosts of `inventory`.
_ANY_ARCHITECTURE: tuple[dict[str, str], ...] = (
    {'trait:CUSTOM_SSD': 'required'},
    {'trait:CUSTOM_OLD': 'forbidden'},
    {'aggregate_instance_extra_specs:ssd': 'true'},
    {'capabilities:hypervisor_version': '>= 6000000'},
    {'capabilities:cpu_info:features': '<in> aes'},
)
_X86_ONLY: tuple[dict[str, str], ...] = (
    {'trait:HW_CPU_X86_AVX512F': 'required'},
    {'trait:HW_CPU_X86_AVX2': 'required', 'hw:cpu_policy': 'shared'},
    {'resources:CUSTOM_FPGA': '1'},
)
_NO_HOST: tuple[dict[str, str], ...] = (
    {'trait:CUSTOM_ABSENT': 'required'},
    {'resources:CUSTOM_ABSENT': '1'},
    {'capabilities:hypervisor_type': 's== hyperv'},
)


class MixedRequest(NamedTuple):
    """A request document, and what has to become of it."""

    document: dict[str, Any]
    outcome: Outcome


@dataclasses.dataclass(frozen=True)
class Mix:
    """Requests in their order, and the server groups that they name."""

    requests: list[MixedRequest]
    server_groups: list[dict[str, Any]]


def inventory(hosts: int, seed: int = 1) -> dict[str, Any]:
    """Return the inventory document for a cloud's mix of requests.

    A tenth of the hosts are of another architecture, a fifth have FPGAs,
    a third the trait of golden flavors and a tenth a trait to avoid.
    """
    document = common.inventory(hosts, seed)
    rng = random.Random(f'{seed}-inventory')
    for host in document['hosts']:
        if rng.random() < 0.1:
            host['supported_instances'] = [['aarch64', 'kvm', 'hvm']]
            host['traits'] = ['CUSTOM_SSD'] if rng.random() < 0.5 else []
        if rng.random() < 0.2:
            host['resources'] = {'CUSTOM_FPGA': {'total': 10_000}}
        if rng.random() < 1 / 3:
            host['traits'].append('CUSTOM_GOLD')
        if rng.random() < 0.1:
            host['traits'].append('CUSTOM_OLD')
    return document


def flavors() -> list[dict[str, Any]]:
    """Return the flavors, the most often used first: small ones are.

    Two have names that start with ``gold``, for filters that look at names.
    """
    sizes = sorted(
        (vcpus * ratio * 1024, vcpus, disk)
        for vcpus, ratio, disk in itertools.product(
            (1, 2, 4, 8, 16), (1, 2, 3, 4), (10, 20)
        )
    )
    made = []
    for number, (memory_mb, vcpus, disk) in enumerate(sizes):
        kind = 'gold' if number in (7, 19) else 'plain'
        made.append(
            {
                'flavorid': str(number),
                'name': f'{kind}.{number}',
                'vcpus': vcpus,
                'memory_mb': memory_mb,
                'root_gb': disk,
            }
        )
    return made


def images(rng: random.Random) -> list[dict[str, Any]]:
    """Return the images, a third of them without any properties."""
    made = []
    for number in range(IMAGES):
        properties: dict[str, Any] = {}
        if number >= 10:
            properties = {'hw_disk_bus': 'virtio', 'os_distro': f'os{number}'}
        if number >= 16:
            properties |= {'hw_architecture': 'x86_64', 'img_hv_type': 'kvm'}
        if number in (26, 27):
            properties['trait:CUSTOM_SSD'] = 'required'
        if number >= 28:
            properties['hw_architecture'] = 'aarch64'
        made.append({'id': _uuid(rng), 'properties': properties})
    return made


@dataclasses.dataclass
class _OpenGroup:
    """A server group that still gets members.

    All of its members share the flavor, the image, the zone and the project
    of *template*, so that the strict policies can be kept.
    """

    policy: str
    template: dict[str, Any]
    room: int


class _Generator:
    """Draws the requests of a mix, one after the other."""

    def __init__(self, hosts: int, seed: int) -> None:
        self.rng = random.Random(seed)
        self.hosts = hosts
        self.server_groups: list[dict[str, Any]] = []
        self._flavors = flavors()
        self._weights = [1 / (rank + 1) for rank in range(FLAVORS)]
        self._images = images(self.rng)
        self._projects = [_uuid(self.rng) for _ in range(PROJECTS)]
        self._open = {
            policy: [self._new_group(policy) for _ in range(OPEN_GROUPS)]
            for policy in POLICIES
        }

    def draw(self) -> MixedRequest:
        """Return the next request."""
        rng = self.rng
        count = rng.randint(2, 5) if rng.random() < SEVERAL_INSTANCES else 1
        if rng.random() < IN_GROUPS:
            policy = rng.choice(POLICIES)
            document = self._member(policy, count)
            outcome: Outcome = 'placed'
        else:
            policy = None
            document, outcome = self._alone()
        if count > 1:
            document['num_instances'] = count
        # An affinity group might be on a host that would be ignored.
        if policy != 'affinity' and rng.random() < _MAY_IGNORE:
            document['ignore_hosts'] = [
                common.host_name(rng.randrange(self.hosts))
                for _ in range(rng.randint(1, 3))
            ]
        return MixedRequest(document, outcome)

    def _alone(self) -> tuple[dict[str, Any], Outcome]:
        """Return a request of no group, and its outcome."""
        if self.rng.random() < _UNSATISFIABLE_ALONE:
            extra_specs = self.rng.choice(_NO_HOST)
            return self._template(extra_specs), 'refused'
        return self._template(), 'placed'

    def _member(self, policy: str, count: int) -> dict[str, Any]:
        """Return a request for members of a group with enough room."""
        groups = self._open[policy]
        at = self.rng.randrange(len(groups))
        if groups[at].room < count:
            groups[at] = self._new_group(policy)
        groups[at].room -= count
        return dict(groups[at].template)

    def _new_group(self, policy: str) -> _OpenGroup:
        template = self._template(
            most_memory_mb=_MOST_MEMORY_TOGETHER_MB
            if policy == 'affinity'
            else None
        )
        template['instance_group'] = _uuid(self.rng)
        self.server_groups.append(
            {
                'uuid': template['instance_group'],
                'name': f'group-{len(self.server_groups)}',
                'project_id': template['project_id'],
                'policy': policy,
            }
        )
        most = MOST_MEMBERS.get(policy, _MOST_MEMBERS)
        return _OpenGroup(policy, template, self.rng.randint(5, most))

    def _template(
        self,
        extra_specs: dict[str, str] | None = None,
        most_memory_mb: int | None = None,
    ) -> dict[str, Any]:
        """Return what one instance needs, where, and for which project."""
        rng = self.rng
        image = rng.choice(self._images)
        flavor = rng.choices(self._flavors, self._weights)[0]
        while most_memory_mb and flavor['memory_mb'] > most_memory_mb:
            flavor = rng.choices(self._flavors, self._weights)[0]
        if extra_specs is None and rng.random() < _SATISFIABLE_SPECS:
            sets = _ANY_ARCHITECTURE
            if image['properties'].get('hw_architecture') != 'aarch64':
                sets += _X86_ONLY
            extra_specs = rng.choice(sets)
        if extra_specs:
            flavor = {**flavor, 'extra_specs': extra_specs}
        document = {
            'project_id': rng.choice(self._projects),
            'flavor': flavor,
            'image': image,
        }
        zone = rng.choice(ZONES)
        if zone:
            document['availability_zone'] = zone
        return document


def cloud(count: int, hosts: int, seed: int = 1) -> Mix:
    """Return requests for the hosts of :func:`inventory`.

    The same arguments give the same mix.
    """
    generator = _Generator(hosts, seed)
    requests = [generator.draw() for _ in range(count)]
    return Mix(requests, generator.server_groups)


def _uuid(rng: random.Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))
