"""`surgeproof examples`: scenarios to begin with, which the package brings along."""

from importlib.resources import files

import click

from surgeproof.errors import ConfigError


@click.command()
@click.argument("name", required=False)
def examples(name: str | None) -> None:
    """List the bundled example scenarios, or print one: surgeproof examples mixed > mixed.yaml."""
    found = {
        path.name.removesuffix(".yaml"): path
        for path in files("surgeproof.examples").iterdir()
        if path.name.endswith(".yaml")
    }
    if name is None:
        for key in sorted(found):
            click.echo(f"{key:12} {found[key].read_text('utf-8').splitlines()[0].removeprefix('# ')}")
        return
    if name.removesuffix(".yaml") not in found:
        raise ConfigError(f"there is no example {name!r}; there are {', '.join(sorted(found))}")
    click.echo(found[name.removesuffix(".yaml")].read_text("utf-8"), nl=False)
