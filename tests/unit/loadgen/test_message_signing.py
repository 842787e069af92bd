"""Signed messages: what a stranger, a listener or a slow network can do with them."""

import pytest

from surgeproof.loadgen.message_signing import MessageSigner, RejectedMessageError


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_message_is_verified_by_who_has_the_token() -> None:
    master, worker = MessageSigner("shared"), MessageSigner("shared")
    signed = worker.sign(b"records")
    assert b"records" in signed
    assert master.verify(signed) == b"records"


@pytest.mark.parametrize("place", [0, 4, 20, 28, 36, -1])
def test_a_message_that_was_changed_is_dropped(place: int) -> None:
    """In mark, sender, number, time, mac or content."""
    master, worker = MessageSigner("shared"), MessageSigner("shared")
    signed = bytearray(worker.sign(b"records"))
    signed[place] ^= 1
    with pytest.raises(RejectedMessageError):
        master.verify(bytes(signed))


@pytest.mark.parametrize("message", [b"", b"\xff", b"SPm1", b"SPm1" + bytes(64), b"\x93\xa5stats\x80\xa1x"])
def test_what_is_not_signed_is_dropped(message: bytes) -> None:
    with pytest.raises(RejectedMessageError):
        MessageSigner("shared").verify(message)
    with pytest.raises(RejectedMessageError):
        MessageSigner("shared").verify(MessageSigner("another").sign(message))


def test_a_message_is_taken_once_and_never_by_its_sender() -> None:
    master, worker = MessageSigner("shared"), MessageSigner("shared")
    signed = worker.sign(b"stop")
    assert master.verify(signed) == b"stop"
    with pytest.raises(RejectedMessageError, match="replay"):
        master.verify(signed)
    with pytest.raises(RejectedMessageError, match="replay"):
        worker.verify(worker.sign(b"stop"))


def test_order_may_change_by_a_little_but_not_by_much() -> None:
    master, worker = MessageSigner("shared"), MessageSigner("shared")
    signed = [worker.sign(b"%d" % number) for number in range(3000)]
    assert master.verify(signed[1]) == b"1"
    assert master.verify(signed[0]) == b"0"
    for number in range(2, 3000):
        assert master.verify(signed[number]) == b"%d" % number
    with pytest.raises(RejectedMessageError, match="replay"):
        master.verify(signed[100])


def test_an_old_message_is_dropped_by_a_receiver_that_was_started_again() -> None:
    clock = Clock()
    signed = MessageSigner("shared", clock).sign(b"begin")
    clock.now_s += 299
    assert MessageSigner("shared", clock).verify(signed) == b"begin"
    clock.now_s += 2
    with pytest.raises(RejectedMessageError, match="five minutes"):
        MessageSigner("shared", clock).verify(signed)
