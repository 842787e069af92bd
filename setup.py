"""Optional: SURGEPROOF_COMPILE=1 compiles the reading of streams (mypyc). Plain installations need no compiler."""

import os
from pathlib import Path

from setuptools import setup

MODULES = ("connection", "exchange", "http_reply", "sse", "stream", "token_form")
"""What runs for every read; the same Python files are interpreted in a plain installation."""
TYPED = Path("build/typed")
FLAGS = ("--ignore-missing-imports", "--follow-imports=silent", "--explicit-package-bases", "--namespace-packages")


def typed_tree() -> None:
    """The folders under one name: they are mapped to it at installation only, and the compiler follows folders."""
    package = TYPED / "surgeproof"
    package.mkdir(parents=True, exist_ok=True)
    root = Path.cwd()
    for source in (*Path("surgeproof").iterdir(), *(path.parent for path in Path().glob("*/__init__.py"))):
        link = package / source.name
        if source.name != "surgeproof" and not link.is_symlink():
            link.symlink_to(root / source)


def compiled() -> dict[str, object]:
    """The arguments of `setup` for a compiled installation."""
    try:
        from mypyc.build import mypycify
    except ImportError:
        # The first of two runs: it says what the second one needs.
        return {"setup_requires": ["mypy>=1.13"]}
    typed_tree()
    os.environ["MYPYPATH"] = str(TYPED)
    paths = [str(TYPED / "surgeproof" / "loadgen" / f"{name}.py") for name in MODULES]
    return {"ext_modules": mypycify([*FLAGS, *paths], opt_level="3")}


setup(**(compiled() if os.environ.get("SURGEPROOF_COMPILE") == "1" else {}))
