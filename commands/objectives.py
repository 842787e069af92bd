"""`surgeproof slo`: checks objectives before a run."""

from pathlib import Path

import click

from surgeproof.commands.options import RUN_ID, Number, db_option, json_option, parse_class_weights
from surgeproof.errors import ConfigError
from surgeproof.records import REQUEST_CLASSES


@click.group()
def slo() -> None:
    """Check objectives before a run."""


@slo.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--rate", type=Number(1e-6, 1e9), help="Total request rate of the run, in requests per second.")
@click.option("--classes", default="P0=5,P1=3,P2=1", show_default=True, help="Traffic share of each class.")
@click.option("--run", "run_id", type=RUN_ID, help="Stored run that shows how alike requests are, and their rates.")
@click.option("--profile", help="Profile whose traffic shows it, behind a simulated server at 80 % load.")
@db_option
@json_option
def plan(
    file: Path, rate: float | None, classes: str, run_id: int | None, profile: str | None, db: str, as_json: bool
) -> None:
    """Show how many requests and minutes each rule in FILE (or preset:NAME) needs for a verdict.

    Requests that are near in time are alike, so that more of them are needed than independent ones: name a run
    or a profile that shows by how much.
    """
    import json

    import msgspec

    from surgeproof.scenario_file import load_slo
    from surgeproof.slo.rules import parse_objectives
    from surgeproof.slo.sample_size import needs

    shares = parse_class_weights(classes)
    bad = [key for key, value in shares.items() if key not in REQUEST_CLASSES or not 0 <= value < 1e9]
    if bad or sum(shares.values()) <= 0:
        raise ConfigError(f"--classes: {classes!r} must give weights of 0 or more for {', '.join(REQUEST_CLASSES)}")
    if run_id is not None and profile is not None:
        raise ConfigError("--run and --profile: give one of them")
    objectives = parse_objectives(load_slo(file))
    if run_id is not None:
        from surgeproof.runs.run_length import needs_after_run

        result = needs_after_run(objectives, db, run_id, rate)
    elif profile is not None:
        from surgeproof.runs.run_length import needs_of_profile

        result = needs_of_profile(objectives, profile, rate, shares)
    else:
        result = needs(objectives, rate, shares)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(result)))
    else:
        from surgeproof.commands.review_tables import print_needs

        print_needs(result)


@slo.command()
def presets() -> None:
    """List the built-in SLO presets."""
    from surgeproof.slo.presets import PRESETS

    for name, (description, rules) in PRESETS.items():
        click.echo(f"{name}: {description}")
        for request_class, texts in rules.items():
            click.echo(f"  {request_class}: {'; '.join(texts)}")
