"""Sealed messages: what a stranger, a listener or a slow network can do with them."""

import pytest

from surgeproof.loadgen.message_seal import ForgedMessageError, Seal


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_message_is_opened_by_who_has_the_token() -> None:
    master, worker = Seal("shared"), Seal("shared")
    sealed = worker.close(b"records")
    assert b"records" in sealed
    assert master.open(sealed) == b"records"


@pytest.mark.parametrize("place", [0, 4, 20, 28, 36, -1])
def test_a_message_that_was_changed_is_dropped(place: int) -> None:
    """In mark, sender, number, time, mac or content."""
    master, worker = Seal("shared"), Seal("shared")
    sealed = bytearray(worker.close(b"records"))
    sealed[place] ^= 1
    with pytest.raises(ForgedMessageError):
        master.open(bytes(sealed))


@pytest.mark.parametrize("message", [b"", b"\xff", b"SPm1", b"SPm1" + bytes(64), b"\x93\xa5stats\x80\xa1x"])
def test_what_is_not_sealed_is_dropped(message: bytes) -> None:
    with pytest.raises(ForgedMessageError):
        Seal("shared").open(message)
    with pytest.raises(ForgedMessageError):
        Seal("shared").open(Seal("another").close(message))


def test_a_copy_is_taken_once_and_never_by_its_sender() -> None:
    master, worker = Seal("shared"), Seal("shared")
    sealed = worker.close(b"stop")
    assert master.open(sealed) == b"stop"
    with pytest.raises(ForgedMessageError, match="copy"):
        master.open(sealed)
    with pytest.raises(ForgedMessageError, match="copy"):
        worker.open(worker.close(b"stop"))


def test_order_may_change_by_a_little_but_not_by_much() -> None:
    master, worker = Seal("shared"), Seal("shared")
    sealed = [worker.close(b"%d" % number) for number in range(3000)]
    assert master.open(sealed[1]) == b"1"
    assert master.open(sealed[0]) == b"0"
    for number in range(2, 3000):
        assert master.open(sealed[number]) == b"%d" % number
    with pytest.raises(ForgedMessageError, match="copy"):
        master.open(sealed[100])


def test_an_old_message_is_dropped_by_a_receiver_that_was_started_again() -> None:
    clock = Clock()
    sealed = Seal("shared", clock).close(b"begin")
    clock.now_s += 299
    assert Seal("shared", clock).open(sealed) == b"begin"
    clock.now_s += 2
    with pytest.raises(ForgedMessageError, match="five minutes"):
        Seal("shared", clock).open(sealed)
