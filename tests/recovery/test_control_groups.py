"""What containers, Slurm and systemd allow a process, read from control groups as systems lay them out."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest

from recovery.control_groups import cpu_quota, memory_left, memory_limit

UNLIMITED = "9223372036854771712"  # as version 1 writes it


def tree(root: Path, own: str, files: dict[str, str]) -> tuple[Path, Path]:
    """Write the files of a tree of groups; return its root and what names the own group."""
    mounted, named = root / "cgroup", root / "own"
    for path, text in files.items():
        (mounted / path).parent.mkdir(parents=True, exist_ok=True)
        (mounted / path).write_text(f"{text}\n")
    mounted.mkdir(exist_ok=True)
    named.write_text(own)
    return mounted, named


MEMORY_2 = {"memory.max": "1000", "memory.current": "700", "memory.stat": "anon 5\ninactive_file 50"}
MEMORY_1 = {
    "memory.limit_in_bytes": "1000",
    "memory.usage_in_bytes": "700",
    "memory.stat": "inactive_file 1\ntotal_inactive_file 50",
}


def under(folder: str, files: dict[str, str]) -> dict[str, str]:
    return {f"{folder}/{name}": text for name, text in files.items()}


@pytest.mark.parametrize(
    ("own", "files"),
    [
        ("0::/\n", MEMORY_2),  # a container with a view of its own
        ("0::/docker/1f\n", MEMORY_2),  # without: the path is not visible in it
        ("0::/system.slice/job_7/step_0\n", under("system.slice/job_7", MEMORY_2)),  # Slurm: the job's limit
        ("4:memory:/docker/1f\n", under("memory", MEMORY_1)),
        ("9:name=systemd:/\n4:memory:/slurm/job_7\n0::/\n", under("memory/slurm/job_7", MEMORY_1)),
    ],
)
def test_the_limit_of_a_group_counts_wherever_systems_keep_it(
    own: str, files: dict[str, str], tmp_path: Path
) -> None:
    where = tree(tmp_path, own, files)
    assert memory_limit(*where) == 1000
    assert memory_left(*where) == 350


def test_the_smallest_limit_of_all_groups_above_counts(tmp_path: Path) -> None:
    files = under("a", MEMORY_2) | under("a/b", MEMORY_2 | {"memory.max": "max"})
    files |= under("a/b/c", MEMORY_2 | {"memory.max": "5000"})
    where = tree(tmp_path, "0::/a/b/c\n", files)
    assert memory_limit(*where) == 1000 and memory_left(*where) == 350


@pytest.mark.parametrize("files", [{}, {"memory.max": "max"}, {"memory.max": "lots"}])
def test_without_a_limit_there_is_none(files: dict[str, str], tmp_path: Path) -> None:
    where = tree(tmp_path, "0::/\n", files)
    assert (memory_limit(*where), memory_left(*where), cpu_quota(*where)) == (inf, inf, inf)
    assert memory_limit(tmp_path / "none", tmp_path / "none") == inf


def test_version_1_writes_a_huge_number_where_there_is_no_limit(tmp_path: Path) -> None:
    files = under("memory", MEMORY_1 | {"memory.limit_in_bytes": UNLIMITED})
    assert memory_limit(*tree(tmp_path, "4:memory:/\n", files)) > 2.0**62


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({"cpu.max": "400000 100000"}, 4.0),
        ({"cpu.max": "150000 100000"}, 1.5),
        ({"cpu.max": "max 100000"}, inf),
        ({"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2.0),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, inf),
    ],
)
def test_the_time_of_cpus_is_a_quota_in_a_period(files: dict[str, str], cpus: float, tmp_path: Path) -> None:
    assert cpu_quota(*tree(tmp_path, "3:cpu,cpuacct:/\n0::/\n", files)) == cpus
