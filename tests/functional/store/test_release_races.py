"""A claim that is committed while claims of the same instances are changed.

Between two statements of the change another connection claims, as another
daemon may. SQLite has one writer at a time, so nothing can come in between.
"""

import threading
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.engine.health import Health
from scheduler_service.engine.messages import Unrecorded
from scheduler_service.engine.ports import ClaimLost
from scheduler_service.model import Instance
from scheduler_service.settings import EngineOptions
from scheduler_service.store import schema
from scheduler_service.store.claims import (
    claim_queries,
    lifecycle,
    released_claims,
)
from scheduler_service.store.claims.batch import ClaimBatch
from scheduler_service.store.claims.outcomes import ReleaseRequest
from scheduler_service.store.connection import Store, Writer
from scheduler_service.store.ports.recall import (
    Outcome,
    OutcomeDiffers,
    Outcomes,
)
from scheduler_service.store.sessions import Timeouts
from scheduler_service.store.writing import hosts as host_rows
from scheduler_service.store.writing import instances as instance_rows
from tests.support.databases import listens
from tests.support.stores import (
    DEFAULT_RATIOS,
    audit_findings,
    claim_on,
    claim_state,
    import_two_hosts,
    used_memory,
    write_claims,
)
from tests.support.waiting import LIMIT_S

pytestmark = pytest.mark.db

LOCK_INSTANCES = 'FROM instances'
READ_ALLOCATIONS = 'FROM allocations'


@pytest.fixture(params=('postgresql', 'mariadb'))
def store(request, make_store) -> Store:
    """A store on each database that several write to at a time."""
    found: Store = make_store(request.param)
    return found


def meanwhile(
    store: Store, event: str, table: str, work: Callable[[], object]
) -> None:
    """Do work once, when this thread next reads a table with locks.

    :param event: ``before_cursor_execute`` or ``after_cursor_execute``
    """
    mine = threading.get_ident()
    left = [work]

    @listens(store, event)
    def look(conn, cursor, statement, *_):
        locking = table in statement and 'FOR UPDATE' in statement
        if left and locking and threading.get_ident() == mine:
            thread = threading.Thread(target=left.pop())
            thread.start()
            thread.join(LIMIT_S)
            assert not thread.is_alive()


def after(store, table, work) -> None:
    meanwhile(store, 'after_cursor_execute', table, work)


def before_locking(store, work) -> None:
    meanwhile(store, 'before_cursor_execute', LOCK_INSTANCES, work)


def confirm(store: Store, claim) -> None:
    seen = {claim.consumer: claim.host}
    assert store.write(lambda w: lifecycle.confirm(w, seen))


def age(store: Store, table) -> None:
    """Let all claims of a table be made long ago."""
    late = sa.update(table).values(created_at=0.0)
    store.write(lambda w: w.conn.execute(late) and None)


def cancel(store: Store, *uuids: str, check=None) -> list[str]:
    asked = dict.fromkeys(uuids, ReleaseRequest())
    return store.write(lambda w: lifecycle.cancel(w, asked, check))


@pytest.mark.parametrize('moment', [LOCK_INSTANCES, READ_ALLOCATIONS])
def test_claim_is_released_whole_or_stays_whole_when_it_meets_a_release(
    store, moment
):
    """Another instance is released with it, which held its claim before."""
    snapshot = import_two_hosts(store)
    first, late = (claim_on(snapshot, 0) for _ in range(2))
    write_claims(store, first)
    after(store, moment, lambda: write_claims(store, late))
    released = cancel(store, first.consumer, late.consumer)
    assert first.consumer in released
    assert audit_findings(store) == []
    stays = late.consumer not in released
    assert claim_state(store, late.consumer) == ('claimed' if stays else None)
    amount = late.amounts['MEMORY_MB'] if stays else 0
    assert used_memory(store) == [amount, 0]
    assert cancel(store, late.consumer) == [late.consumer] * stays


def test_move_is_released_with_a_claim_that_meets_a_release(store):
    """All of it since the rows were locked."""
    snapshot = import_two_hosts(store)
    first, late = (claim_on(snapshot, 0) for _ in range(2))
    write_claims(store, first)

    def claim_and_move() -> None:
        write_claims(store, late)
        write_claims(
            store, claim_on(snapshot, 1, consumer=late.consumer, move=True)
        )

    after(store, LOCK_INSTANCES, claim_and_move)
    cancel(store, first.consumer, late.consumer)
    assert claim_state(store, late.consumer) is None
    assert audit_findings(store) == []
    assert used_memory(store) == [0, 0]


def test_owner_of_a_claim_that_meets_a_release_is_checked(store):
    snapshot = import_two_hosts(store)
    late = claim_on(snapshot, 0, project_id='owner')
    after(store, LOCK_INSTANCES, lambda: write_claims(store, late))
    seen = {}

    def check(project_of) -> None:
        seen.update(project_of)

    assert cancel(store, late.consumer, check=check) == [late.consumer]
    assert seen == {late.consumer: 'owner'}


def test_new_move_stays_when_the_one_before_expires(store):
    """The one that was late is dropped, and made anew, meanwhile."""
    snapshot = import_two_hosts(store)
    one = claim_on(snapshot, 0)
    write_claims(store, one)
    confirm(store, one)
    move = claim_on(snapshot, 1, consumer=one.consumer, move=True)
    write_claims(store, move)
    age(store, schema.moves)

    def anew() -> None:
        store.write(lambda w: lifecycle.drop_moves(w, [one.consumer]))
        write_claims(store, move)

    before_locking(store, anew)
    expired = store.write(lambda w: released_claims.expire(w, 60.0))
    assert expired == {'claims': 0, 'moves': 0}
    with store.reading() as conn:
        assert claim_queries.show(conn, one.consumer)['moves_to']
    assert audit_findings(store) == []


