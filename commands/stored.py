"""Commands on stored runs: list, show, tag, export, import, delete, prune; recover killed runs."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from surgeproof.commands.options import RUN_ID, Number, db_option, json_option
from surgeproof.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from surgeproof.storage.store import Store

_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


@click.group()
def runs() -> None:
    """List, show and manage stored runs."""


@runs.command("list")
@db_option
@json_option
def list_command(db: str, as_json: bool) -> None:
    """List runs, the newest first."""
    import json

    from surgeproof.storage.queries import list_runs
    from surgeproof.storage.store import open_engine

    heads = list_runs(open_engine(db, create=False))
    if as_json:
        from surgeproof.ci.json_output import runs_document

        click.echo(json.dumps(runs_document(heads), allow_nan=False))
        return
    from surgeproof.commands.tables import print_runs

    print_runs(heads)


@runs.command()
@click.argument("run_id", type=RUN_ID)
@db_option
@json_option
def show(run_id: int, db: str, as_json: bool) -> None:
    """Show one run: figures, board, audit."""
    import json

    from surgeproof.storage.queries import get_run
    from surgeproof.storage.store import open_engine

    run = get_run(open_engine(db, create=False), run_id)
    if as_json:
        from surgeproof.ci.json_output import run_document

        click.echo(json.dumps(run_document(run), allow_nan=False))
        return
    from surgeproof.commands.tables import print_run

    print_run(run)


def _existing(db: str) -> "Store":
    from surgeproof.storage.store import Store, open_engine

    open_engine(db, create=False).dispose()
    return Store(db)


@runs.command()
@click.argument("run_id", type=RUN_ID)
@click.argument("tags", nargs=-1, required=True, metavar="KEY=VALUE...")
@db_option
def tag(run_id: int, tags: tuple[str, ...], db: str) -> None:
    """Set tags of a run; KEY= removes the tag."""
    given: dict[str, str | None] = {}
    for text in tags:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"tag {text!r} must look like KEY=VALUE")
        given[key] = value or None
    all_tags = _existing(db).tag_run(run_id, given)
    click.echo(f"run {run_id}: " + (" ".join(f"{key}={value}" for key, value in all_tags.items()) or "no tags"))


@runs.command()
@click.argument("run_ids", nargs=-1, required=True, type=RUN_ID, metavar="RUN_ID...")
@db_option
def delete(run_ids: tuple[int, ...], db: str) -> None:
    """Delete runs with all their records."""
    from surgeproof.runs.recovery import is_over
    from surgeproof.storage.queries import unfinished_runs

    store = _existing(db)
    unfinished = [place for place in unfinished_runs(store.engine) if place.id in run_ids]
    running = {place.id for place in unfinished if not is_over(place, db)}
    if running:
        shown = ", ".join(map(str, sorted(running)))
        raise UsageError(f"run {shown} has not ended: stop it first; if it was killed, use 'surgeproof recover'")
    missing = [number for number in run_ids if not store.delete_run(number)]
    store.shrink()
    click.echo(f"{len(run_ids) - len(missing)} runs deleted.")
    if missing:
        raise UsageError(f"no run {', '.join(map(str, missing))}; see 'surgeproof runs list'")


@runs.command()
@click.argument("run_id", type=RUN_ID)
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path),
    help="File: *.jsonl for the whole run, *.csv or *.parquet for its records, *.json for vLLM's bench format.",
)  # fmt: skip
@db_option
def export(run_id: int, output: Path, db: str) -> None:
    """Write a run to a file; the file suffix selects the format."""
    from surgeproof.runs.export import export_run

    export_run(db, run_id, output)
    click.echo(f"Run {run_id} written to {output}")


@runs.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@db_option
def import_command(file: Path, db: str) -> None:
    """Import a run that was exported as JSON lines."""
    from surgeproof.storage.archive import import_lines
    from surgeproof.storage.store import Store

    try:
        with file.open(encoding="utf-8") as lines:
            run_id = import_lines(Store(db), lines)
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"cannot read {file}: {exc}") from exc
    click.echo(f"Imported as run {run_id}.")


@runs.command()
@click.option("--keep-days", type=Number(0, 36_500), help="Delete runs that are older than this many days.")
@click.option("--max-size", help="Delete the oldest runs until the database is smaller: 500MB, 2GB.")
@click.option("--dry-run", is_flag=True, help="Only list the runs that would be deleted.")
@db_option
def prune(keep_days: float | None, max_size: str | None, dry_run: bool, db: str) -> None:
    """Delete old runs by age, by size, or both; runs with the tag `keep` are never deleted."""
    from surgeproof.storage.retention import prune_runs

    if keep_days is None and max_size is None:
        raise ConfigError("no limit given: use --keep-days 90, --max-size 2GB, or both")
    deleted = prune_runs(_existing(db), keep_days, _bytes(max_size) if max_size else None, dry_run=dry_run)
    numbers = f": {', '.join(map(str, deleted))}" if deleted else ""
    click.echo(f"{len(deleted)} runs {'would be deleted' if dry_run else 'deleted'}{numbers}")


def _bytes(text: str) -> int:
    for unit, factor in _UNITS.items():
        number = text.strip().upper().removesuffix(unit)
        if number != text.strip().upper():
            try:
                size = float(number) * factor
            except ValueError:
                break
            if 0 <= size < 1e18:
                return int(size)
            break
    raise ConfigError(f"--max-size: {text!r} is not a size such as 500MB or 2GB")


@click.command()
@click.option("--spool", type=click.Path(path_type=Path), help="Copy of the spool folder of a worker on another host.")
@db_option
def recover(db: str, spool: Path | None) -> None:
    """Store and judge the records that killed runs left in their spools."""
    from surgeproof.commands.board import print_result
    from surgeproof.runs.recovery import Recovery, recover_runs, recover_spool

    found = Recovery([recover_spool(db, spool)], []) if spool else recover_runs(db)
    for note in found.notes:
        click.echo(f"Note: {note}")
    for result in found.results:
        print_result(result)
    click.echo(f"{len(found.results)} runs recovered.")
