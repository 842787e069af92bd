"""The mapping of folders below one name, and the size of a gate's install."""

import importlib
import pkgutil
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distribution, requires
from pathlib import Path

import surgeproof

ROOT = Path(__file__).parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def test_every_package_folder_is_mapped() -> None:
    """A folder with __init__.py that is not in the mapping would be missing from the wheel."""
    mapped = {ROOT / path for path in SETTINGS["tool"]["setuptools"]["package-dir"].values()}
    found = {
        path.parent
        for path in ROOT.glob("*/**/__init__.py")
        if not {".venv", ".links", "build", "tests"} & set(path.relative_to(ROOT).parts)
    }
    assert found == mapped


def test_every_module_imports() -> None:
    for module in pkgutil.walk_packages(surgeproof.__path__, "surgeproof."):
        if ".pages." in module.name or module.name in (
            "surgeproof.webui.app", "surgeproof.loadgen.locustfile", "surgeproof.loadgen.users",
            "surgeproof.loadgen.controller", "surgeproof.loadgen.workers", "surgeproof.__main__",
            "surgeproof.benchmarks.__main__",
        ):  # fmt: skip
            continue
        importlib.import_module(module.name)


def test_no_module_beside_a_script_hides_another() -> None:
    """`locust -f` and `streamlit run` put their script's folder first on sys.path."""
    for folder in ("loadgen", "webui", "webui/views"):
        for path in (ROOT / folder).glob("*.py"):
            assert path.stem not in sys.stdlib_module_names
            assert path.stem not in ("locust", "gevent", "numpy", "streamlit", "pandas")


def test_a_gates_install_is_small() -> None:
    """The base's packages hold under 150 MB, byte-code caches not counted."""
    seen: set[str] = set()
    total = 0
    queue = ["surgeproof"]
    while queue:
        name = re.sub(r"[-_.]+", "-", queue.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        found = distribution(name)
        total += sum(file.size or 0 for file in found.files or () if file.suffix != ".pyc")
        for requirement in requires(name) or ():
            text, _, marker = requirement.partition(";")
            if "extra" in marker or ("python_version" in marker and "<" in marker and "3.1" not in marker):
                continue
            if any(word in marker for word in ("win32", "Windows", "emscripten", "PyPy", "darwin")):
                continue
            needed = re.split(r"[ <>=!~\[(]", text.strip())[0]
            if _is_installed(needed):
                queue.append(needed)
    assert "numpy" in seen
    assert "streamlit" not in seen
    assert total < 150e6


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except Exception:
        return False
    return True


def test_no_file_names_a_registry_host() -> None:
    hosts = re.compile("pypi" + r"\.org|python" + r"hosted\.org|npmjs" + r"\.org|debian" + r"\.org")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    for name in listed:
        path = ROOT / name
        if path.suffix in (".py", ".md", ".toml", ".lock", ".yaml", "") and path.is_file():
            assert not hosts.search(path.read_text("utf-8", "replace")), name
