"""Sockets: TLS, proxies, timeouts by phase, reuse, addresses, resources."""

import contextlib
import errno
import resource
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest
import trustme
from gevent.event import Event

from surgeproof.errors import ConfigError, EndpointError
from surgeproof.loadgen import connection, second_attempt
from surgeproof.loadgen.exchange import Exchange
from surgeproof.loadgen.stream import StreamReader
from surgeproof.loadgen.target import Target
from surgeproof.outcomes import Outcome
from surgeproof.sandbox.scripted import ScriptedServer, exchange
from surgeproof.scenario import Timeouts, TlsOptions
from tests.integration.loadgen.client import ask, client_of, ms_since_sent

TOKEN = 'data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
END = 'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


def test_tls_streams_are_stamped_and_timed(server_tls: ssl.SSLContext, ca_file: str) -> None:
    """The first token is 80 ms after the send, and the handshake is a phase of its own."""
    script = [exchange((80, TOKEN), (40, END))]
    with ScriptedServer(script, server_tls) as server, client_of(server.base_url, tls=TlsOptions(ca_file=ca_file)) as c:
        first = ask(c)
        second = ask(c)
    for result in (first, second):
        assert result.reader.outcome() == "ok"
        ttft = ms_since_sent(result, result.reader.first_token_at_ns)
        assert ttft is not None
        assert abs(ttft - 80) < 30
    assert first.tcp_connected_at_ns is not None
    assert first.connected_at_ns is not None
    assert first.connected_at_ns > first.tcp_connected_at_ns
    assert second.connected_at_ns is None


def test_a_large_body_crosses_tls_whole(server_tls: ssl.SSLContext, ca_file: str) -> None:
    """More than one record and one read."""
    text = "x" * 300_000
    big = 'data: {"choices":[{"index":0,"delta":{"content":"' + text + '"}}]}\n\n'
    with (
        ScriptedServer([exchange((0, big), (0, END))], server_tls) as server,
        client_of(server.base_url, tls=TlsOptions(ca_file=ca_file)) as client,
    ):
        assert ask(client).reader.text.answer() == text


def test_an_unknown_certificate_is_refused_unless_told_otherwise(server_tls: ssl.SSLContext) -> None:
    """Verification is on by default; the error says what failed."""
    with ScriptedServer([exchange((0, TOKEN + END))], server_tls) as server:
        with client_of(server.base_url) as client:
            refused = ask(client).reader
        with client_of(server.base_url, tls=TlsOptions(verify=False)) as client:
            accepted = ask(client).reader
    assert refused.outcome() == "error:connect"
    assert "certificate" in (refused.error or "").lower()
    assert accepted.outcome() == "ok"


def test_a_client_certificate_is_shown(
    authority: trustme.CA, server_tls: ssl.SSLContext, ca_file: str, tmp_path: Path
) -> None:
    """The server demands one."""
    authority.configure_trust(server_tls)
    server_tls.verify_mode = ssl.CERT_REQUIRED
    ours = authority.issue_cert("client@example.org")
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    ours.cert_chain_pems[0].write_to_path(str(certificate))
    ours.private_key_pem.write_to_path(str(key))
    shown = TlsOptions(ca_file=ca_file, client_cert=str(certificate), client_key=str(key))
    with ScriptedServer([exchange((0, TOKEN + END))], server_tls) as server:
        with client_of(server.base_url, tls=shown) as client:
            assert ask(client).reader.outcome() == "ok"
        with client_of(server.base_url, tls=TlsOptions(ca_file=ca_file)) as client:
            assert ask(client).reader.outcome() != "ok"


def test_a_missing_certificate_file_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="nowhere.pem"):
        Target("https://localhost/v1", tls=TlsOptions(ca_file="nowhere.pem"))


