"""Commands that serve until they are stopped: the GPU agent, the simulated engine, the web UI."""

import os
import sys
from pathlib import Path
from typing import Any

import click

from surgeproof.commands.options import Pairs, db_option
from surgeproof.errors import ConfigError


@click.command()
@click.option(
    "--bind", default="127.0.0.1:9464", show_default=True, help="HOST:PORT; any address but loopback needs a token."
)
@click.option("--token-env", help="Environment variable with the bearer token that clients must send.")
@click.option("--interval", default="100ms", show_default=True, help="Time between samples.")
@click.option("--gpus", "chosen", envvar="CUDA_VISIBLE_DEVICES", help="GPU UUIDs or NVML indexes. Default: all.")
def agent(bind: str, token_env: str | None, interval: str, chosen: str | None) -> None:
    """Serve samples of this host's GPUs over HTTP (needs the extra `gpu`); starts without a GPU, too."""
    from surgeproof.errors import UsageError
    from surgeproof.gpu.agent import Sampler, serve_agent
    from surgeproof.gpu.nvml import open_nvml
    from surgeproof.scenario_file import parse_duration_s

    host, _, port = bind.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"--bind: {bind!r} must look like 127.0.0.1:9464")
    token = os.environ.get(token_env) if token_env else None
    if token_env and not token:
        raise ConfigError(f"--token-env: the variable {token_env} is not set")
    if token is None and host.strip("[]") not in ("127.0.0.1", "localhost", "::1"):
        raise ConfigError(f"--bind {bind} is reachable from other hosts: set a token with --token-env")
    gpus, reason = None, None
    try:
        gpus = open_nvml(chosen)
    except UsageError as exc:
        reason = str(exc)
        click.echo(reason, err=True)
    sampler = Sampler(gpus, reason, max(0.01, parse_duration_s(interval, "--interval")))
    click.echo(f"Serving {len(gpus.facts()) if gpus else 0} GPUs on http://{bind}")
    serve_agent(sampler, token, host.strip("[]"), int(port))


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0: any free port.")
@click.option("--model", default="sim-8b", show_default=True, help="Model name that the endpoint reports.")
@click.option("--seed", default=1, show_default=True)
@click.option("--max-batch", default=64, show_default=True, type=click.IntRange(1), help="Maximum batch size.")
@click.option(
    "--kv-blocks", default=16_384, show_default=True, type=click.IntRange(1), help="KV cache, in 16-token blocks."
)
@click.option("--priorities/--no-priorities", default=False, help="Schedule by the request's priority.")
@click.option("--prefix-cache/--no-prefix-cache", default=True)
@click.option(
    "--time-scale",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="Factor for all step times.",
)
@click.option(
    "--inject",
    multiple=True,
    type=Pairs(),
    help="Fault to inject, NAME=SHARE: http_429, http_500, reset, stall, slow_start.",
)
def sim(host: str, port: int, inject: tuple[tuple[str, str], ...], **options: Any) -> None:
    """Serve a simulated inference engine with continuous batching over OpenAI's API."""
    from surgeproof.sandbox.sim_server import serve

    serve(host, port, options, dict(inject))


@click.command()
@click.option("--port", default=8501, show_default=True, type=click.IntRange(1, 65535))
@click.option("--host", default="127.0.0.1", show_default=True)
@db_option
def ui(port: int, host: str, db: str) -> None:
    """Open the web UI for stored runs (needs the extra `ui`)."""
    from importlib.util import find_spec

    if find_spec("streamlit") is None:
        raise ConfigError("the web UI needs Streamlit: pip install 'surgeproof[ui]'")
    from surgeproof import webui

    if host not in ("127.0.0.1", "localhost", "::1"):
        click.echo(
            f"Note: whoever reaches {host}:{port} can read every run: use an SSH tunnel, or a proxy with a login",
            err=True,
        )
    app = Path(webui.__file__).with_name("app.py")
    os.environ["SURGEPROOF_DB"] = db
    arguments = [
        sys.executable, "-m", "streamlit", "run", str(app), "--server.port", str(port),
        "--server.address", host, "--server.headless", "true", "--browser.gatherUsageStats", "false",
    ]  # fmt: skip
    os.execv(sys.executable, arguments)  # noqa: S606
