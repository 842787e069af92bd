"""The short cut for plain tokens: events that differ from the last one in their text only. Pure.

Nearly all reads of a stream under load are of this kind, and decoding JSON is half of their cost. What
stands before and after the text of a plain token is learned once; a read that consists of nothing but
that form, with texts that JSON writes as they are, is counted without being decoded.
"""

import re
from typing import Any

_CONTENT = re.compile(rb'"content"\s*:\s*"')
_is_plain_text = re.compile(rb"[ !#-\[\]-~]+").fullmatch  # ASCII that JSON writes as it is


class TokenForm:
    """The form of one stream's plain tokens, where one is known."""

    __slots__ = ("_data_form", "_form", "_learning")

    def __init__(self) -> None:
        self._form: tuple[bytes, bytes] | None = None
        self._data_form = (b"", b"")
        self._learning = True

    def texts(self, data: bytes) -> list[bytes]:
        """The texts of the events that a read holds, if they are all of the form; otherwise none."""
        if self._form is None:
            return []
        prefix, suffix = self._form
        if not (data.startswith(prefix) and data.endswith(suffix)):
            return []
        texts = data[len(prefix) : -len(suffix)].split(suffix + prefix)
        if not (all(texts) and _is_plain_text(b"".join(texts))):
            return []
        self._learning = True
        return texts

    def text(self, data: bytes) -> bytes:
        """The text of one event, if its data are of the form; otherwise empty."""
        if self._form is None:
            return b""
        prefix, suffix = self._data_form
        start, end = len(prefix), len(data) - len(suffix)
        found = start < end and data.startswith(prefix) and data.endswith(suffix)
        if not found or _is_plain_text(data, start, end) is None:
            return b""
        self._learning = True
        return data[start:end]

    def learn(self, data: bytes, content: str) -> None:
        """Take the event of a plain token as the form of those to come.

        A form that no later event has matched, because each has an id of its own, is the last one learned.
        """
        if not self._learning:
            return
        match = _CONTENT.search(data)
        if match is None or data.count(b'"content"') != 1 or b"\n" in data:
            return
        start, end = match.end(), match.end() + len(content)
        if data[start : end + 1] == content.encode("ascii", "replace") + b'"':
            self._learning = False
            self._data_form = (data[:start], data[end:])
            self._form = (b"data: " + data[:start], data[end:] + b"\n\n")

    def forget(self) -> None:
        """Never take the short cut again: the stream has failed."""
        self._form, self._learning = None, False


def plain_content(chunk: Any) -> str | None:
    """The text of a chunk that is one more piece of choice 0's answer and says nothing else; otherwise None."""
    try:
        choices = chunk["choices"]
        choice = choices[0]
        delta = choice["delta"]
        content = delta["content"]
        plain = (
            len(choices) == 1
            and len(delta) == 1
            and content.__class__ is str
            and content != ""
            and choice["index"] == 0
            and not choice["finish_reason"]
            and "usage" not in chunk
            and "error" not in chunk
            and "usage" not in choice
        )
    except (KeyError, IndexError, TypeError):
        return None
    return content if plain else None
