"""Keys that expire: when their command runs, what it may print, what waits for it."""

import base64
import json
from itertools import count
from typing import Any

import gevent
import pytest

from surgeproof.credentials import Secrets, expires_at_s
from surgeproof.errors import ConfigError
from surgeproof.loadgen.api_key import ApiKey, key_of_command, with_key


def token(claims: Any) -> str:
    """A JSON Web Token, as RFC 7515 (section 3) writes it: base64url without padding, dots between its three parts."""
    parts = (base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({}, claims))
    return ".".join([*parts, "c2ln"])


# The example of RFC 7519, section 3.1: it expires at 1300819380.
RFC_EXAMPLE = (
    "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9"
    ".eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ"
    ".dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
)


@pytest.mark.parametrize(
    ("key", "end_s"),
    [
        (RFC_EXAMPLE, 1300819380),
        (token({"exp": 12.5}), 12.5),
        (token({"sub": "x"}), None),
        (token({"exp": True}), None),
        (token({"exp": "soon"}), None),
        (token([1]), None),
        ("sk-abc", None),
        ("a.b.c", None),
        ("a.\u20ac.c", None),
        ("", None),
    ],
)
def test_the_end_of_a_key_is_known_where_it_tells_it(key: str, end_s: float | None) -> None:
    assert expires_at_s(key) == end_s


class Keys:
    """A key whose command counts, on a clock that the test sets."""

    def __init__(self, first: str = "key-0", *, fails: bool = False) -> None:
        self.now_s, self.runs, self.fails = 1000.0, 0, fails
        self.numbers = count(1)
        self.used: list[str] = []
        self.ends: list[bool] = []
        held = Secrets({"authorization": f"Bearer {first}", "X-Org": "o"}, "make-key")
        self.key = ApiKey(
            held, lambda new: self.used.append(new.headers["authorization"]), lambda: self.now_s, self.make
        )

    def make(self, command: str) -> str:
        assert command == "make-key"
        self.runs += 1
        if self.fails:
            raise ConfigError("the command failed")
        return f"key-{next(self.numbers)}"

    def refuse(self, *payloads: bytes) -> list[bool]:
        """Requests that were answered with 401 at once; what each was told."""
        self.ends.clear()
        for payload in payloads:
            self.key.renew(payload, self.ends.append)
        gevent.sleep(0.01)
        return self.ends


def test_one_new_key_serves_all_that_wait() -> None:
    keys = Keys()
    assert keys.refuse(*[b"Bearer key-0\r\n"] * 5) == [True] * 5
    assert (keys.runs, keys.used) == (1, ["Bearer key-1"])


def test_a_request_that_left_with_an_older_key_needs_no_new_one() -> None:
    keys = Keys()
    keys.refuse(b"Bearer key-0\r\n")
    assert keys.refuse(b"Bearer key-0\r\n") == [True]
    assert keys.runs == 1


def test_an_endpoint_that_refuses_every_key_runs_the_command_each_five_seconds_at_most() -> None:
    keys = Keys()
    assert keys.refuse(b"Bearer key-0\r\n") == [True]
    assert keys.refuse(*[b"Bearer key-1\r\n"] * 3) == [False] * 3
    keys.now_s += 5.0
    assert keys.refuse(b"Bearer key-1\r\n") == [True]
    assert keys.runs == 2


def test_a_command_that_fails_leaves_the_key_as_it_is() -> None:
    keys = Keys(fails=True)
    assert keys.refuse(b"Bearer key-0\r\n", b"Bearer key-0\r\n") == [False, False]
    assert keys.used == []


def test_the_same_key_again_is_no_new_one() -> None:
    keys = Keys("key-1")
    assert keys.refuse(b"Bearer key-1\r\n") == [False]
    assert keys.used == []


def test_a_key_is_renewed_before_its_end() -> None:
    """It has ended a minute ago: at once. The new one tells no end, so that is all."""
    keys = Keys(token({"exp": 940}))
    keys.key.start()
    gevent.sleep(0.01)
    keys.key.close()
    assert keys.used == ["Bearer key-1"]


def test_the_command_prints_the_key() -> None:
    assert key_of_command("echo sk-1") == "sk-1"
    assert with_key(Secrets({"X-Org": "o"}, "printf sk-2")).headers == {"X-Org": "o", "Authorization": "Bearer sk-2"}
    held = Secrets({"AUTHORIZATION": "Bearer sk-3"}, "exit 1")
    assert with_key(held) is held


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("echo no-such-user-hunter2 >/dev/null; echo a; echo sign in first >&2; exit 3", "exit code 3: sign in first"),
        ("true hunter2", "not 0 words"),
        ("echo hunter2 expires in 5 min", "not 5 words"),
        ("printf '\\342\\202\\254'", "non-Latin-1"),
    ],
)
def test_a_command_that_gives_no_key_is_told_without_its_text(command: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        key_of_command(command)
    assert "hunter2" not in str(caught.value)