def test_new_claim_stays_when_the_one_before_expires(store):
    snapshot = import_two_hosts(store)
    one = claim_on(snapshot, 0)
    write_claims(store, one)
    age(store, schema.instances)

    def anew() -> None:
        cancel(store, one.consumer)
        write_claims(store, one)

    before_locking(store, anew)
    expired = store.write(lambda w: released_claims.expire(w, 60.0))
    assert expired == {'claims': 0, 'moves': 0}
    assert claim_state(store, one.consumer) == 'claimed'


def test_starting_instance_stays_when_its_host_lists_others(store):
    """It was there, was released, and is claimed anew on the same host."""
    snapshot = import_two_hosts(store)
    one = claim_on(snapshot, 0)
    write_claims(store, one)
    confirm(store, one)

    def anew() -> None:
        cancel(store, one.consumer)
        write_claims(store, one)

    before_locking(store, anew)
    store.write(lambda w: instance_rows.sync(w, 'compute-1', []))
    assert claim_state(store, one.consumer) == 'claimed'
    assert audit_findings(store) == []


def test_claim_stays_when_what_was_reported_is_removed(store):
    snapshot = import_two_hosts(store)
    one = claim_on(snapshot, 0, is_present=True)
    reported = Instance(uuid=one.consumer, host='compute-2')
    store.write(lambda w: instance_rows.report(w, [reported]))
    before_locking(store, lambda: write_claims(store, one))
    store.write(lambda w: instance_rows.remove(w, [one.consumer]))
    assert claim_state(store, one.consumer) == 'claimed'
    assert audit_findings(store) == []


def test_host_stays_when_it_is_claimed_while_it_is_removed(store):
    """The claim waits for the removal, or the removal sees the claim."""
    snapshot = import_two_hosts(store)
    one = claim_on(snapshot, 0)
    lost = []

    @listens(store, 'after_cursor_execute')
    def look(conn, cursor, statement, *_):
        if 'count(distinct' in statement.lower() and not lost:
            thread = threading.Thread(target=claim)
            lost.append(thread)
            thread.start()
            thread.join(0.5)

    def claim() -> None:
        try:
            write_claims(store, one)
        except Exception as fault:
            lost.append(fault)

    store.write(lambda w: host_rows.remove_service_host(w, 'compute-1'))
    lost[0].join(LIMIT_S)
    assert len(lost) == 2
    assert audit_findings(store) == []


def test_a_confirmation_waits_for_the_claim_of_a_reported_instance(store):
    """It would find nothing if the claim replaced the row."""
    snapshot = import_two_hosts(store)
    mine = claim_on(snapshot, 0, is_present=True)
    reported = Instance(uuid=mine.consumer, host='compute-2')
    store.write(lambda w: instance_rows.report(w, [reported]))
    thread = threading.Thread(target=confirm, args=(store, mine))
    with store.engine.begin() as claiming:
        ClaimBatch(store, [mine], DEFAULT_RATIOS).make(Writer(claiming))
        thread.start()
        thread.join(0.5)
        assert thread.is_alive()
    thread.join(LIMIT_S)
    assert claim_state(store, mine.consumer) == 'confirmed'
    assert audit_findings(store) == []


def test_a_second_copy_of_a_message_claims_nothing_after_the_release(store):
    """The caller sent it twice: the broker does not mark it as redelivered."""
    snapshot = import_two_hosts(store)
    mine = claim_on(snapshot, 0, key='m/0')
    write_claims(store, mine)
    copy = claim_on(snapshot, 1, consumer=mine.consumer, key='m/0')
    lost: list[ClaimLost] = []

    def claim() -> None:
        try:
            write_claims(store, copy)
        except ClaimLost as fault:
            lost.append(fault)

    thread = threading.Thread(target=claim)
    with store.engine.begin() as releasing:
        request = {mine.consumer: ReleaseRequest()}
        assert lifecycle.cancel(Writer(releasing), request)
        thread.start()
        thread.join(0.5)
        assert thread.is_alive()
    thread.join(LIMIT_S)
    claim()
    assert len(lost) == 2
    assert claim_state(store, mine.consumer) is None
    assert audit_findings(store) == []


@pytest.fixture
def impatient(store) -> Iterator[Store]:
    """The store, for which no lock is waited for longer than a second."""
    url = store.engine.url.render_as_string(hide_password=False)
    found = Store.connect(url, timeouts=Timeouts(lock=1.0), max_pool_size=5)
    yield found
    found.dispose()


def test_a_claim_holds_up_the_refusal_of_its_copy(impatient):
    """Else both might be committed: a claim for which nobody has an answer."""
    store = impatient
    snapshot = import_two_hosts(store)
    mine = claim_on(snapshot, 0, key='m/0')
    of = Unrecorded('m/0', [mine.consumer])
    refusal = Outcome(of, None, errors.NoValidHost())
    recording = Outcomes(
        store, EngineOptions(outcome_retention=60.0), Health()
    )
    with store.engine.begin() as claiming:
        ClaimBatch(store, [mine], DEFAULT_RATIOS).make(Writer(claiming))
        with pytest.raises(errors.StoreTimeout):
            recording.record([refusal], has_copies=True)
    with pytest.raises(OutcomeDiffers):
        recording.record([refusal], has_copies=True)
