"""How far a mirror has filled the store."""

from scheduler_service.store.records import leases
from scheduler_service.store.records.leases import Progress


def read(store):
    with store.reading() as conn:
        return leases.mirror_progress(conn)


def record(store, progress):
    store.write(lambda writer: leases.record_mirror_progress(writer, progress))


def test_progress_is_never_less_than_before(store):
    assert read(store) == Progress.NOTHING
    for progress, reached in (
        (Progress.NOTHING, Progress.NOTHING),
        (Progress.HOSTS, Progress.HOSTS),
        (Progress.NOTHING, Progress.HOSTS),
        (Progress.CAPACITY, Progress.CAPACITY),
        (Progress.HOSTS, Progress.CAPACITY),
    ):
        record(store, progress)
        assert read(store) == reached
