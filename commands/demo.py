"""`surgeproof demo`: a minute of traffic against a simulated engine on this host."""

import shutil
import sys
from pathlib import Path

import click

from surgeproof.commands.options import db_option, secrets_of
from surgeproof.commands.run import run_and_show
from surgeproof.exit_codes import ExitCode
from surgeproof.redaction import shown_url

DEMO_SCENARIO = Path(__file__).with_name("demo.yaml")


@click.command()
@click.option("--duration", default="60s", show_default=True, help="Duration of the load, such as 60s.")
@db_option
def demo(duration: str, db: str) -> None:
    """Run realistic traffic against a simulated engine on this host, and judge the result; exits with 0."""
    from surgeproof.sandbox.sim_process import SimProcess
    from surgeproof.scenario_file import load_scenario, parse_duration_s

    overrides = {"load.duration_s": parse_duration_s(duration, "--duration")}
    with SimProcess() as sim:
        scenario = load_scenario(DEMO_SCENARIO, overrides | {"target.base_url": sim.base_url})
        code = run_and_show(scenario, secrets_of(None, ()), db, DEMO_SCENARIO).exit_code
    judged = code in (ExitCode.PASS, ExitCode.FAIL, ExitCode.INCONCLUSIVE, ExitCode.INVALID)
    program = "surgeproof" if shutil.which("surgeproof") else sys.argv[0]
    click.echo(
        f"\nThat was Surgeproof on its own simulated engine; a gate would have exited with {code}. Next:\n"
        f"  {program} runs list --db {shown_url(db)}\n"
        f"  {program} ui --db {shown_url(db)}\n"
        f"  {program} run --profile azure-conv --base-url http://YOUR-HOST:8000/v1 --window 1860,1920"
    )
    # Whatever this machine allowed the simulated engine: a demonstration is no gate.
    sys.exit(ExitCode.PASS if judged else code)
