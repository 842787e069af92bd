"""Options that several commands share, and what they mean."""

import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from surgeproof.errors import ConfigError
from surgeproof.storage.database_url import DEFAULT_DATABASE_URL
from surgeproof.strict_json import JsonObject

if TYPE_CHECKING:
    from surgeproof.credentials import Secrets
    from surgeproof.results import RunResult

db_option = click.option(
    "--db", default=DEFAULT_DATABASE_URL, show_default=True, envvar="SURGEPROOF_DB", help="Database URL."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
RUN_ID = click.IntRange(1, 2**31 - 1)


class Number(click.FloatRange):
    """A finite number in a range."""

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """Reject NaN and infinity, which a range check does not catch."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return float(number)


class Pairs(click.ParamType[tuple[str, str]]):
    """KEY=VALUE."""

    name = "key=value"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, str]:
        """Split at the first `=`; a value that is already split is returned unchanged."""
        if isinstance(value, tuple):
            return value
        key, equals, text = str(value).partition("=")
        if not equals or not key.strip():
            # The value may be a secret, so the message does not repeat it.
            self.fail("must look like KEY=VALUE", param, ctx)
        return key.strip(), text


class ReportFile(click.Path):
    """A file to be written at the end of a run: looked at before the load, not after it."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, dir_okay=False, writable=True)

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Reject a file in a folder that is not there or cannot be written."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        folder = path.absolute().parent
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            self.fail(f"{path} cannot be written: {folder} is not a folder that can be written to", param, ctx)
        return path


def secret_options(command: Any) -> Any:
    """Key and headers for the endpoint."""
    command = click.option(
        "--header", "headers", multiple=True, type=Pairs(), help="Header K=V; K= drops ours; repeatable."
    )(command)
    command = click.option(
        "--api-key-command", help="Command that prints the API key; run again when the key expires or is refused."
    )(command)
    return click.option("--api-key", help="API key (bearer token); prefer the variable OPENAI_API_KEY.")(command)


class JsonFields(click.ParamType[JsonObject]):
    """A JSON object."""

    name = "json"

    def convert(self, value: Any, param: Any, ctx: Any) -> JsonObject:
        """Read it; a value that is already read is returned unchanged."""
        try:
            fields = value if isinstance(value, dict) else json.loads(value)
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict):
            self.fail('must be a JSON object such as {"top_k": 1}', param, ctx)
        return fields


class Temperature(Number):
    """A temperature, or `none` to leave the field out."""

    name = "number|none"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Keep the word none."""
        return "none" if str(value).strip().lower() == "none" else super().convert(value, param, ctx)


def request_options(command: Any) -> Any:
    """Fields of each request's body."""
    for option in (
        click.option("--omit", multiple=True, metavar="FIELD", help="Leave a field of ours out; repeatable."),
        click.option("--extra-body", type=JsonFields(), help="More fields of each request, as a JSON object."),
        click.option("--no-stream", is_flag=True, help="Ask for whole answers, which have no first-token times."),
        click.option("--ignore-eos", is_flag=True, help="Ask the server for full output lengths (vLLM)."),
        click.option(
            "--temperature", type=Temperature(0), help="Temperature of each request; default 0; none leaves it out."
        ),
        click.option(
            "--max-tokens-field",
            type=click.Choice(["max_tokens", "max_completion_tokens"]),
            help="Name of the field with the output length; default max_tokens.",
        ),
    ):
        command = option(command)
    return command


def request_fields(flags: JsonObject) -> JsonObject:
    """The scenario's keys below `target` from the flags of `request_options`; those that were given."""
    fields = {
        name: flags[name] for name in ("max_tokens_field", "temperature", "extra_body") if flags[name] is not None
    }
    if fields.get("temperature") == "none":
        fields["temperature"] = None
    if flags["omit"]:
        fields["omit"] = list(flags["omit"])
    if flags["no_stream"]:
        fields["stream"] = False
    return fields | ({"ignore_eos": True} if flags["ignore_eos"] else {})


def report_options(command: Any) -> Any:
    """Report files for CI pipelines."""
    for option in (
        click.option("--markdown", type=ReportFile(), help="Write the SLO board to a Markdown file."),
        click.option("--junit", type=ReportFile(), help="Write a JUnit file, one case per objective."),
    ):
        command = option(command)
    return command


def write_reports_or_say(result: "RunResult", junit: Path | None, markdown: Path | None) -> None:
    """Write the report files; one that fails is told, and does not change the verdict's exit code."""
    from surgeproof.ci.reports import write_reports

    try:
        write_reports(result, junit, markdown)
    except ConfigError as exc:
        click.echo(f"Error: {exc}", err=True)


def tls_options(command: Any) -> Any:
    """Certificates."""
    for option in (
        click.option("--insecure", is_flag=True, help="Do not check the server's certificate."),
        click.option("--ca-file", type=click.Path(), help="File of CA certificates to trust (PEM)."),
        click.option("--client-cert", type=click.Path(), help="Client certificate (PEM)."),
        click.option("--client-key", type=click.Path(), help="Private key of the client certificate (PEM)."),
    ):
        command = option(command)
    return command


def tls_of(flags: JsonObject) -> JsonObject | None:
    """The scenario's `tls` section from flags; None if no such flag was given."""
    tls = {name: flags[name] for name in ("ca_file", "client_cert", "client_key") if flags[name]}
    return (tls | ({"verify": False} if flags["insecure"] else {})) or None


def secrets_of(
    api_key: str | None, headers: tuple[tuple[str, str], ...], api_key_command: str | None = None
) -> "Secrets":
    """Key and headers from flags over those of the environment; a command's key is made now.

    Raises:
        ConfigError: the command gives no key, or a key is given beside it.
    """
    from surgeproof.credentials import KEY_COMMAND_VARIABLE, Secrets, authorization, check_headers
    from surgeproof.loadgen.api_key import with_key

    environ = dict(os.environ) | ({KEY_COMMAND_VARIABLE: api_key_command} if api_key_command else {})
    if api_key and not api_key_command:
        environ.pop(KEY_COMMAND_VARIABLE, None)
    held = Secrets.from_environment(environ)
    given = held.headers
    if api_key_command and (api_key or authorization(dict(headers))):
        raise ConfigError("--api-key-command makes the key: leave --api-key and --header Authorization out")
    if api_key:
        given["Authorization"] = f"Bearer {api_key.strip()}"
    for name, value in headers:
        # One header by name, whatever its case: the flag's.
        given = {known: text for known, text in given.items() if known.lower() != name.lower()} | {name: value}
    return with_key(check_headers(given, held.api_key_command))


def parse_class_weights(text: str) -> dict[str, float]:
    """Read `P0=5,P1=3,P2=1`.

    Raises:
        ConfigError: it does not have that form.
    """
    pairs = [part.partition("=") for part in text.split(",")]
    try:
        return {name.strip(): float(weight) for name, _, weight in pairs}
    except ValueError:
        raise ConfigError(f"--classes: {text!r} must look like P0=5,P1=3,P2=1") from None
