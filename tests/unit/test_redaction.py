"""Secrets in URLs, headers and texts, in the forms in which they really come."""

import pytest

from surgeproof.redaction import (
    Redactor,
    secrets_of_headers,
    secrets_of_process,
    secrets_of_url,
    shown_url,
    without_userinfo,
)


@pytest.mark.parametrize(
    ("url", "shown", "secrets"),
    [
        ("postgresql://u:pa55word@h:5432/d", "postgresql://u:***@h:5432/d", ["pa55word"]),
        ("postgresql://h/d?user=u&password=pa55word", "postgresql://h/d?user=u&password=***", ["pa55word"]),
        ("postgresql://u:p@ss:word@h/d", "postgresql://u:***@h/d", ["p@ss:word"]),
        ("http://token-only@h/v1", "http://***@h/v1", ["token-only"]),
        ("http://h/v1?api_key=abc&x=1", "http://h/v1?api_key=***&x=1", ["abc"]),
        ("sqlite:///a%20b.db", "sqlite:///a%20b.db", []),
        ("sqlite:////abs/x.db", "sqlite:////abs/x.db", []),
        ("just text", "just text", []),
    ],
)
def test_a_url_is_shown_without_what_it_hides(url: str, shown: str, secrets: list[str]) -> None:
    assert shown_url(url) == shown
    assert secrets_of_url(url) == secrets


def test_user_and_password_are_taken_off() -> None:
    assert without_userinfo("http://u:p@gpu:9464/x@y") == "http://gpu:9464/x@y"
    assert without_userinfo("http://gpu:9464") == "http://gpu:9464"


def test_a_text_loses_every_form_of_a_secret() -> None:
    redact = Redactor(["sk-a/b+c=1234", "abc", "sk-a/b+c=1234-longer"])
    assert redact("key sk-a/b+c=1234 and sk-a%2Fb%2Bc%3D1234, abc") == "key [redacted] and [redacted], abc"
    assert redact("sk-a/b+c=1234-longer") == "[redacted]"


def test_secrets_of_a_command_are_found_where_people_put_them() -> None:
    arguments = [
        "run", "--api-key=sk-one-11", "--header", "X-Key=sk-two-22", "--header=Authorization=Bearer sk-three-33",
        "--db", "postgresql://u:pa55word4@h/d", "--base-url=http://u:pa55word5@h/v1", "--metadata", "a=b",
    ]  # fmt: skip
    environ = {"OPENAI_API_KEY": " sk-six-66 ", "https_proxy": "http://p:pa55word7@proxy:3128", "HOME": "/root"}
    redact = Redactor(secrets_of_process(arguments, environ))
    told = redact(
        "sk-one-11 sk-two-22 sk-three-33 pa55word4 pa55word5 sk-six-66 pa55word7 metadata a=b /root Authorization"
    )
    assert told == " ".join(["[redacted]"] * 7) + " metadata a=b /root Authorization"
    assert "sk-three-33" in secrets_of_headers({"Authorization": "Bearer sk-three-33"})
