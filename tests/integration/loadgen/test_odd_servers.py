"""Servers that are odder than the wire cases: each line was once a wrong number, a hang or a crash."""

import contextlib
import socket
import ssl
import threading
import time
from pathlib import Path
from typing import Any

import gevent
import pytest
import trustme

from surgeproof.loadgen.request_form import RequestForm
from surgeproof.loadgen.stream import StreamReader
from surgeproof.sandbox.scripted import ScriptedServer, exchange
from surgeproof.scenario import TargetConfig, Timeouts, TlsOptions
from tests.integration.loadgen.client import ask, client_of
from tests.unit.loadgen.test_stream import DONE, FINISH, SSE, delta, read, usage

GOOD = delta(content="a") + FINISH + usage(1) + DONE
CHUNKED = {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"}


def chunk(text: str) -> str:
    return f"{len(text.encode()):x}\r\n{text}\r\n"


def raw(*chunks: tuple[int, str], **changes: Any) -> dict[str, Any]:
    """An exchange whose body bytes, framing included, are written as they are."""
    return exchange(*chunks, framing="close", close="keepalive", **changes)


@pytest.mark.parametrize(
    ("script", "headers"),
    [
        (chunk(GOOD) + "zz\r\n", CHUNKED),
        (GOOD + "\ngarbage", {"Content-Type": "text/event-stream", "Content-Length": str(len(GOOD))}),
        (
            GOOD + "more",
            {"Content-Type": "text/event-stream", "Content-Length": str(len(GOOD)), "Connection": "close"},
        ),
        (
            chunk(GOOD) + "0\r\n\r\nHTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            CHUNKED,
        ),
        (chunk(GOOD) + "0\r\nX-Trailer: 1\r\n\r\n", CHUNKED),
        (f"{len(GOOD):x};ext=1\r\n{GOOD}\r\n0\r\n\r\n", CHUNKED),
    ],
)
def test_what_follows_a_whole_reply_does_not_change_it(script: str, headers: dict[str, str]) -> None:
    """However the bytes were cut, the answer counts; a spoiled connection is not used again."""
    answer = raw((0, script), headers=headers)
    with ScriptedServer([answer, exchange((0, GOOD))]) as server, client_of(server.base_url) as client:
        first, second = ask(client), ask(client)
    assert (first.reader.outcome(), first.reader.token_events, first.reader.http_status) == ("ok", 1, 200)
    assert second.reader.outcome() == "ok"


def test_an_answer_to_nothing_on_an_idle_connection_is_not_taken_for_ours() -> None:
    """A gateway's 408 waits in the kernel while the client is busy: the next request gets a fresh connection."""
    unasked = "HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    late = raw((0, chunk(GOOD) + "0\r\n\r\n"), (50, unasked), headers=CHUNKED)
    with ScriptedServer([late, exchange((0, GOOD))]) as server, client_of(server.base_url) as client:
        ask(client)
        time.sleep(0.15)
        second = ask(client)
        assert server.connections == 2
    assert second.reader.outcome() == "ok"
    assert second.reader.headers_at_ns is not None
    assert second.sent_at_ns is not None
    assert second.reader.headers_at_ns > second.sent_at_ns


def test_finished_requests_leave_nothing_in_the_deadlines() -> None:
    with ScriptedServer([exchange((0, GOOD))]) as server, client_of(server.base_url) as client:
        for _ in range(5):
            ask(client)
        assert all(not watch for _, _, watch in client._deadlines)


def test_an_address_list_that_another_request_reorders_is_kept_per_request() -> None:
    """Two connects at once, the first address dead: both reach the good one."""
    with socket.create_server(("127.0.0.1", 0)) as dead:
        port = dead.getsockname()[1]
    with ScriptedServer([exchange((0, GOOD))]) as server, client_of(server.base_url, reuse=False) as client:
        good = client.target.addresses[0]
        client.target.addresses = [(good[0], ("127.0.0.1", port)), good]
        outcomes: list[str] = []
        jobs = [gevent.spawn(lambda: outcomes.append(ask(client).reader.outcome())) for _ in range(6)]
        gevent.joinall(jobs, timeout=20)
    assert outcomes == ["ok"] * 6


def test_a_refusal_of_stream_options_is_answered_once_only() -> None:
    """Even when the user put them into extra_body."""
    refusal = exchange(
        (0, '{"error":{"message":"Unknown parameter: stream_options"}}'),
        http_status=400,
        headers={"Content-Type": "application/json"},
    )
    body = {"model": "m", "messages": [], "stream": True, "stream_options": {"include_usage": True}}
    with ScriptedServer([refusal]) as server, client_of(server.base_url) as client:
        reader = ask(client, body).reader
        assert len(server.requests) == 2
    assert reader.outcome() == "error:http_400"
    config = TargetConfig(extra_body={"stream_options": {"include_usage": True}})
    assert "stream_options" not in RequestForm(config, "m").body("x", 1, None, include_usage=False)


def test_a_close_notify_without_fin_does_not_leave_a_dead_connection(tmp_path: Path) -> None:
    """TLS ended in the same segment as the reply: the next request opens a new connection."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    listener = socket.create_server(("127.0.0.1", 0))
    kept: list[Any] = []

    def serve() -> None:
        for _ in range(2):
            plain, _ = listener.accept()
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = context.wrap_bio(incoming, outgoing, server_side=True)

            def pump(step: Any, plain: Any = plain, incoming: Any = incoming, outgoing: Any = outgoing) -> Any:
                while True:
                    try:
                        result = step()
                    except ssl.SSLWantReadError:
                        if outgoing.pending:
                            plain.sendall(outgoing.read())
                        incoming.write(plain.recv(65536))
                        continue
                    return result

            pump(tls.do_handshake)
            plain.sendall(outgoing.read())
            pump(lambda: tls.read(65536))  # noqa: B023
            head = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: {len(GOOD)}\r\n\r\n"
            tls.write((head + GOOD).encode())
            with contextlib.suppress(ssl.SSLWantReadError):
                tls.unwrap()
            plain.sendall(outgoing.read())
            kept.append(plain)

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    url = f"https://localhost:{listener.getsockname()[1]}/v1"
    with client_of(url, tls=TlsOptions(ca_file=str(tmp_path / "ca.pem")), timeouts=Timeouts(read_s=3)) as client:
        outcomes = [ask(client).reader.outcome() for _ in range(2)]
    server.join(timeout=10)  # the reply can be read before its connection is in the list
    listener.close()
    for plain in kept:
        plain.close()
    assert outcomes == ["ok", "ok"]


@pytest.mark.parametrize("value", [99 * 10**17, 10**30, -1, 1.5, "7", True, None, [], float("nan")])
def test_a_count_that_is_no_count_is_left_out(value: Any) -> None:
    reader = read(delta(content="a"), FINISH + usage(value).replace("NaN", "null") + DONE)
    assert (reader.outcome(), reader.usage.output_tokens) == ("ok", None)


def test_texts_of_the_server_fit_into_any_database() -> None:
    finish = 'data: {"choices":[{"index":0,"delta":{},"finish_reason":"\\ud800' + "x" * 5000 + '"}]}\n\n'
    reader = read(delta(content="a"), finish + DONE)
    assert reader.choices.finish_reason is not None
    assert len(reader.choices.finish_reason.encode()) <= 100


@pytest.mark.parametrize("done", ["data: [DONE] \n\n", "data:  [DONE]\n\n", 'data: "[DONE]"\n\n', "data:[DONE]\n\n"])
def test_done_is_known_in_its_variants(done: str) -> None:
    assert read(delta(content="a"), FINISH + done).saw_done


@pytest.mark.parametrize(
    "odd",
    ["event: ping\ndata: ping\n\n", "data: null\n\n", 'data: {"type":"ping","detail":"x"}\n\n', "id: 1\n\n"],
)
def test_events_that_are_not_for_us_change_nothing(odd: str) -> None:
    reader = read(odd, delta(content="a"), odd + FINISH + DONE)
    assert (reader.outcome(), reader.first_token_at_ns) == ("ok", 20_000_000)


@pytest.mark.parametrize("error", [{"code": 0, "message": ""}, {"message": None}, {}, "", None, 0])
def test_an_empty_error_field_is_no_error(error: Any) -> None:
    import json

    body = {"choices": [{"index": 0, "delta": {"content": "a"}}], "error": error}
    assert read(f"data: {json.dumps(body)}\n\n", FINISH + DONE).outcome() == "ok"


def test_deep_nesting_is_the_servers_fault() -> None:
    reader = read(delta(content="a"), "data: " + "[" * 60_000 + "\n\n" + FINISH + DONE)
    assert reader.outcome() == "error:malformed"


def test_a_first_event_that_counts_no_token_yet_counts_as_one() -> None:
    """Usage of 0 beside the first token: three tokens at 10, 20, 30 ms are 10 ms apart."""
    first = delta(content="a").replace("}]}", '}], "usage": {"completion_tokens": 0}}')
    reader = read(first, delta(content="b"), delta(content="c"), FINISH + usage(3) + DONE)
    assert reader.tpot_ns() == 10_000_000


def test_two_choices_are_two_with_and_without_their_text() -> None:
    """Under load no text is kept; the facts are the same."""
    second = 'data: {"choices":[{"index":1,"delta":{"content":"b"},"finish_reason":null}]}\n\n'
    plain = 'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
    for keep_text in (True, False):
        reader = StreamReader(2, keep_text=keep_text)
        reader.on_head(200, SSE, 0)
        for at_ns, piece in enumerate((second, plain, plain, FINISH + usage(4) + DONE), 1):
            reader.on_body(piece.encode(), at_ns * 1000)
        reader.on_end(9000)
        assert reader.tpot_ns() is None
        assert "output_over_limit" not in reader.all_warnings()


def test_an_answer_is_whole_only_when_every_choice_is() -> None:
    second = 'data: {"choices":[{"index":1,"delta":{"content":"b"}}]}\n\n'
    reader = StreamReader(9)
    reader.on_head(200, SSE, 1)
    reader.on_body((delta(content="a") + second + FINISH).encode(), 5)
    reader.on_fault("error:reset", "reset", 9)
    assert reader.outcome() == "error:reset"


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_calls": [{"type": "custom", "custom": {"name": "f", "input": "x"}}]},
        {"reasoning_details": [{"type": "reasoning.text", "text": "x"}]},
    ],
)
def test_newer_output_fields_are_output(fields: dict[str, Any]) -> None:
    assert read(delta(**fields), FINISH + DONE).outcome() == "ok"


def test_the_last_token_without_its_blank_line_has_the_time_of_its_read() -> None:
    reader = StreamReader(9)
    reader.on_head(200, SSE, 1)
    reader.on_body((FINISH + delta(content="a").rstrip("\n")).encode(), 300)
    reader.on_end(1100)
    assert (reader.outcome(), reader.last_token_at_ns) == ("ok", 300)


def test_a_body_that_is_plain_text_keeps_what_it_said() -> None:
    reader = read("upstream error\n", headers={"content-type": "text/plain"})
    assert reader.outcome() == "error:truncated"
    assert "upstream error" in (reader.error or "")


def test_coded_bodies_end_where_their_coding_ends() -> None:
    """Padding after a gzip member, bytes after [DONE], two zstd frames in one read."""
    import gzip

    from backports import zstd

    gzipped = SSE | {"content-encoding": "gzip"}
    assert read(gzip.compress(GOOD.encode()) + b"\0" * 8, headers=gzipped).outcome() == "ok"
    assert read(gzip.compress(GOOD.encode()), b"junk", headers=gzipped).outcome() == "ok"
    frames = zstd.compress(delta(content="a").encode()) + zstd.compress((FINISH + DONE).encode())
    assert read(frames, headers=SSE | {"content-encoding": "zstd"}).outcome() == "ok"
