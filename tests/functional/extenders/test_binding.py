"""Extenders that bind."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_service import errors
from tests.support import extenders
from tests.support.extenders import Reply, entry


def test_next_host_is_tried_when_one_cannot_be_bound(serve_with):
    def answer(verb: str, asked: Any) -> Reply:
        if verb == 'bind' and asked['Node'] == 'compute-4':
            return Reply({'Error': 'the port is gone'})
        return extenders.pass_all(verb, asked)

    with extenders.extender(answer) as server:
        service = serve_with(entry(server, bindVerb='bind'))
        assert service.select_hosts() == ['compute-3']
        assert server.verbs() == ['filter', 'bind'] * 2
        with service.store.reading() as conn:
            from scheduler_service.store.claims import claim_queries

            rows = claim_queries.listing(conn)
        assert [row['host'] for row in rows] == ['compute-3']


def test_no_claim_is_left_when_no_host_can_be_bound(serve_with):
    def answer(verb: str, asked: Any) -> Reply:
        if verb == 'bind':
            return Reply({'Error': 'no'})
        return extenders.pass_all(verb, asked)

    with extenders.extender(answer) as server:
        service = serve_with(entry(server, bindVerb='bind'))
        with pytest.raises(errors.ExtenderFailed, match='to bind: no'):
            service.select_hosts()
        from scheduler_service.store.claims import claim_queries

        with service.store.reading() as conn:
            assert claim_queries.listing(conn) == []
