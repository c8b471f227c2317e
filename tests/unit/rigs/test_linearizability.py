"""Orders of operations on a register, which holds the last value written."""

from typing import NamedTuple

from tests.rigs.linearizability import UNANSWERED, find_order


class Op(NamedTuple):
    start: float
    end: float
    write: int | None = None
    read: int | None = None
    ended_by: int | None = None

    @property
    def effect(self):
        return self.write

    def precedes(self, other):
        return self.ended_by is not None and self.ended_by == other.write


def steps(value: int, one: Op):
    if one.write is not None:
        return (one.write,)
    return (value,) if one.end == UNANSWERED or value == one.read else ()


def order(*operations: Op, **how):
    return find_order(operations, 0, steps, **how)


def test_no_operations_have_an_order():
    assert order() == []


def test_an_operation_comes_after_those_that_were_answered_before():
    write, read = Op(1, 2, write=7), Op(3, 4, read=7)
    assert order(read, write) == [write, read]
    assert order(Op(1, 2, read=7), Op(3, 4, write=7)) is None


def test_operations_at_the_same_time_have_any_order():
    write, late, early = Op(1, 5, write=7), Op(2, 4, read=7), Op(2, 3, read=0)
    assert order(write, late, early) == [early, write, late]


def test_an_answer_that_goes_back_in_time_has_no_order():
    write = Op(1, 9, write=7)
    assert order(write, Op(2, 3, read=7), Op(4, 5, read=0)) is None


def test_an_unanswered_operation_happens_late_or_never():
    lost = Op(1, UNANSWERED, write=7)
    zero, seven = Op(2, 3, read=0), Op(8, 9, read=7)
    assert order(lost, zero) == [zero]
    assert order(lost, zero, seven) == [zero, lost, seven]


def test_an_unanswered_operation_happens_once_and_not_before_it_was_sent():
    lost, again = Op(5, UNANSWERED, write=7), Op(12, 13, write=1)
    seen, later = Op(10, 11, read=7), Op(14, 15, read=7)
    assert order(lost, seen, again) is not None
    assert order(lost, seen, again, later) is None
    assert order(lost, Op(1, 2, read=7)) is None


def test_unanswered_operations_that_do_the_same_are_tried_once():
    lost = [Op(n, UNANSWERED, write=n % 2) for n in range(40)]
    assert order(*lost, Op(50, 51, read=9), most_states=2000) is None
    assert order(*lost, Op(50, 51, read=1)) == [lost[1], Op(50, 51, read=1)]


def test_what_another_operation_ends_happens_before_it_or_never():
    ended, end = Op(0, 9, write=7, ended_by=1), Op(2, 3, write=1)
    assert order(ended, end, Op(4, 5, read=1)) == [
        ended,
        end,
        Op(4, 5, read=1),
    ]
    assert order(ended, end, Op(4, 5, read=7)) is None
    lost = Op(0, UNANSWERED, write=7, ended_by=1)
    assert order(lost, end, Op(4, 5, read=7)) is None
    assert order(lost, Op(1, 5, read=7), end) is not None
    assert order(lost, Op(2, 3, write=2), Op(4, 5, read=7)) is not None
    # One without an answer ends nothing as long as it need not have happened.
    maybe = Op(2, UNANSWERED, write=1)
    assert order(ended, maybe, Op(12, 13, read=7)) == [
        ended,
        Op(12, 13, read=7),
    ]
    assert order(ended, maybe, Op(4, 5, read=1), Op(12, 13, read=7)) is None
