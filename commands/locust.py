"""`surgeproof locust`: Locust itself, with our locustfile, its flags as they are."""

import os
import sys
from pathlib import Path

import click


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []}, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[LOCUST'S FLAGS]...")
def locust(arguments: tuple[str, ...]) -> None:
    """Start Locust with Surgeproof's users: all of Locust's flags, and --scenario, --slo, --db; --help lists them."""
    from surgeproof import loadgen

    locustfile = Path(loadgen.__file__).with_name("locustfile.py")
    # Locust patches the process that imports it, so it gets this one for itself.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "locust", "-f", str(locustfile), *arguments])  # noqa: S606
