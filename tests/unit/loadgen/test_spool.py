"""The spool: what was appended is read back, up to the point of a crash."""

from pathlib import Path

import pytest

from surgeproof.loadgen.spool import Batch, SpoolReader, SpoolWriter, encode_frame
from surgeproof.records import HealthSample, StreamRecord


def record(index: int) -> StreamRecord:
    return StreamRecord(
        plan_index=index,
        request_class="P0",
        planned_input_tokens=1,
        planned_output_tokens=1,
        intended_at_ns=index,
        outcome="ok",
        arrivals=b"\x01\x00\x00\x00",
        warnings=("buffered",),
    )


def test_batches_come_back_and_only_once(tmp_path: Path) -> None:
    path = tmp_path / "a.spool"
    writer, reader = SpoolWriter(path), SpoolReader(path)
    sample = HealthSample(5, 0.5, 1, 2, 3, 4, 5)
    writer.append(Batch(2, [record(1), record(2)], [sample]))
    assert list(reader.batches()) == [Batch(2, [record(1), record(2)], [sample])]
    assert list(reader.batches()) == []
    writer.append(Batch(2, ended=True))
    assert [batch.ended for batch in reader.batches()] == [True]
    writer.close()


@pytest.mark.parametrize("cut", [1, 7, 8, 9, 40])
def test_a_frame_cut_by_a_crash_loses_nothing_before_it(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a.spool"
    whole, torn = encode_frame(Batch(0, [record(1)])), encode_frame(Batch(0, [record(2)]))
    path.write_bytes(whole + torn[:cut])
    reader = SpoolReader(path)
    assert [batch.records[0].plan_index for batch in reader.batches()] == [1]
    path.write_bytes(whole + torn)
    assert [batch.records[0].plan_index for batch in reader.batches()] == [2]


def test_a_frame_with_a_wrong_checksum_ends_the_reading(tmp_path: Path) -> None:
    path = tmp_path / "a.spool"
    whole, broken = encode_frame(Batch(0, [record(1)])), bytearray(encode_frame(Batch(0, [record(2)])))
    broken[-1] ^= 1
    path.write_bytes(whole + bytes(broken))
    assert len(list(SpoolReader(path).batches())) == 1
