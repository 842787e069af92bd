"""The console that tables are printed on, and foreign text made harmless for terminals."""

import os
import sys
import unicodedata
from typing import Any

from rich.console import Console
from rich.text import Text

_PIPED_COLUMNS = 200
_KEPT = "\n\t"


def printable(text: str) -> str:
    """A text without control characters: names and errors of servers could move the cursor or change a window's title.

    Line ends and tabs stay. Marks of writing direction go too, since they reorder what stands around them.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char in _KEPT or unicodedata.category(char) not in ("Cc", "Cf") else "\ufffd" for char in text
    )


class PlainConsole(Console):
    """A console on which a text means itself: neither markup nor control characters."""

    def render_str(self, text: str, **options: Any) -> Text:
        """A plain text as it is shown."""
        return super().render_str(printable(text), **options | {"markup": False, "emoji": False})

    def sentence(self, text: str | Text, style: str | None = None) -> None:
        """A sentence: wrapped between words on a terminal, in one line for a log, where people search for it."""
        self.print(text, style=style, highlight=False, soft_wrap=not self.is_terminal)


def new_console(*, stderr: bool = False, quiet: bool = False) -> PlainConsole:
    """As wide as the terminal; in a pipeline without COLUMNS, wide enough for whole cells."""
    columns = os.environ.get("COLUMNS", "")
    width_known = stderr or sys.stdout.isatty() or (columns.isdecimal() and int(columns) > 0)
    return PlainConsole(width=None if width_known else _PIPED_COLUMNS, stderr=stderr, quiet=quiet)
