"""Texts of users and servers on a page: shown as they are. Pure.

Streamlit reads every text as Markdown, with colours, formulas and links of its own.
"""

import re

_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+.!|~<>$:&^-])")


def escaped(text: str) -> str:
    """A text that Markdown shows as it is, in one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
