"""The spool: what was appended is read back, up to the point of a crash."""

import struct
import zlib
from pathlib import Path

import msgspec
import pytest

from surgeproof.loadgen import spool
from surgeproof.loadgen.spool import Batch, SpoolReader, SpoolWriter, encode_frame, is_being_written
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
    batches = [Batch(2, [record(1), record(2)], [sample])]
    assert reader.read() == batches
    # Not confirmed, as after an error of the database: the same again.
    assert reader.read() == batches
    reader.confirm()
    assert reader.read() == []
    writer.append(Batch(2, ended=True))
    assert [batch.ended for batch in reader.read()] == [True]
    writer.close()


@pytest.mark.parametrize("cut", [1, 3, 11, 12, 13, 40])
def test_a_frame_cut_by_a_crash_loses_nothing_before_it(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a.spool"
    whole, torn = encode_frame(Batch(0, [record(1)])), encode_frame(Batch(0, [record(2)]))
    path.write_bytes(whole + torn[:cut])
    reader = SpoolReader(path)
    assert [batch.records[0].plan_index for batch in reader.read()] == [1]
    reader.confirm()
    assert reader.damaged_bytes == 0
    path.write_bytes(whole + torn)
    assert [batch.records[0].plan_index for batch in reader.read()] == [2]


@pytest.mark.parametrize("damage", ["checksum", "length", "mark", "cut"])
def test_a_damaged_frame_costs_itself_only(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "a.spool"
    frames = [bytearray(encode_frame(Batch(0, [record(index)]))) for index in range(4)]
    intact = len(frames[1])
    if damage == "checksum":
        frames[1][-1] ^= 1
    elif damage == "length":
        frames[1][4:8] = b"\xff\xff\xff\x7f"
    elif damage == "mark":
        frames[1][0] = 0
    else:
        del frames[1][intact // 2 :]
    path.write_bytes(b"".join(frames))
    reader = SpoolReader(path)
    assert [batch.records[0].plan_index for batch in reader.read()] == [0, 2, 3]
    reader.confirm()
    assert reader.damaged_bytes == len(frames[1])
    assert reader.read() == []


def test_a_frame_longer_than_a_portion_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "_PORTION_BYTES", 100)
    path = tmp_path / "a.spool"
    path.write_bytes(encode_frame(Batch(0, [record(1) for _ in range(50)])) + encode_frame(Batch(1)))
    reader = SpoolReader(path)
    counts = []
    while batches := reader.read():
        counts += [len(batch.records) for batch in batches]
        reader.confirm()
    assert counts == [50, 0]
    assert reader.damaged_bytes == 0


def test_a_frame_of_another_version_costs_itself_only(tmp_path: Path) -> None:
    path = tmp_path / "a.spool"
    other = msgspec.msgpack.encode({"worker": "seven", "records": 3})
    frame = struct.pack("<4sII", encode_frame(Batch(0))[:4], len(other), zlib.crc32(other)) + other
    path.write_bytes(frame + encode_frame(Batch(0, [record(1)])))
    reader = SpoolReader(path)
    assert [batch.records[0].plan_index for batch in reader.read()] == [1]
    reader.confirm()
    assert reader.damaged_bytes == len(frame)


def test_what_a_full_disk_does_not_take_is_kept_and_written_later(tmp_path: Path) -> None:
    """/dev/full refuses every byte; afterwards the file holds all batches in order."""
    writer = SpoolWriter(tmp_path / "a.spool")
    writer.append(Batch(0, [record(1)]))
    usable = writer._file
    with Path("/dev/full").open("ab", buffering=0) as full:
        writer._file = full
        writer.append(Batch(0, [record(2)]))
        writer.append(Batch(0, [record(3)]))
        assert writer.unwritten_bytes == len(encode_frame(Batch(0, [record(2)]))) * 2
        assert not writer.write_rest()
        writer._file = usable
    assert writer.write_rest()
    writer.close()
    assert [batch.records[0].plan_index for batch in SpoolReader(tmp_path / "a.spool").read()] == [1, 2, 3]


def test_a_spool_is_known_to_be_written_until_its_writer_closes_it(tmp_path: Path) -> None:
    path = tmp_path / "a.spool"
    writer = SpoolWriter(path)
    assert is_being_written(path)
    writer.close()
    assert not is_being_written(path)
