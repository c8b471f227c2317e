"""What counts as a second request to stop."""

from scheduler_service.cmd.signals import StopSignal


def test_a_signal_to_the_process_and_its_group_is_one():
    stopping = StopSignal(same_s=3600)
    assert not stopping.was_set_before()
    stopping.set()
    stopping.set()
    assert stopping.is_set()
    assert not stopping.was_set_before()


def test_a_later_one_is_a_second():
    stopping = StopSignal(same_s=-1)
    assert not stopping.was_set_before()
    stopping.set()
    assert stopping.was_set_before()
