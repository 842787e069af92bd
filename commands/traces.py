"""`surgeproof traces`: inspects, fits, checks, stitches and converts trace files."""

from pathlib import Path
from typing import Any

import click

from surgeproof.commands.options import json_option
from surgeproof.errors import ConfigError


@click.group()
def traces() -> None:
    """Inspect trace files, fit profiles to them and check the fit."""


def _trace_options(command: Any) -> Any:
    for option in (
        click.option(
            "--unit", type=click.Choice(["s", "ms", "us", "ns"]), help="Unit of the times, where it is not clear."
        ),
        click.option("--skip-invalid", is_flag=True, help="Skip malformed rows, and report how many."),
        click.option("--columns", help="Columns of your table: at=NAME,input=NAME,output=NAME[,session=..,unit=ms]."),
        click.option("--format", "format_name", default="auto", show_default=True, help="Format of the file."),
    ):
        command = option(command)
    return command


@traces.command()
@click.argument("file", type=click.Path(path_type=Path))
@_trace_options
@click.option("--keep-clock-grid", is_flag=True, help="Do not spread rounded time stamps.")
@json_option
def inspect(
    file: Path,
    format_name: str,
    columns: str | None,
    skip_invalid: bool,
    unit: str | None,
    keep_clock_grid: bool,
    as_json: bool,
) -> None:
    """Show rate, gaps, dispersion, lengths and clock of a trace; large tables are streamed."""
    import json

    from surgeproof.strict_json import plain
    from surgeproof.traces.describe import describe_file

    facts = describe_file(
        file, format_name, columns=columns, skip_invalid=skip_invalid, undo_grid=not keep_clock_grid, unit=unit
    )
    if as_json:
        click.echo(json.dumps(plain(facts), allow_nan=False))
        return
    from surgeproof.commands.tables import print_trace

    print_trace(facts)


@traces.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="Profile to write (JSON).")
@click.option("--name", help="Name of the profile. Default: the output file's.")
@_trace_options
@click.option(
    "--kind",
    type=click.Choice(["pgar", "poisson", "gamma", "exact"]),
    default="pgar",
    show_default=True,
    help="Arrivals: pgar (bursty model), poisson or gamma (constant rate), or exact (the recording itself).",
)
@click.option("--empirical-gaps", is_flag=True, help="Draw gaps from the trace, not from a Gamma distribution.")
@click.option("--licence", help="Licence of the trace, stored in the profile.")
@click.option("--citation", help="Citation for users of the profile.")
def fit(
    file: Path,
    output: Path,
    name: str | None,
    format_name: str,
    columns: str | None,
    skip_invalid: bool,
    unit: str | None,
    kind: str,
    empirical_gaps: bool,
    licence: str | None,
    citation: str | None,
) -> None:
    """Fit arrivals and request lengths to a trace. The profile contains no prompts and no user data."""
    if output.exists() and file.exists() and output.samefile(file):
        raise ConfigError(f"{output} is the trace itself: name another file to write")
    import msgspec

    from surgeproof.traces.fit import fit_profile
    from surgeproof.traces.reader import read_trace

    trace = read_trace(file, format_name, columns=columns, skip_invalid=skip_invalid, unit=unit)
    profile = fit_profile(
        trace,
        name or output.stem,
        kind=kind,
        empirical_gaps=empirical_gaps,
        licence=licence,
        citation=citation,
    )
    try:
        output.write_bytes(msgspec.json.encode(profile) + b"\n")
    except OSError as exc:
        raise ConfigError(f"cannot write {output}: {exc.strerror}") from exc
    modulator = profile.arrivals.modulator
    bursts = f"bursts a={modulator.a:g} rho={modulator.rho:g}" if modulator else "no bursts beyond the rate"
    click.echo(
        f"{output}: {profile.source.rows} requests, {len(profile.arrivals.rates_per_s)} windows of "
        f"{profile.arrivals.coarse_window_s:g} s, {bursts}, gap shape {profile.arrivals.gap_shape:g}"
    )


