"""Requests of which some instances hold a claim already."""

from __future__ import annotations

import uuid

from tests.support.documents import CONTEXT, SMALL


def test_instances_stay_in_place_when_others_are_asked_for_with_them(
    make_service,
):
    service = make_service()

    def ask(*uuids: str) -> list[tuple[str, str]]:
        request = {'flavor': SMALL, 'instance_uuids': [*uuids]}
        answer = service.client.select_destinations(CONTEXT, request)
        return [
            (one['instance_uuid'], one['selected']['host'])
            for one in answer['placements']
        ]

    first, held, last = (str(uuid.uuid4()) for _ in range(3))
    (before,) = ask(held)
    everything = ask(first, held, last)
    assert [one for one, _ in everything] == [first, held, last]
    assert everything[1] == before
    # It was not claimed twice.
    with service.store.reading() as conn:
        used = conn.exec_driver_sql(
            "SELECT sum(used) FROM inventories WHERE resource_class = 'VCPU'"
        )
        assert used.scalar_one() == 3
