"""What the host took, from files as Linux writes them."""

from pathlib import Path

from surgeproof.loadgen.host_cpu import HostCpu, SchedulerDelay, Taken

V2 = "usage_usec 5000\nuser_usec 4000\nsystem_usec 1000\nnr_periods 50\nnr_throttled 10\nthrottled_usec 250000\n"
V1 = "nr_periods 50\nnr_throttled 10\nthrottled_time 70000000\n"
STAT = "cpu  10 0 10 100 0 0 0 40 0 0\ncpu0 5 0 5 50 0 0 0 20 0 0\ncpu1 5 0 5 50 0 0 0 20 0 0\nintr 1\n"


def host(folder: Path, cgroup: str, quotas: dict[str, str]) -> HostCpu:
    proc, groups = folder / "proc", folder / "cgroup"
    for path, text in {
        "self/cgroup": cgroup, "thread-self/schedstat": "900 12345 7\n", "stat": STAT,
    }.items():  # fmt: skip
        (proc / path).parent.mkdir(parents=True, exist_ok=True)
        (proc / path).write_text(text)
    for path, text in quotas.items():
        (groups / path).parent.mkdir(parents=True, exist_ok=True)
        (groups / path).write_text(text)
    return HostCpu(proc, groups)


def test_version_2_of_control_groups(tmp_path: Path) -> None:
    """40 ticks of 10 ms over two cores are 200 ms each."""
    held = host(tmp_path, "0::/pod/app\n", {"pod/app/cpu.stat": V2})
    assert held.taken() == Taken(12345, 250_000_000, 200_000_000)
    held.close()


def test_a_quota_of_a_group_above_counts_too(tmp_path: Path) -> None:
    calm = V2.replace("250000", "0")
    assert host(tmp_path, "0::/pod/app\n", {"pod/app/cpu.stat": calm, "pod/cpu.stat": V2}).taken().throttled_ns == 25e7


def test_version_1_of_control_groups(tmp_path: Path) -> None:
    held = host(tmp_path, "3:cpuset:/\n2:cpu,cpuacct:/app\n", {"cpu,cpuacct/app/cpu.stat": V1})
    assert held.taken().throttled_ns == 70_000_000


def test_a_host_without_counters_took_nothing(tmp_path: Path) -> None:
    assert HostCpu(tmp_path / "no", tmp_path / "no").taken() == Taken()
    assert SchedulerDelay(tmp_path).total_ns() is None