@traces.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="JSONL file to write.")
@_trace_options
@click.option("--keep-clock-grid", is_flag=True, help="Do not spread rounded time stamps.")
def convert(
    file: Path,
    output: Path,
    format_name: str,
    columns: str | None,
    skip_invalid: bool,
    unit: str | None,
    keep_clock_grid: bool,
) -> None:
    """Convert a trace to Mooncake's format, which other load testers can read."""
    if output.exists() and file.exists() and output.samefile(file):
        raise ConfigError(f"{output} is the trace itself: name another file to write")
    from surgeproof.traces.mooncake_export import mooncake_lines
    from surgeproof.traces.reader import read_trace

    trace = read_trace(
        file, format_name, columns=columns, skip_invalid=skip_invalid, undo_grid=not keep_clock_grid, unit=unit
    )
    _write(output, "".join(f"{line}\n" for line in mooncake_lines(trace.points)).encode())


@traces.command()
@click.argument("profile")
@click.option("--against", type=click.Path(path_type=Path), required=True, help="Trace file to compare with.")
@_trace_options
@click.option("--seeds", default=99, show_default=True, type=click.IntRange(19, 1000), help="Number of replicates.")
@click.option("--html", type=click.Path(path_type=Path), help="Write an HTML report (extra `report`).")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the report as JSON.")
def report(
    profile: str,
    against: Path,
    format_name: str,
    columns: str | None,
    skip_invalid: bool,
    unit: str | None,
    seeds: int,
    html: Path | None,
    json_path: Path | None,
) -> None:
    """Check whether PROFILE (a bundled name or a file) produces traffic like a trace."""
    import msgspec
    import numpy as np

    from surgeproof.commands.tables import print_goodness
    from surgeproof.traces.draw import pair_lengths
    from surgeproof.traces.goodness import check_profile
    from surgeproof.traces.profile import load_profile
    from surgeproof.traces.reader import read_trace

    if html is not None:
        try:
            from surgeproof.webui.trace_report import trace_report
        except ModuleNotFoundError as exc:
            raise ConfigError("--html needs: pip install 'surgeproof[report]'") from exc
    points = read_trace(against, format_name, columns=columns, skip_invalid=skip_invalid, unit=unit).points
    at_s = np.array([point.at_ns for point in points]) / 1e9
    result = check_profile(load_profile(profile), against.name, at_s, pair_lengths(points), seeds)
    print_goodness(result)
    if html is not None:
        _write(html, trace_report(result).encode())
    if json_path is not None:
        _write(json_path, msgspec.json.encode(result) + b"\n")


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as exc:
        raise ConfigError(f"cannot write {path}: {exc.strerror}") from exc
    click.echo(f"Written to {path}")


@traces.command("stitch")
@click.argument("rates", type=click.Path(path_type=Path))
@click.argument("profile")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="Profile to write (JSON).")
@click.option("--diurnal", is_flag=True, help="Generate new days from the series' daily and weekly pattern.")
@click.option("--days", type=click.FloatRange(0.01, 366), help="Days to generate. Default: as in the series.")
@click.option("--seed", default=1, show_default=True)
def stitch_command(rates: Path, profile: str, output: Path, diurnal: bool, days: float | None, seed: int) -> None:
    """Combine the bursts and lengths of PROFILE with a rate series of days (CSV with t_s and rate_rps)."""
    import msgspec
    import numpy as np

    from surgeproof.traces.profile import load_profile
    from surgeproof.traces.rates import draw_series, fit_diurnal, read_rate_series, stitch

    if days is not None and not diurnal:
        raise ConfigError("--days needs --diurnal: a recorded series has a fixed length")
    series = read_rate_series(rates)
    series_rng, stitch_rng = np.random.default_rng(seed).spawn(2)
    if diurnal:
        shape = fit_diurnal(series)
        click.echo(f"daily and weekly shape explains {shape.r2:.0%} of the log rate; AR(1) {shape.phi:.2f}")
        length = days or len(series.rates_per_s) * series.step_s / 86_400
        series = draw_series(shape, length, series_rng)
    made = stitch(load_profile(profile), series, output.stem, stitch_rng)
    click.echo(f"{made.arrivals.span_s / 86_400:.2f} days at {made.arrivals.mean_rate_per_s:.4g} requests/s")
    _write(output, msgspec.json.encode(made) + b"\n")


@traces.command("list")
def list_profiles() -> None:
    """List the bundled profiles."""
    from surgeproof.traces.profile import bundled_profiles, load_profile

    for name in bundled_profiles():
        source = load_profile(name).source
        click.echo(f"{name}: {source.rows} requests over {source.span_s:g} s from {source.file} ({source.licence})")
