"""Foreign text on a terminal means itself: no colours, no cursor, no markup."""

import io

import pytest
from rich.table import Table

from surgeproof.commands.terminal import PlainConsole, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("llama-3", "llama-3"),
        ("\x1b]0;title\x07x", "\ufffd]0;title\ufffdx"),
        ("\x1b[2Jgone", "\ufffd[2Jgone"),
        ("over\rwritten", "over\ufffdwritten"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("\u202egnp.exe", "\ufffdgnp.exe"),
        ("größe 模型", "größe 模型"),
        ("\x9b31mred", "\ufffd31mred"),
    ],
)
def test_control_characters_are_shown_as_unknown(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_table_shows_markup_as_it_is_and_no_escape() -> None:
    out = io.StringIO()
    console = PlainConsole(file=out, width=80)
    table = Table()
    table.add_column("tags")
    table.add_row("[/api] [red]x[/] :smile: \x1b[31m")
    console.print(table)
    console.print("model [/api] \x1b]0;t\x07", highlight=False)
    assert "[/api] [red]x[/] :smile: \ufffd[31m" in out.getvalue()
    assert "model [/api] \ufffd]0;t\ufffd" in out.getvalue()
    assert "\x1b" not in out.getvalue()
