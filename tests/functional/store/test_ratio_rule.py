"""A claim fits exactly where the filters find room for it."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from scheduler_service.filters.hosts.core_filter import (
    AggregateCoreFilter,
    CoreFilter,
)
from scheduler_service.filters.hosts.disk_filter import (
    AggregateDiskFilter,
    DiskFilter,
)
from scheduler_service.filters.hosts.ram_filter import (
    AggregateRamFilter,
    RamFilter,
)
from scheduler_service.model import STANDARD_FIELDS, documents
from scheduler_service.pipeline import HostPipeline
from scheduler_service.pipeline.capacity_check import CapacityCheck
from scheduler_service.settings import Settings
from scheduler_service.store import claims
from scheduler_service.store.claims import lifecycle
from tests.support.stores import (
    import_inventory,
    load_snapshot,
    new_claim,
    wipe,
    write_claims,
)

CUSTOM = 'CUSTOM_FPGA'
PLAIN = [CoreFilter(), RamFilter(), DiskFilter()]
OF_AGGREGATES = [
    AggregateCoreFilter(),
    AggregateRamFilter(),
    AggregateDiskFilter(),
]
RATIOS = st.one_of(
    st.sampled_from((None, 0.0, 0.29, 0.5, 1.0, 1.1, 1.2, 1.7, 16.0)),
    st.floats(0, 20),
)


class Offer(NamedTuple):
    """What a host offers of one class, and what a claim takes of it.

    :ivar ratio: None: the host states none
    :ivar reserved: counts for the custom class alone
    :ivar least: free disk as measured; None: not measured
    :ivar aggregate: ratio of the host's aggregate; None: it states none
    """

    resource_class: str
    total: int
    used: int
    ratio: float | None
    amount: int
    reserved: int = 0
    least: int | None = None
    aggregate: float | None = None

    def host(self, name: str) -> dict[str, Any]:
        """Return the host's document."""
        if self.resource_class == CUSTOM:
            offered: dict[str, Any] = {
                'total': self.total,
                'used': self.used,
                'reserved': self.reserved,
            }
            if self.ratio is not None:
                offered['allocation_ratio'] = self.ratio
            return {'host': name, 'resources': {CUSTOM: offered}}
        total, used, ratio = STANDARD_FIELDS[self.resource_class]
        return {
            'host': name,
            total: self.total,
            used: self.used,
            ratio: self.ratio,
            'disk_available_least': self.least,
        }

    def metadata(self) -> dict[str, str]:
        """Return the metadata of the host's aggregate."""
        if self.aggregate is None:
            return {}
        _, _, ratio = STANDARD_FIELDS[self.resource_class]
        return {ratio: repr(self.aggregate)}

    def request(self) -> dict[str, Any]:
        """Return a request for the amount alone."""
        fields = {
            'VCPU': 'vcpus',
            'MEMORY_MB': 'memory_mb',
            'DISK_GB': 'root_gb',
        }
        if self.resource_class in fields:
            return {'flavor': {fields[self.resource_class]: self.amount}}
        spec = f'resources:{self.resource_class}'
        return {'flavor': {'extra_specs': {spec: str(self.amount)}}}


@st.composite
def offers(draw: st.DrawFn) -> Offer:
    """Draw an offer; most claims just fit, or just do not."""
    name = draw(st.sampled_from((*STANDARD_FIELDS, CUSTOM)))
    total = draw(st.one_of(st.just(0), st.integers(0, 2**40)))
    used = draw(st.integers(0, 2 * total + 3))
    ratio = draw(RATIOS)
    reserved = draw(st.integers(0, total + 1)) if name == CUSTOM else 0
    least = None
    if name == 'DISK_GB':
        least = draw(st.none() | st.integers(-3, total + 3))
    aggregate = None if name == CUSTOM else draw(RATIOS)
    in_use = used if least is None else max(used, total - least)
    stated = draw(st.sampled_from((ratio, aggregate)))
    size = (total - reserved) * (1.0 if stated is None else stated)
    around = math.floor(size) - in_use + draw(st.integers(-2, 2))
    amount = draw(st.sampled_from((1, max(around, 1))))
    return Offer(name, total, used, ratio, amount, reserved, least, aggregate)


def filter_passes(
    hosts: Any, row: int, filters: Sequence[Any], request: Any
) -> bool:
    pipeline = HostPipeline(filters, [], Settings())
    parsed = documents.request(request).with_ids()
    results = pipeline.filter_results(hosts, parsed)
    return bool(np.all([result.mask[row] for result in results]))


def claim_fits(
    store: Any, snapshot: Any, row: int, offer: Offer, filters: Sequence[Any]
) -> bool:
    """Claim as a daemon with these filters does, and release the claim."""
    hosts, name = snapshot.hosts, offer.resource_class
    host = hosts.host_at(row)
    stated = CapacityCheck(filters).ratios(hosts, Settings(), name)
    claim = new_claim(
        snapshot,
        0,
        host_id=int(hosts.ids[row]),
        host=host,
        node=host,
        amounts={name: offer.amount},
        ratios={} if stated is None else {name: float(stated[1][row])},
    )
    try:
        write_claims(store, claim)
    except claims.ClaimLost:
        return False
    store.write(lambda writer: lifecycle.release(writer, [claim.consumer]))
    return True


@pytest.mark.db
@settings(
    max_examples=15,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(drawn=st.lists(offers(), min_size=1, max_size=8))
@example(drawn=[
    Offer('VCPU', total=0, used=5, ratio=1.0, amount=3),
    Offer('MEMORY_MB', total=0, used=0, ratio=None, amount=1),
    Offer('MEMORY_MB', total=2, used=0, ratio=0.0, amount=3),
    Offer('VCPU', total=2, used=0, ratio=1.0, amount=1, aggregate=0.0),
    Offer('MEMORY_MB', total=2, used=0, ratio=0.0, amount=3, aggregate=1.5),
    Offer(CUSTOM, total=4, used=0, ratio=0.0, amount=1),
    Offer(CUSTOM, total=4, used=0, ratio=None, amount=4),
    Offer(CUSTOM, total=4, used=0, ratio=None, amount=1, reserved=4),
    # 5 x (1.2 - 1) is less than 5 x 1.2 - 5.
    Offer('DISK_GB', total=5, used=0, ratio=1.2, amount=1, least=0),
    # The limit is a little less than 29, which the total hides.
    Offer('DISK_GB', total=10**6, used=1, ratio=2.9e-05, amount=28),
])  # fmt: skip
def test_a_claim_fits_where_the_filters_find_room(store, drawn):
    wipe(store)
    import_inventory(store, {
        'hosts': [offer.host(f'host-{n}') for n, offer in enumerate(drawn)],
        'aggregates': [
            {'id': n, 'hosts': [f'host-{n}'], 'metadata': offer.metadata()}
            for n, offer in enumerate(drawn)
        ],
    })  # fmt: skip
    snapshot = load_snapshot(store)
    for row, offer in enumerate(drawn):
        request = offer.request()
        for filters in ([], PLAIN, OF_AGGREGATES):
            fits = claim_fits(store, snapshot, row, offer, filters)
            passes = filter_passes(snapshot.hosts, row, filters, request)
            assert passes == fits, (offer, filters)
