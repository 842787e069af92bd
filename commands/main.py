"""The command line: registers all commands, maps errors to exit codes, hides secrets.

Imports are inside the commands, so that `--help` is fast.
"""

import os
import sys

import click

from surgeproof import __version__
from surgeproof.commands import (
    calibrate,
    demo,
    examples,
    gate,
    locust,
    objectives,
    probe,
    review,
    run,
    servers,
    stored,
    traces,
)
from surgeproof.commands.output import guard_output
from surgeproof.errors import SurgeproofError
from surgeproof.exit_codes import ExitCode
from surgeproof.redaction import Redactor, secrets_of_process, secrets_of_url


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="surgeproof")
def cli() -> None:
    """Load-test an OpenAI-compatible LLM endpoint with real traffic, and judge it against SLOs.

    Exit codes: 0 PASS, 2 bad usage or configuration, 3 FAIL, 4 INCONCLUSIVE, 5 INVALID or broken
    run, 130 interrupted, 1 crash.
    """


for command in (
    run.run,
    traces.traces,
    probe.probe,
    stored.runs,
    stored.recover,
    gate.gate,
    review.compare,
    review.baseline,
    review.decide,
    review.breaker,
    review.estimate,
    objectives.slo,
    calibrate.calibrate,
    servers.agent,
    servers.sim,
    servers.ui,
    demo.demo,
    examples.examples,
    locust.locust,
):
    cli.add_command(command)


def _hide_secrets_from_process_list(arguments: list[str]) -> None:
    """Other users of the host can read the process list: remove keys, headers and passwords from it."""
    if any(part.startswith(("--api-key", "--header")) or secrets_of_url(part) for part in arguments):
        import setproctitle

        setproctitle.setproctitle(f"surgeproof {arguments[0] if arguments else ''}")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def main() -> None:
    """Entry point: a SurgeproofError is printed as one message and sets the exit code."""
    arguments = sys.argv[1:]
    # NumPy starts a thread for each core as it is imported, which costs CPU seconds; here and in child processes.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if any(not _is_utf8(argument) for argument in arguments):
        click.echo("Error: an argument is not valid UTF-8", err=True)
        sys.exit(ExitCode.USAGE)
    _hide_secrets_from_process_list(arguments)
    guard_output(Redactor(secrets_of_process(arguments, os.environ)))
    try:
        code = cli.main(args=arguments, prog_name="surgeproof", standalone_mode=False)
    except click.exceptions.Exit as exc:
        code = exc.exit_code
    except click.ClickException as exc:
        exc.show()
        code = ExitCode.USAGE
    except click.Abort:
        code = ExitCode.SIGINT
    except SurgeproofError as exc:
        from surgeproof.commands.terminal import printable

        click.echo(f"Error: {printable(str(exc))}", err=True)
        code = exc.exit_code
    sys.exit(code or ExitCode.PASS)
