"""Batches that travel: acknowledged ones are forgotten, others are sent again from the file."""

from pathlib import Path

from surgeproof.loadgen.batch_transfer import BatchReceiver, BatchSender
from surgeproof.loadgen.spool import Batch, SpoolReader, encode_frame, spool_path
from surgeproof.records import StreamRecord


class ManualClock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_what_is_not_acknowledged_is_sent_again_and_lands_once_read(tmp_path: Path) -> None:
    """A channel that loses every second message, in both directions, loses no batch."""
    clock = ManualClock()
    landing = BatchReceiver(tmp_path / "master", lambda index: index % 4)
    sent: list[tuple[int, bytes]] = []
    sender = BatchSender(spool_path(tmp_path / "worker", 3), lambda number, frame: sent.append((number, frame)), clock)
    for number in range(5):
        sender.append(Batch(3, ended=number == 4))
    turns = 0
    while sender.unacknowledged:
        turns += 1
        assert turns < 20
        arrived, sent[:] = sent[::2], []
        for number, frame in arrived:
            assert landing.take(3, frame)
            if turns % 2:
                sender.acknowledged(number)
        clock.now_s += 3
        sender.send_again()
    landing.close()
    found = SpoolReader(spool_path(tmp_path / "master", 3)).read()
    assert {batch.worker for batch in found} == {3}
    assert any(batch.ended for batch in found)
    assert len(found) >= 5
    sender.close()
    sender.remove()
    assert not spool_path(tmp_path / "worker", 3).exists()


def test_nothing_is_sent_again_while_acknowledgements_come(tmp_path: Path) -> None:
    clock = ManualClock()
    sent: list[int] = []
    sender = BatchSender(spool_path(tmp_path, 0), lambda number, _frame: sent.append(number), clock)
    for number in range(10):
        clock.now_s += 1
        sender.append(Batch(0))
        if number:
            sender.acknowledged(number - 1)
    sender.close()
    assert sent == list(range(10))


def test_a_damaged_frame_is_refused(tmp_path: Path) -> None:
    landing = BatchReceiver(tmp_path, lambda index: index % 4)
    frame = encode_frame(Batch(1))
    assert not landing.take(1, frame[:-1])
    assert not landing.take(1, frame + b"x")
    assert not landing.take(1, frame[:-1] + bytes([frame[-1] ^ 1]))
    assert landing.take(1, frame)
    landing.close()
    assert len(SpoolReader(spool_path(tmp_path, 1)).read()) == 1


def test_a_worker_reports_its_own_requests_only(tmp_path: Path) -> None:
    """Records of another's share, under another's number, or of no request at all take nobody's place."""
    landing = BatchReceiver(tmp_path, lambda index: index % 4 if 0 <= index < 100 else -1)
    assert landing.take(1, encode_frame(Batch(1, [record(1, worker=1), record(5, worker=1)])))
    assert not landing.take(1, encode_frame(Batch(1, [record(1, worker=1), record(2, worker=1)])))
    assert not landing.take(1, encode_frame(Batch(1, [record(1, worker=2)])))
    assert not landing.take(1, encode_frame(Batch(2, [record(2, worker=2)])))
    assert not landing.take(1, encode_frame(Batch(1, [record(101, worker=1)])))
    landing.close()
    (batch,) = SpoolReader(spool_path(tmp_path, 1)).read()
    assert [found.plan_index for found in batch.records] == [1, 5]


def record(index: int, worker: int) -> StreamRecord:
    return StreamRecord(
        plan_index=index, request_class="P0", worker=worker, planned_input_tokens=1, planned_output_tokens=1,
        intended_at_ns=index, outcome="ok",
    )  # fmt: skip