class Proxy:
    """A forward proxy of twenty lines: CONNECT tunnels, or passes absolute-form requests on."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://user:secret@127.0.0.1:{self._listener.getsockname()[1]}"
        self._held: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """No socket is left to the garbage collector, which would complain in some other test."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(timeout=10)
        for held in self._held:
            with contextlib.suppress(OSError):
                held.shutdown(socket.SHUT_RDWR)
            held.close()

    def _run(self) -> None:
        while True:
            try:
                inside, _ = self._listener.accept()
            except OSError:
                return
            self._held.append(inside)
            head = b""
            while b"\r\n\r\n" not in head:
                head += inside.recv(65536)
            self.heads.append(head)
            verb, target, _ = head.split(b" ", 2)
            authority = target if verb == b"CONNECT" else target.split(b"/")[2]
            host, _, port = authority.decode().rpartition(":")
            outside = socket.create_connection((host, int(port)))
            self._held.append(outside)
            if verb == b"CONNECT":
                inside.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                outside.sendall(head)
            for a, b in ((inside, outside), (outside, inside)):
                threading.Thread(target=self._pump, args=(a, b), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    running = Proxy()
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, running.url)
    monkeypatch.setenv("no_proxy", "")
    yield running
    running.close()


def test_a_plain_request_goes_through_the_proxy_of_the_environment(proxy: Proxy) -> None:
    """Absolute form, with the proxy's credentials and only those."""
    with ScriptedServer([exchange((0, TOKEN + END))]) as server, client_of(server.base_url) as client:
        assert ask(client).reader.outcome() == "ok"
    assert proxy.heads[0].startswith(b"POST http://127.0.0.1:")
    assert b"Proxy-Authorization: Basic dXNlcjpzZWNyZXQ=" in proxy.heads[0]


def test_tls_goes_through_a_tunnel(proxy: Proxy, server_tls: ssl.SSLContext, ca_file: str) -> None:
    with (
        ScriptedServer([exchange((0, TOKEN + END))], server_tls) as server,
        client_of(server.base_url, tls=TlsOptions(ca_file=ca_file)) as client,
    ):
        assert ask(client).reader.outcome() == "ok"
        assert ask(client).reader.outcome() == "ok"
    assert len(proxy.heads) == 1
    assert proxy.heads[0].startswith(b"CONNECT localhost:")


