"""What is in the wheel, built from a copy of what git tracks: a stale `build` folder must not get into it."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_wheel_installs_one_name_and_holds_its_data(tmp_path: Path) -> None:
    source = tmp_path / "source"
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.splitlines():
        if not name.startswith("tests/") and (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(source)],
        check=True, timeout=300,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info" not in name} == {"surgeproof"}
    for needed in (
        "loadgen/words.txt",
        "traces/profiles/azure-conv.json",
        "commands/demo.yaml",
        "benchmarks/null_endpoint.c",
        "loadgen/locustfile.py",
        "webui/views/runs.py",
    ):
        assert f"surgeproof/{needed}" in names
