"""Long streams: a million events through sockets' pieces, in constant memory."""

import psutil
import pytest

from surgeproof.loadgen.stream import StreamReader

EVENT = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"word "},"finish_reason":null}]}\n\n'
END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


@pytest.mark.slow
def test_a_million_events_hold_no_more_than_their_arrival_times() -> None:
    """What grows is the list of arrivals, 40 bytes an event before packing; text and bodies are not kept."""
    reader = StreamReader(None)
    reader.on_head(200, {"content-type": "text/event-stream"}, 1)
    stream = EVENT * 1000
    process = psutil.Process()
    before = peak = process.memory_info().rss
    at_ns = 0
    for _ in range(1000):
        for start in range(0, len(stream), 7919):
            at_ns += 1000
            reader.on_body(stream[start : start + 7919], at_ns)
        peak = max(peak, process.memory_info().rss)
    reader.on_body(END, at_ns)
    reader.on_end(at_ns)
    assert reader.outcome() == "ok"
    assert reader.token_events == 1_000_000
    assert peak - before < 60e6