def test_no_proxy_is_obeyed(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ScriptedServer([exchange((0, TOKEN + END))]) as server, client_of(server.base_url) as client:
        assert ask(client).reader.outcome() == "ok"
    assert proxy.heads == []


@pytest.mark.parametrize(
    ("timeouts", "message"),
    [
        (Timeouts(read_s=0.15), "read timeout"),
        (Timeouts(read_s=None, first_token_s=0.15), "first-token timeout"),
        (Timeouts(read_s=None, total_s=0.15), "total timeout"),
    ],
)
def test_each_phase_has_a_timeout_that_names_itself(timeouts: Timeouts, message: str) -> None:
    """A role chunk, then silence."""
    role = 'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
    silent = exchange((0, role), complete_body=False)
    with ScriptedServer([silent]) as server, client_of(server.base_url, timeouts=timeouts) as client:
        reader = ask(client).reader
    assert reader.outcome() == "error:timeout"
    assert message in (reader.error or "")


def test_a_listener_that_never_accepts_is_a_connect_timeout() -> None:
    """Its queue is full, so the handshake is never answered."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        with client_of(f"http://127.0.0.1:{address[1]}/v1", timeouts=Timeouts(connect_s=0.2)) as client:
            reader = ask(client).reader
        for filler in fillers:
            filler.close()
    assert reader.outcome() == "error:connect"
    assert "connect timeout" in (reader.error or "")


def test_long_generations_are_no_error() -> None:
    """No total limit unless asked for: sixty events outlast a read timeout of a fifth of a second."""
    script = [exchange(*([(20, TOKEN)] * 60), (0, END))]
    with ScriptedServer(script) as server, client_of(server.base_url, timeouts=Timeouts(read_s=0.2)) as client:
        reader = ask(client).reader
    assert (reader.outcome(), reader.token_events) == ("ok", 60)


def test_connections_are_reused_and_their_cost_is_apart() -> None:
    """120 ms before the server reads from a new connection; tokens come 50 ms after the request."""
    script = [exchange((50, TOKEN + END))]
    with ScriptedServer(script) as server, client_of(server.base_url) as client:
        warm = [ask(client) for _ in range(5)]
        assert server.connections == 1
    assert [result.connected_at_ns is not None for result in warm] == [True, False, False, False, False]
    with ScriptedServer(script) as server, client_of(server.base_url, reuse=False) as client:
        cold = [ask(client) for _ in range(5)]
        assert server.connections == 5
        assert all(headers["connection"] == "close" for _, headers, _ in server.requests)
    for result in (*warm, *cold):
        ttft = ms_since_sent(result, result.reader.first_token_at_ns)
        assert ttft is not None
        assert abs(ttft - 50) < 30


def test_concurrency_has_no_hidden_cap() -> None:
    """150 requests are in flight at once: each is answered only when all have arrived."""
    with ScriptedServer([exchange((300, TOKEN + END))]) as server, client_of(server.base_url) as client:
        finished = Event()
        results: list[Exchange] = []

        def done(result: Exchange) -> None:
            results.append(result)
            if len(results) == 150:
                finished.set()

        payload = client.target.request_bytes("/chat/completions", b"{}", {}, reuse=True)
        for _ in range(150):
            client.start(Exchange(payload, StreamReader, done))
        assert len(client.in_flight) == 150
        assert finished.wait(20)
        assert server.connections == 150
    assert {result.reader.outcome() for result in results} == {"ok"}


def test_a_refused_first_address_is_left_for_good() -> None:
    """`localhost` may mean ::1 first; the address that answered is kept for the run."""
    with ScriptedServer([exchange((0, TOKEN + END))]) as server, client_of(server.base_url, reuse=False) as client:
        working = client.target.addresses[0]
        refused = (int(socket.AF_INET6), ("::1", server.port, 0, 0))
        client.target.addresses = [refused, working]
        assert ask(client).reader.outcome() == "ok"
        assert client.target.addresses[0] == working


def test_ipv6_is_spoken() -> None:
    try:
        server = ScriptedServer([exchange((0, TOKEN + END))], host="::1")
    except OSError:
        pytest.skip("this host has no IPv6")
    with server, client_of(server.base_url) as client:
        assert ask(client).reader.outcome() == "ok"
        assert server.requests[0][1]["host"] == f"[::1]:{server.port}"


def test_a_refused_connection_is_its_own_class() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with client_of(f"http://127.0.0.1:{port}/v1") as client:
        reader = ask(client).reader
    assert reader.outcome() == "error:connect"
    assert "ECONNREFUSED" in (reader.error or "")


def test_running_out_of_descriptors_is_ours_and_not_the_servers() -> None:
    """EMFILE is error:client_resource."""
    with ScriptedServer([exchange((0, TOKEN + END))]) as server, client_of(server.base_url) as client:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        probe_fd = socket.socket()
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (probe_fd.fileno(), hard))
            probe_fd.close()
            blockers = []
            try:
                while True:
                    blockers.append(socket.socket())
            except OSError as exc:
                assert exc.errno == errno.EMFILE
            reader = ask(client).reader
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for blocker in blockers:
                blocker.close()
    assert reader.outcome() == "error:client_resource"


def test_an_unknown_host_is_told_before_the_run() -> None:
    with pytest.raises(EndpointError, match="no-such-host"):
        Target("http://no-such-host.invalid/v1").resolve()


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8000",
        "ftp://x/v1",
        "http://",
        "http://x:99999/v1",
        "http://x:0/v1",
        "",
        "http://h/v1?x=1",
        "http://u:p@h/v1",
        "http://h/v\u20ac",
        "http://h/a b",
    ],
)
def test_a_base_url_that_cannot_be_used_is_named(url: str) -> None:
    with pytest.raises(ConfigError, match="base URL"):
        Target(url)


def test_a_user_may_replace_and_drop_any_header_of_ours() -> None:
    target = Target("http://h:1/v1", headers={"x-request-id": "mine", "User-Agent": "", "TRACEPARENT": ""})
    ids = {"X-Request-Id": "ours", "traceparent": "ours"}
    head = target.request_bytes("/chat/completions", b"{}", ids, reuse=True).partition(b"\r\n\r\n")[0].lower()
    assert b"x-request-id: mine" in head
    assert b"ours" not in head
    assert b"user-agent" not in head


def test_the_request_is_one_write_with_our_headers_winning() -> None:
    """Head and body are one piece; a user's header replaces ours instead of doubling it."""
    target = Target("http://h:1/v1/", headers={"accept-encoding": "br", "Authorization": "Bearer k"})
    sent = target.request_bytes("/chat/completions", b"{}", {"X-Request-Id": "7"}, reuse=True)
    head, _, body = sent.partition(b"\r\n\r\n")
    assert body == b"{}"
    assert head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert head.lower().count(b"accept-encoding") == 1
    assert b"accept-encoding: br" in head
    assert b"Bearer k" in head


def test_stamps_come_from_the_kernel_on_linux() -> None:
    """A callback that is late by 60 ms does not move the first token."""
    with ScriptedServer([exchange((100, TOKEN), (0, END))]) as server, client_of(server.base_url) as client:
        ask(client)
        hold: Any = client.loop.timer(0.08)
        hold.start(lambda: threading.Event().wait(0.08))
        result = ask(client)
        hold.close()
    ttft = ms_since_sent(result, result.reader.first_token_at_ns)
    assert result.stamp_source == "kernel"
    assert ttft is not None
    assert abs(ttft - 100) < 30


@pytest.mark.parametrize("step_ns", [-2_000_000_000, 30_000_000_000, 120_000_000_000])
def test_a_wall_clock_that_steps_moves_no_latency(step_ns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The realtime clock jumps between the send and the first token; the monotonic one does not."""

    class Stepping:
        monotonic_ns = staticmethod(time.monotonic_ns)

        def time_ns(self) -> int:
            return time.time_ns() + step_ns

    with ScriptedServer([exchange((100, TOKEN), (0, END))]) as server, client_of(server.base_url) as client:
        ask(client)
        monkeypatch.setattr(connection, "time", Stepping())
        result = ask(client)
    ttft = ms_since_sent(result, result.reader.first_token_at_ns)
    assert result.stamp_source == "clock"
    assert ttft is not None
    assert abs(ttft - 100) < 30


def until(holds: Callable[[], bool]) -> None:
    """Let the event loop turn until something holds."""
    with gevent.Timeout(20):
        while not holds():
            gevent.sleep(0.005)


def test_a_closed_client_leaves_nothing_behind() -> None:
    """What was in flight is cancelled and recorded once; no socket stays watched."""
    slow = exchange((0, TOKEN), (1_500, END))
    with ScriptedServer([slow]) as server, client_of(server.base_url) as client:
        ended: list[Exchange] = []
        payload = client.target.request_bytes("/chat/completions", b"{}", {}, reuse=True)
        asked = Exchange(payload, StreamReader, ended.append)
        client.start(asked)
        until(lambda: asked.reader.token_events == 1)
        client.close()
        assert ended == [asked]
        assert asked.reader.outcome() == "cancelled"
        gevent.sleep(0.05)
        assert client.readable == []
        assert not client.in_flight


def test_a_start_that_fails_costs_no_other_stream_a_byte() -> None:
    """The schedule is looked at between receiving and parsing: an error there must not lose what was received."""
    many = exchange(*((2, TOKEN) for _ in range(30)), (2, END))
    with ScriptedServer([many]) as server, client_of(server.base_url) as client:

        def fail() -> None:
            raise RuntimeError("planned")

        client.on_due, client.next_due_ns = fail, 0
        readers = [ask(client).reader for _ in range(3)]
    assert [(reader.outcome(), reader.token_events) for reader in readers] == [("ok", 30)] * 3


def test_a_refusal_that_was_cut_by_the_end_of_the_run_is_not_sent_again() -> None:
    """A 400 that names `stream_options`, still coming when all is cancelled: one request, one end."""
    refusal = exchange(
        (0, '{"error":{"message":"Unknown parameter: stream_options"}'),
        (1_500, "}"),
        http_status=400,
        headers={"Content-Type": "application/json"},
    )
    with ScriptedServer([refusal]) as server, client_of(server.base_url) as client:
        ended: list[Exchange] = []
        request = client.target.request_bytes("/chat/completions", b"{}", {}, reuse=True)
        asked = second_attempt.send(client, request, lambda: request, StreamReader, ended.append)
        until(lambda: asked.reader.http_status == 400)
        client.cancel_all(Outcome.CANCELLED, "the run was interrupted")
    assert [(exchange.retries, exchange.reader.outcome()) for exchange in ended] == [(0, "error:http_400")]
