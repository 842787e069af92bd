"""`surgeproof gate`: judges a stored run again."""

import sys
from pathlib import Path

import click

from surgeproof.commands.options import RUN_ID, db_option, json_option, report_options, write_reports_or_say


@click.command()
@click.argument("run_ids", type=RUN_ID, nargs=-1, required=True, metavar="RUN_ID...")
@click.option(
    "--slo", type=click.Path(path_type=Path), help="YAML file of objectives. Default: those of the (first) run."
)
@db_option
@json_option
@report_options
def gate(
    run_ids: tuple[int, ...], slo: Path | None, db: str, as_json: bool, junit: Path | None, markdown: Path | None
) -> None:
    """Judge a stored run again, or repetitions of one scenario together; the exit code is the verdict."""
    import json

    from surgeproof.ci.gate import gate as judge
    from surgeproof.ci.json_output import result_document
    from surgeproof.commands.board import print_result
    from surgeproof.scenario_file import load_slo

    result = judge(db, run_ids, load_slo(slo) if slo else None)
    if as_json:
        click.echo(json.dumps(result_document(result), allow_nan=False))
    else:
        print_result(result)
    write_reports_or_say(result, junit, markdown)
    sys.exit(result.exit_code)
