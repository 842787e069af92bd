"""`surgeproof calibrate`: the maximum load this host can generate, and its timing error."""

import click

from surgeproof.commands.options import json_option


@click.command()
@json_option
def calibrate(as_json: bool) -> None:
    """Measure this host's timing error and maximum load, against a local endpoint with known timing."""
    import json

    import msgspec

    from surgeproof.benchmarks.ceiling import measure_ceiling
    from surgeproof.loadgen.ceiling import save_ceiling

    ceiling = measure_ceiling(lambda line: click.echo(line, err=as_json))
    path = save_ceiling(ceiling)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(ceiling)))
    else:
        click.echo(f"Stored in {path}; runs on this host now warn if the plan exceeds 70 % of this load.")
