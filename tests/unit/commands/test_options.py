"""Keys and headers as people give them."""

import pytest

from surgeproof.commands.options import secrets_of


def test_one_header_by_name_whatever_its_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "from-environment")
    found = secrets_of(None, (("authorization", "Bearer from-flag"), ("X-A", "1"), ("x-a", "2")))
    assert found.headers == {"authorization": "Bearer from-flag", "x-a": "2"}


def test_blanks_around_keys_and_headers_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", " sk-1\n")
    assert secrets_of(None, (("X-A", " b c "),)).headers == {"Authorization": "Bearer sk-1", "X-A": "b c"}
    assert secrets_of("sk-2 ", ()).headers == {"Authorization": "Bearer sk-2"}
