"""What is in the wheel, built from a copy of what git tracks: a stale `build` folder must not get into it."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def build_wheel(folder: Path, **environment: str) -> Path:
    source = folder / "source"
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.splitlines():
        if not name.startswith("tests/") and (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(source)],
        check=True, timeout=300, env=os.environ | environment,
    )  # fmt: skip
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.mark.slow
def test_the_wheel_installs_one_name_and_holds_its_data(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path)
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info" not in name} == {"surgeproof"}
    for needed in (
        "loadgen/words.txt",
        "traces/profiles/azure-conv.json",
        "commands/demo.yaml",
        "examples/mixed.yaml",
        "benchmarks/epoll_client.c",
        "benchmarks/null_endpoint.c",
        "loadgen/locustfile.py",
        "webui/views/runs.py",
    ):
        assert f"surgeproof/{needed}" in names


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")
def test_compiled_and_interpreted_readers_give_the_same_results(tmp_path: Path) -> None:
    zipfile.ZipFile(build_wheel(tmp_path, SURGEPROOF_COMPILE="1")).extractall(tmp_path / "installed")
    readers = ("test_stream.py", "test_sse.py", "test_http_reply.py", "test_merged_reads.py")
    tests = [f"tests/unit/loadgen/{name}" for name in readers]
    shutil.copytree(ROOT / "tests", tmp_path / "installed" / "tests")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *tests,
        "tests/integration/test_vectors.py",
    ]
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "installed")}
    subprocess.run(
        [sys.executable, "-c", "import surgeproof.loadgen.stream as s; assert s.__file__.endswith('.so'), s.__file__"],
        check=True, env=environment, cwd=tmp_path,
    )  # fmt: skip
    result = subprocess.run(
        command, cwd=tmp_path / "installed", env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stdout[-2000:]
