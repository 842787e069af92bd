"""The console that tables are printed on."""

import os
import sys

from rich.console import Console

_PIPED_COLUMNS = 200


def new_console() -> Console:
    """As wide as the terminal; in a pipeline without COLUMNS, wide enough for whole cells."""
    width_known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if width_known else _PIPED_COLUMNS)
