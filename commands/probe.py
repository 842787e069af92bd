"""`surgeproof probe`: one request and its timeline."""

import sys
from typing import Any

import click

from surgeproof.commands.options import (
    json_option,
    request_fields,
    request_options,
    secret_options,
    secrets_of,
    tls_of,
    tls_options,
)
from surgeproof.errors import ConfigError
from surgeproof.exit_codes import ExitCode
from surgeproof.outcomes import Outcome
from surgeproof.scenario import ENDPOINTS, ITEM_ENDPOINTS


@click.command()
@click.option("--base-url", help="Base URL, as for OpenAI clients: http://HOST:PORT/v1.")
@click.option("--model", help="Model name. Default: the first that the endpoint lists.")
@click.option("--prompt", default="Say hello.", show_default=True)
@click.option("--max-tokens", default=64, show_default=True)
@click.option("--endpoint", type=click.Choice(ENDPOINTS), default="chat", show_default=True)
@click.option("--timeout", default="60s", show_default=True, help="Limit to connect, to first token, between reads.")
@request_options
@tls_options
@secret_options
@json_option
def probe(
    base_url: str | None,
    model: str | None,
    prompt: str,
    max_tokens: int,
    endpoint: str,
    timeout: str,
    api_key: str | None,
    api_key_command: str | None,
    headers: tuple[tuple[str, str], ...],
    as_json: bool,
    **flags: Any,
) -> None:
    """Send one request and show its timeline. Exit code 0 if it was answered, otherwise 3."""
    import json

    from msgspec import structs

    from surgeproof.loadgen.endpoint import base_url_of, check_endpoint
    from surgeproof.loadgen.probe import measure_lengths
    from surgeproof.loadgen.probe import probe as send
    from surgeproof.scenario_file import load_target, parse_duration_s
    from surgeproof.strict_json import plain

    if max_tokens < 1:
        raise ConfigError("--max-tokens must be at least 1")
    limit = parse_duration_s(timeout, "--timeout")
    target = load_target(
        {
            "base_url": base_url,
            "model": model,
            "endpoint": endpoint,
            "tls": tls_of(flags) or {},
            "timeouts": {"connect_s": limit, "read_s": limit, "first_token_s": limit},
        },
        request_fields(flags),
    )
    secrets = secrets_of(api_key, headers, api_key_command)
    if model is None:
        checked = check_endpoint(target, secrets)
        for note in checked.notes:
            click.echo(f"Note: {note}", err=True)
        base, name = checked.base_url, checked.model
    else:
        base, name = base_url_of(target), model
    result = send(target, base, name, prompt, max_tokens, secrets)
    if result.outcome == Outcome.OK and result.input_tokens and endpoint not in ITEM_ENDPOINTS:
        result = structs.replace(result, lengths=measure_lengths(target, base, name, secrets))
    if as_json:
        click.echo(json.dumps(plain(result), allow_nan=False))
    else:
        from surgeproof.commands.tables import print_probe

        print_probe(result)
    sys.exit(ExitCode.PASS if result.outcome == Outcome.OK else ExitCode.FAIL)
