"""Whatever a plug-in raises fails the request alone, and names the plug-in."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.factory import build
from scheduler_service.model import Pool, documents
from scheduler_service.pipeline import PoolPipeline
from scheduler_service.settings import Settings
from scheduler_service.store import schema
from tests.support import raising_plugins
from tests.support.documents import SMALL
from tests.support.raising_plugins import KINDS, PATH, plan
from tests.support.services import new_conf
from tests.support.stores import claim_state, import_two_hosts
from tests.support.waiting import LIMIT_S, wait_until

PLUGINS = {
    'filter_scheduler__available_filters': [f'{PATH}.RaisingFilter'],
    'filter_scheduler__enabled_filters': ['RaisingFilter'],
    'filter_scheduler__weight_classes': [
        f'{PATH}.RaisingWeigher',
        f'{PATH}.RaisingColumnWeigher',
    ],
}
STAGES = [f'{PATH}.OtherStage after=claim', f'{PATH}.RaisingStage after=claim']


@pytest.fixture
def store(make_store: Any) -> Any:
    made = make_store('sqlite')
    import_two_hosts(made)
    return made


@pytest.fixture(autouse=True)
def planned() -> Iterator[None]:
    """Forget what a test planned."""
    yield
    plan.clear()
    raising_plugins.RaisingStage.undone.clear()
    raising_plugins.RaisingStage.tried.clear()
    raising_plugins.OtherStage.undone.clear()


@pytest.fixture
def engine(store: Any) -> Iterator[Any]:
    url = store.engine.url.render_as_string(hide_password=False)
    conf = new_conf(
        database__connection=url, scheduler__stages=STAGES, **PLUGINS
    )
    made = build(conf, store)
    assert made.start()
    yield made
    made.stop()


def select(engine: Any, flavor: str = 'small', vm: str = '') -> Any:
    """Return the future of a placement."""
    vm = vm or str(uuid.uuid4())
    request = documents.request(
        {'flavor': {**SMALL, 'name': flavor}, 'instance_uuids': [vm]}
    )
    return engine.select_destinations(request)


def failure(engine: Any, flavor: str = 'small', vm: str = '') -> Any:
    """Return the error of a placement."""
    return select(engine, flavor, vm).exception(LIMIT_S)


def records(store: Any) -> list[Any]:
    with store.reading() as conn:
        return list(conn.execute(sa.select(schema.stage_records)))


@pytest.mark.parametrize(
    ('method', 'flavor', 'name'),
    [
        ('mask_key', 'small', 'RaisingFilter'),
        ('mask', 'small', 'RaisingFilter'),
        ('limits', 'small', 'RaisingFilter'),
        ('numa_limits', 'small', 'RaisingFilter'),
        ('ratios', 'small', 'RaisingFilter'),
        ('reason', 'none', 'RaisingFilter'),
        ('miss', 'none', 'RaisingFilter'),
        ('weight_key', 'small', 'RaisingWeigher'),
        ('weigh', 'small', 'RaisingWeigher'),
        ('multiplier', 'small', 'RaisingWeigher'),
        ('column', 'small', 'RaisingColumnWeigher'),
    ],
)
def test_a_filter_or_weigher_that_raises_fails_its_request_by_name(
    engine, method, flavor, name
):
    for kind in KINDS:
        plan[method] = kind()
        error = failure(engine, flavor)
        assert isinstance(error, errors.FilterFault), (kind, error)
        assert error.facts == {'filter': name, 'fault': kind.__name__}
        assert name in str(error)
    plan.clear()
    assert select(engine).result(LIMIT_S).placements


@pytest.mark.parametrize('kind', KINDS)
def test_an_explanation_fails_by_the_name_of_a_plug_in(engine, kind):
    plan['mask'] = kind()
    request = documents.request({'flavor': SMALL})
    error = engine.explain(request).exception(LIMIT_S)
    assert isinstance(error, errors.FilterFault)
    assert error.facts['filter'] == 'RaisingFilter'
    plan.clear()
    assert engine.explain(request).result(LIMIT_S)['placements']


def test_devices_that_cannot_be_looked_for_name_the_filter(engine):
    pipeline = engine.introspection._hosts.pipeline
    table = engine.snapshot().hosts
    request = documents.request({'flavor': SMALL})
    for kind in KINDS:
        plan['has_devices'] = kind()
        with pytest.raises(errors.FilterFault) as raised:
            pipeline.has_devices(table, 0, request)
        assert raised.value.facts['filter'] == 'RaisingFilter'


def test_a_request_filter_that_raises_is_named(engine, monkeypatch):
    def raising_rule(scoped: Any) -> None:
        raising_plugins.meet('rule')

    monkeypatch.setattr(
        'scheduler_service.request_filters.BUILT_IN', (raising_rule,)
    )
    for kind in KINDS:
        plan['rule'] = kind()
        error = failure(engine)
        assert isinstance(error, errors.FilterFault)
        assert error.facts['filter'] == 'raising_rule'


@pytest.mark.parametrize('method', ['__init__', 'filter', 'missed'])
def test_a_pool_filter_that_raises_is_named(method):
    class Anybody:
        def authorize(self, rule: str, target: Any) -> None:
            """Allow everything."""

    pools = {'a': Pool(id='a', name='a')}
    kinds = [raising_plugins.RaisingPoolFilter]
    pipeline = PoolPipeline(kinds, Settings())
    zone = documents.zone({'name': 'a.'}).with_ids()
    for kind in KINDS:
        plan[method] = kind()
        with pytest.raises(errors.FilterFault) as raised:
            pipeline.choose(Anybody(), pools, zone, random.Random(1))
        assert raised.value.facts['filter'] == 'RaisingPoolFilter'


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('method', ['document', 'make'])
def test_a_stage_that_raises_fails_its_request_by_name(
    engine, store, caplog, method, kind
):
    vm = str(uuid.uuid4())
    plan[method] = kind()
    error = failure(engine, vm=vm)
    assert isinstance(error, errors.StageFailed)
    assert error.facts['stage'] == 'RaisingStage'
    assert 'RaisingStage' in str(error)
    assert claim_state(store, vm) is None
    if method == 'make':
        assert 'Stage RaisingStage failed' in caplog.text
    plan.clear()
    # The stages work on, and what may have been made is undone.
    assert select(engine).result(LIMIT_S).placements
    if method == 'make':
        wait_until(lambda: vm in raising_plugins.RaisingStage.undone)


def release(engine: Any, *vms: str) -> None:
    engine.release(vms).result(LIMIT_S)


@pytest.mark.parametrize('kind', KINDS)
def test_an_undo_that_raises_is_tried_again_and_stops_no_other(engine, kind):
    vm, bare = str(uuid.uuid4()), str(uuid.uuid4())
    select(engine, vm=vm).result(LIMIT_S)
    select(engine, 'bare', bare).result(LIMIT_S)
    plan['undo'] = kind()
    release(engine, vm)
    wait_until(lambda: vm in raising_plugins.RaisingStage.tried)
    release(engine, bare)
    wait_until(lambda: bare in raising_plugins.OtherStage.undone)
    assert raising_plugins.RaisingStage.undone == []
    plan.clear()
    wait_until(lambda: vm in raising_plugins.RaisingStage.undone)


def test_an_undo_that_hangs_holds_up_its_own_stage_alone(
    engine, store, monkeypatch
):
    going = threading.Event()
    came: list[str] = []

    def hang(stage: Any, reservation: Any, settings: Any) -> None:
        came.append(reservation.instance_uuid)
        going.wait()

    monkeypatch.setattr(raising_plugins.RaisingStage, 'undo', hang)
    vms = [str(uuid.uuid4()) for _ in range(2)]
    try:
        for vm in vms:
            select(engine, vm=vm).result(LIMIT_S)
            release(engine, vm)
            # The second one while the undo of the first one hangs.
            wait_until(lambda vm=vm: vm in raising_plugins.OtherStage.undone)
        assert came == vms[:1]
        # The ends of calls are recorded meanwhile.
        kept = str(uuid.uuid4())
        select(engine, vm=kept).result(LIMIT_S)
        wait_until(lambda: [
            row for row in records(store)
            if row.instance_uuid == kept and row.made_at is not None
        ])  # fmt: skip
    finally:
        going.set()
    wait_until(lambda: came == vms)
