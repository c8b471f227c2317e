"""Messages in any order, delivered repeatedly to two engines.

A model processes the same messages one after the other. What the store holds
has to be what the model holds, and each copy of a message has to get the same
answer, however often it is delivered.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from scheduler_service.scheduler import Scheduler
from scheduler_service.store import schema
from scheduler_service.store.claims import lifecycle
from scheduler_service.store.connection import Store
from tests.support import engines
from tests.support.engines import Message, always, plain_answer
from tests.support.stores import import_inventory

pytestmark = pytest.mark.db

# Two hosts with room for one instance each, so that many are refused.
HOSTS = {
    'hosts': [
        {'host': f'h{n}', 'vcpus': 64, 'memory_mb': 1024, 'local_gb': 100,
         'ram_allocation_ratio': 1.0}
        for n in range(2)
    ],
}  # fmt: skip
FLAVOR = {'vcpus': 1, 'memory_mb': 1024}
NAMES = 'abc'
KINDS = ['select'] * 4 + ['release'] * 2 + ['move', 'confirm', 'drop_moves']
FATES = ['answered', 'answered', 'killed', 'queued']
some = st.lists(
    st.sampled_from(NAMES), min_size=1, max_size=2, unique=True
).map(tuple)
which = st.integers(0, 1)


@dataclasses.dataclass
class Sent:
    """A message of a caller, and what became of it.

    :ivar instances: names in the model
    :ivar answer: of the first processing; None: no daemon got that far
    :ivar seen: how many releases of each instance were answered when it was
        sent
    :ivar redelivered: whether no copy of it was the first delivery
    """

    kind: str
    instances: tuple[str, ...]
    message: Message
    seen: dict[str, int]
    answer: Any = None
    redelivered: bool = False


@dataclasses.dataclass
class Place:
    """What the model holds of an instance."""

    host: str
    confirmed: bool = False
    moves_to: str | None = None


class Histories(RuleBasedStateMachine):
    """Any messages, any deliveries; the model goes by the answers."""

    store: Store
    running: list[Scheduler]
    runs = 0
    sent = Bundle('sent')

    def __init__(self) -> None:
        super().__init__()
        type(self).runs += 1
        # Instances of their own for each history.
        self.uuids = {
            name: f'{self.runs:08d}-0000-4000-8000-00000000000{name}'
            for name in NAMES
        }
        self.names = {uuid: name for name, uuid in self.uuids.items()}
        self.places: dict[str, Place] = {}
        # Instance -> how often its claims, and its move, were released.
        self.released: dict[tuple[str, bool], int] = {}

    def teardown(self) -> None:
        every = list(self.uuids.values())
        self.store.write(lambda w: lifecycle.release(w, every))

    def _send(
        self, kind: str, instances: tuple[str, ...], stamped: bool
    ) -> Sent:
        if kind in ('move', 'drop_moves'):
            instances = instances[:1]
        uuids = [self.uuids[name] for name in instances]
        if kind in ('select', 'move'):
            message = engines.select(uuids, move=kind == 'move', flavor=FLAVOR)
        else:
            message = getattr(engines, kind)(*uuids)
        message.stamped = stamped
        return Sent(kind, instances, message, dict(self.released))

    @rule(
        target=sent,
        kind=st.sampled_from(KINDS),
        names=some,
        stamped=st.booleans(),
        fate=st.sampled_from(FATES),
        engine=which,
    )
    def send(self, kind, names, stamped, fate, engine):
        one = self._send(kind, names, stamped)
        if fate == 'killed':
            # The daemon that had it was killed before it did anything.
            one.message.deliveries += 1
            one.redelivered = True
        elif fate == 'answered':
            # Or was killed before the reply: the model cannot tell.
            self._judge(one, one.message.run(self.running[engine]))
        return one

    @rule(one=sent, engine=which)
    def deliver(self, one, engine):
        self._judge(one, one.message.run(self.running[engine]))

    @rule(one=sent, engine=which)
    def deliver_two_copies_at_once(self, one, engine):
        """The connection of a daemon breaks while it works on a message."""
        if not one.message.deliveries:
            one.message.deliveries, one.redelivered = 1, True
        first = one.message.deliver(self.running[engine], lost=always)
        second = one.message.deliver(self.running[1 - engine])
        answer = plain_answer(second)
        with contextlib.suppress(engines.NotAnswered):
            assert plain_answer(first) == answer
        self._judge(one, answer)

    @rule(one=sent, other=sent, engine=which)
    def deliver_two_messages_at_once(self, one, other, engine):
        """What both get is what one of the two orders gives."""
        if one is other:
            return
        pairs = [
            (one, one.message.deliver(self.running[engine])),
            (other, other.message.deliver(self.running[1 - engine])),
        ]
        answers = [(each, plain_answer(future)) for each, future in pairs]
        before = copy.deepcopy((self.places, self.released))
        known = [each.answer for each, _ in answers]
        try:
            self._judge_all(answers)
        except AssertionError:
            self.places, self.released = before
            for (each, _), answer in zip(answers, known, strict=True):
                each.answer = answer
            self._judge_all(answers[::-1])

    def _judge_all(self, answers: list[tuple[Sent, Any]]) -> None:
        for each, answer in answers:
            self._judge(each, answer)
        assert self._stored() == self.places

    def _judge(self, one: Sent, answer: Any) -> None:
        """Check an answer, and process the message in the model."""
        if one.answer is not None:
            assert answer == one.answer
            return
        one.answer = answer
        if isinstance(answer, dict) and 'error' in answer:
            self._refused(one, answer['error'])
        elif one.kind == 'select':
            self._selected(one, answer)
        elif one.kind == 'move':
            self._moved(one, answer)
        else:
            changed = getattr(self, f'_{one.kind}')(one.instances)
            assert {self.names[uuid] for uuid in answer} == changed

    def _was_released(self, one: Sent) -> bool:
        return any(
            self.released.get((name, move), 0) > one.seen.get((name, move), 0)
            for name in one.instances
            for move in ((False, True) if one.kind == 'move' else (False,))
        )

    def _refused(self, one: Sent, error: str) -> None:
        if error == 'RequestCancelled':
            # Of a message without a time it is not known when it was sent.
            if not one.message.stamped:
                one.seen = {}
            assert self._was_released(one)
        else:
            assert error == 'NoValidHost'
            assert not self._has_room(one)

    def _has_room(self, one: Sent) -> bool:
        """Whether a request fits, so that a refusal would be wrong."""
        free = {'h0': 1, 'h1': 1}
        for place in self.places.values():
            free[place.host] -= 1
            if place.moves_to:
                free[place.moves_to] -= 1
        missing = [n for n in one.instances if n not in self.places]
        if one.kind == 'move' and not missing:
            present = self.places[one.instances[0]].host
            return any(free[host] for host in free if host != present)
        return sum(free.values()) >= len(missing)

    def _hosts(self, answer: Any) -> dict[str, str]:
        return {
            self.names[each['instance_uuid']]: each['selected']['host']
            for each in answer['placements']
        }

    def _selected(self, one: Sent, answer: Any) -> None:
        if one.redelivered:
            assert not self._was_released(one)
        for name, host in self._hosts(answer).items():
            # An instance that has a place keeps it.
            place = self.places.setdefault(name, Place(host))
            assert place.host == host

    def _moved(self, one: Sent, answer: Any) -> None:
        if one.redelivered:
            assert not self._was_released(one)
        for name, host in self._hosts(answer).items():
            place = self.places.get(name)
            if place is None:
                self.places[name] = Place(host)
                continue
            assert place.moves_to in (None, host)
            assert place.host != host
            place.moves_to = host

    def _release(self, names: tuple[str, ...]) -> set[str]:
        for name in names:
            key = name, False
            self.released[key] = self.released.get(key, 0) + 1
        return {n for n in names if self.places.pop(n, None) is not None}

    def _confirm(self, names: tuple[str, ...]) -> set[str]:
        changed = set()
        for name in names:
            place = self.places.get(name)
            if place is None:
                continue
            if place.moves_to is not None:
                place.host, place.moves_to = place.moves_to, None
            elif place.confirmed:
                continue
            place.confirmed = True
            changed.add(name)
        return changed

    def _drop_moves(self, names: tuple[str, ...]) -> set[str]:
        dropped = set()
        for name in names:
            key = name, True
            self.released[key] = self.released.get(key, 0) + 1
            place = self.places.get(name)
            if place is not None and place.moves_to is not None:
                place.moves_to = None
                dropped.add(name)
        return dropped

    @invariant()
    def the_store_holds_what_the_model_holds(self):
        assert self._stored() == self.places

    def _stored(self) -> dict[str, Place]:
        """Return what the store holds, in the words of the model."""
        inst, moves, held = (
            schema.instances,
            schema.moves,
            schema.allocations,
        )
        with self.store.reading() as conn:
            found = {
                self.names[row.uuid]: Place(row.host, row.state == 'confirmed')
                for row in conn.execute(sa.select(inst))
            }
            for row in conn.execute(sa.select(moves)):
                found[self.names[row.instance_uuid]].moves_to = row.host
            rows = conn.execute(
                sa.select(held.c.consumer_uuid).where(
                    held.c.resource_class == 'MEMORY_MB'
                )
            ).all()
        moving = sum(one.moves_to is not None for one in found.values())
        assert len(rows) == len(found) + moving
        return found


@pytest.mark.parametrize(
    ('kind', 'examples'),
    [
        ('sqlite', 8),
        pytest.param('postgresql', 30, marks=pytest.mark.slow),
        pytest.param('mariadb', 15, marks=pytest.mark.slow),
    ],
)
def test_any_history_is_one_that_some_order_gives(kind, examples, make_store):
    store = make_store(kind)
    import_inventory(store, HOSTS)
    running = [engines.start_engine(store), engines.start_engine(store)]

    class Here(Histories):
        pass

    Here.store, Here.running = store, running
    try:
        run_state_machine_as_test(
            Here,
            settings=settings(
                max_examples=examples,
                stateful_step_count=30,
                deadline=None,
                derandomize=True,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        for engine in running:
            engine.stop()
