"""Writes the generated parts of the documents: help texts, and figures of kept benchmark results.

    python docs/generate.py            rewrites docs/commands.md and docs/benchmarks.md
    python docs/generate.py --check    exits with 1 where one of them differs

A generated part is a code block that begins with `Usage: surgeproof ...`, or what stands between the
comments `<!-- results: FILE -->` and `<!-- end of results -->`.
"""

import json
import re
import sys
from pathlib import Path

import click

from surgeproof.commands.main import cli

DOCS = Path(__file__).resolve().parent
RESULTS = DOCS.parent / "benchmarks" / "results"
_HELP = re.compile(r"```\nUsage: surgeproof (?P<command>[a-z ]*[a-z]) ?.*?\n```", re.DOTALL)
_FIGURES = re.compile(r"<!-- results: (?P<file>\S+) -->.*?<!-- end of results -->", re.DOTALL)


def commands_page(text: str) -> str:
    """The page with every command's help as it is now."""
    return _HELP.sub(lambda block: f"```\n{help_of(block['command'])}\n```", text)


def help_of(command: str) -> str:
    """What `surgeproof COMMAND --help` prints at 110 columns."""
    width = {"terminal_width": 110, "max_content_width": 110}
    context = click.Context(cli, info_name="surgeproof", **cli.context_settings | width)
    for word in command.split():
        if isinstance(context.command, click.Group) and word in context.command.commands:
            found = context.command.commands[word]
            context = click.Context(found, context, word, **found.context_settings | width)
    return "\n".join(line.rstrip() for line in context.get_help().strip().splitlines())


def benchmarks_page(text: str) -> str:
    """The page with the figures of each result file that it names."""
    return _FIGURES.sub(
        lambda part: f"<!-- results: {part['file']} -->\n{table_of(part['file'])}\n<!-- end of results -->", text
    )


def table_of(name: str) -> str:
    """One row per case of a result file; the last column is what the client's audit says of that run."""
    report = json.loads((RESULTS / name).read_text("utf-8"))
    host = report["host"]
    lines = [
        (
            f"{report['at'][:10]}, {host['cores']} cores, Python {host['python']}, Linux {host['system']}, "
            f"median of {report['repeats']}:"
        ),
        "",
        (
            "| load | events/s (of C) | CPU, us per event (of C) | first-token error p50 / p99, ms (p99 of C) "
            "| outside its bounds | send lag p99, ms (of C) | audit |"
        ),
        "|---|---|---|---|---|---|---|",
    ]
    for case, figures in report["cases"].items():
        error, lag = figures["ttft_error_ms"], figures["send_lag_ms"]
        c_client, ratio = figures["c_client"], figures["ratio_to_c"]
        audit = ", ".join(f"`{name}`" for name in figures["breaches"]) or "passed"
        lines.append(
            f"| {case} | {figures['events_per_s']:,} ({ratio['events_per_s']:.2f}) "
            f"| {figures['cpu_s_per_million_events']:.1f} ({ratio['cpu_s_per_million_events']:.2f}) "
            f"| {error['p50']:.2f} / {error['p99']:.2f} ({c_client['ttft_error_ms']['p99']:.2f}) "
            f"| {figures['ttft_outside_bounds']:.2%} "
            f"| {lag['p99']:.2f} ({c_client['send_lag_ms']['p99']:.2f}) | {audit} |"
        )
    return "\n".join(lines)


PAGES = {"commands.md": commands_page, "benchmarks.md": benchmarks_page}


def main() -> None:
    """Rewrite the pages, or check them."""
    different = []
    for name, generate in PAGES.items():
        text = (DOCS / name).read_text("utf-8")
        if (fresh := generate(text)) != text:
            different.append(name)
            if "--check" not in sys.argv:
                (DOCS / name).write_text(fresh, "utf-8")
    if "--check" in sys.argv and different:
        sys.exit(f"out of date, run 'make docs': {', '.join(different)}")


if __name__ == "__main__":
    main()
