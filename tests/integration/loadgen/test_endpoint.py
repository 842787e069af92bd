"""The look at an endpoint before a load: its list of models is a hint, and why it cannot be reached is named."""

import asyncio
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from aiohttp import web

from surgeproof.credentials import Secrets
from surgeproof.errors import EndpointError
from surgeproof.loadgen import endpoint
from surgeproof.loadgen.endpoint import Endpoint, check_endpoint
from surgeproof.sandbox.scripted import ScriptedServer
from surgeproof.scenario import TargetConfig, TlsOptions
from tests.served_app import ServedApp

KEY = "sk-a-secret-of-this-test"
Answer = Callable[[web.Request], web.Response]


@contextmanager
def listing(answer: Answer, delay_s: float = 0.0) -> Iterator[str]:
    async def handler(request: web.Request) -> web.Response:
        await asyncio.sleep(delay_s)
        return answer(request)

    app = web.Application()
    app.router.add_get("/v1/models", handler)
    with ServedApp(app) as served:
        yield f"{served.url}/v1"


def look(base_url: str, **target: object) -> Endpoint:
    config = TargetConfig(base_url=base_url, **target)  # type: ignore[arg-type]
    return check_endpoint(config, Secrets({"Authorization": f"Bearer {KEY}"}))


def models(*names: str, **more: object) -> Answer:
    return saying({"object": "list", "data": [{"id": name, **more} for name in names]})


def saying(body: object, status: int = 200) -> Answer:
    return lambda _: web.json_response(body, status=status)


def test_without_a_name_the_first_model_is_taken() -> None:
    with listing(models("a", "b", max_model_len=4096)) as url:
        assert look(url) == Endpoint(url, "a", 4096)
        assert look(url, model="b") == Endpoint(url, "b", 4096)


@pytest.mark.parametrize(
    "body",
    [
        {"data": [{"id": None}, {"x": 1}, None, {"id": "a"}]},
        [{"id": "a"}, {"id": "b"}],
        ["a", "b"],
        {"models": [{"name": "a", "size": 7}]},
        {"models": [{"model": "a"}]},
    ],
)
def test_other_forms_of_the_list_name_models_too(body: object) -> None:
    with listing(saying(body)) as url:
        assert look(url).model == "a"


def page(status: int, text: str) -> Answer:
    return lambda _: web.Response(status=status, text=text, content_type="text/html")


def redirect(_: web.Request) -> web.Response:
    return web.Response(status=301, headers={"Location": "https://b.example/v1/models"})


def echoing(request: web.Request) -> web.Response:
    return web.json_response({"error": {"message": f"bad key {request.headers['Authorization']}"}}, status=401)


UNLISTED = [
    (models("m:latest"), "does not list the model 'm' (it lists m:latest)"),
    (saying({"error": {"message": "no listing"}}, 403), "HTTP 403 from /models, 'no listing'"),
    (echoing, "HTTP 401 from /models, 'bad key [redacted]'"),
    (saying({"detail": "Not Found"}, 404), "HTTP 404 from /models, 'Not Found'"),
    (saying({"data": []}), "HTTP 200 from /models"),
    (saying({"data": {"m": 1}}), "HTTP 200 from /models"),
    (saying({"data": [{"id": None}, {"id": 5}, None, {"x": 1}]}), "HTTP 200 from /models"),
    (page(200, "<html><style>b {}</style><b>Sign in</b>, please</html>"), "'an HTML page: Sign in , please'"),
    (page(502, ""), "HTTP 502 from /models"),
    (redirect, "/models redirects to https://b.example/v1 (HTTP 301)"),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "words"), UNLISTED)
def test_a_model_that_is_named_is_used_whatever_the_list_says(answer: Answer, words: str) -> None:
    with listing(answer) as url:
        found = look(url, model="m")
        several = look(url, models={"m": 1.0, "n": 1.0})
    assert (found.model, several.model) == ("m", "m")
    assert words in found.notes[0]
    assert "the run goes on with" in found.notes[0]
    assert KEY not in str(found)


@pytest.mark.parametrize(("answer", "words"), UNLISTED[1:])
def test_without_a_name_a_list_without_models_is_an_error_that_quotes_it(answer: Answer, words: str) -> None:
    with listing(answer) as url, pytest.raises(EndpointError, match="lists no models") as caught:
        look(url)
    assert words in str(caught.value)
    assert "Name one with --model" in str(caught.value)
    assert KEY not in str(caught.value)


def test_a_list_that_does_not_come_stops_nobody_who_named_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_TIMEOUT_S", 0.2)

    with listing(models("m"), delay_s=2.0) as url:
        assert "no answer from /models within 0.2 s" in look(url, model="m").notes[0]
        monkeypatch.setattr(endpoint, "_PATIENCE_S", 0.4)
        with pytest.raises(EndpointError, match=r"no answer from /models within 0.4 s.* Name one"):
            look(url)


def test_tls_mistakes_are_named(server_tls: ssl.SSLContext, ca_file: str) -> None:
    with ScriptedServer([], server_tls) as server:
        https = server.base_url
        port = https.split(":")[2]
        with pytest.raises(EndpointError, match=r"certificate is not trusted .*--ca-file, or --insecure"):
            look(https)
        with pytest.raises(EndpointError, match=r"not trusted \(.*IP address mismatch"):
            look(f"https://127.0.0.1:{port}", tls=TlsOptions(ca_file=ca_file))
        with pytest.raises(EndpointError, match="speaks TLS: write https:// in place of http://"):
            look(https.replace("https", "http"))
    with listing(models("m")) as url, pytest.raises(EndpointError, match="does not speak TLS: write http://"):
        look(url.replace("http", "https"))


def test_an_endpoint_that_is_not_there_is_an_error_although_a_model_is_named() -> None:
    with pytest.raises(EndpointError, match=r"not reachable: .*refused.* Is the server up"):
        look("http://127.0.0.1:9/v1", model="m")
