"""A run's records as files for other programs: JSON lines of everything, CSV and Parquet of the records."""

import csv
from pathlib import Path

import sqlalchemy as sa

from surgeproof.errors import ConfigError
from surgeproof.storage.archive import export_lines, record_rows


def write_jsonl(engine: sa.Engine, run_id: int, path: Path) -> None:
    """The whole run, as `runs import` reads it."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in export_lines(engine, run_id))


def write_csv(engine: sa.Engine, run_id: int, path: Path) -> None:
    """One row a record."""
    names, rows = record_rows(engine, run_id)
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([names, *([_harmless(cell) for cell in row] for row in rows)])


def _harmless(cell: object) -> object:
    """Texts of servers that a spreadsheet would take for formulas are quoted, as spreadsheets do it."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell


def write_parquet(engine: sa.Engine, run_id: int, path: Path) -> None:
    """One row a record, with types.

    Raises:
        ConfigError: pandas or pyarrow is not installed.
    """
    try:
        import pandas as pd
    except ModuleNotFoundError as exc:
        raise ConfigError("Parquet files need: pip install 'surgeproof[ui]'") from exc
    names, rows = record_rows(engine, run_id)
    pd.DataFrame(rows, columns=names).convert_dtypes().to_parquet(path, index=False)
