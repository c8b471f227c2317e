"""Times of the database, as operators read and write them."""

from scheduler_service import moments
from scheduler_service.store import clock


def test_a_time_that_was_printed_is_no_later_than_it_was(store):
    """A list from that time on has what happened then."""
    with store.reading() as conn:
        times = {clock.read(conn) for _ in range(2000)}
    printed = {moments.stamp(moments.past(moments.text(t)), 0): t
               for t in times}  # fmt: skip
    assert all(shown <= t for shown, t in printed.items())
