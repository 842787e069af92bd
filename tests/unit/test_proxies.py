"""Which connections go through a proxy, by the variables that people set."""

from urllib.parse import urlsplit

import pytest

from surgeproof.errors import ConfigError
from surgeproof.proxies import proxy_for

VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "REQUEST_METHOD")


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def proxy_of(url: str) -> str | None:
    found = proxy_for(urlsplit(url))
    return found.netloc if found else None


@pytest.mark.parametrize(
    ("no_proxy", "url", "direct"),
    [
        ("*", "http://a.example/v1", True),
        ("a.example", "http://a.example/v1", True),
        ("A.Example", "http://a.EXAMPLE/v1", True),
        (".example", "http://a.example/v1", True),
        ("*.example", "http://a.example/v1", True),
        ("example", "http://a.example/v1", True),
        ("example", "http://anexample/v1", False),
        ("localhost,a.example", "http://a.example/v1", True),
        ("localhost a.example", "http://a.example/v1", True),
        ("a.example:8000", "http://a.example:8000/v1", True),
        ("a.example:8000", "http://a.example:9000/v1", False),
        ("10.0.0.0/8", "http://10.1.2.3:8000/v1", True),
        ("10.0.0.0/8", "http://11.1.2.3:8000/v1", False),
        ("10.1.2.3", "http://10.1.2.3:8000/v1", True),
        ("10.1.2.3:8000", "http://10.1.2.3:8000/v1", True),
        ("127.0.0.0/8", "http://localhost/v1", False),  # names are not looked up, as in curl
        ("fd00::/8", "http://[fd00::1]:8000/v1", True),
        ("::1", "http://[::1]:8000/v1", True),
        ("[::1]:8000", "http://[::1]:8000/v1", True),
        ("[::1]:8001", "http://[::1]:8000/v1", False),
        ("", "http://a.example/v1", False),
    ],
)
def test_no_proxy_names_hosts_domains_ports_and_networks(
    no_proxy: str, url: str, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", no_proxy)
    assert proxy_of(url) == (None if direct else "proxy:3128")


def test_the_variable_of_the_scheme_comes_before_that_of_all_and_lower_case_before_upper(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ALL_PROXY", "proxy-of-all:1")
    assert proxy_of("http://a/v1") == proxy_of("https://a/v1") == "proxy-of-all:1"
    monkeypatch.setenv("HTTPS_PROXY", "http://u:p@upper:2")
    monkeypatch.setenv("https_proxy", "http://u:p@lower:2")
    assert proxy_of("https://a/v1") == "u:p@lower:2"
    assert proxy_of("http://a/v1") == "proxy-of-all:1"


@pytest.mark.parametrize("value", ["http://[::1", "http://h:99999", "h:x"])
def test_an_address_that_is_none_is_a_sentence(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", value)
    with pytest.raises(ConfigError, match="HTTP_PROXY is not an address"):
        proxy_of("http://a.example/v1")


def test_another_kind_of_proxy_is_refused_where_it_would_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://user:pa55word@127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "excepted.example")
    assert proxy_of("http://excepted.example/v1") is None
    with pytest.raises(ConfigError, match="ALL_PROXY names a socks5 proxy") as caught:
        proxy_of("http://a.example/v1")
    assert "pa55word" not in str(caught.value)
    assert "NO_PROXY=a.example" in str(caught.value)
