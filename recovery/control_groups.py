"""Read what this process's control groups allow it: containers, Slurm and systemd set limits there.

Version 2 has one tree of groups, version 1 one for each resource; a limit of a group above counts too. In a
container the path of the own group may not be visible: then the root of what is mounted is that group.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from pathlib import Path

MOUNTED, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
VERSION_2 = ""  # what stands in the place of its resources


def memory_limit(mounted: Path = MOUNTED, own: Path = OWN) -> float:
    """Return the bytes that the groups allow; infinity where none has a limit."""
    limits = [_number(folder / name) for folder, (name, _, _) in _memory_groups(mounted, own)]
    return min(limits, default=inf)


def memory_left(mounted: Path = MOUNTED, own: Path = OWN) -> float:
    """Return what the limits leave; what the system can take back at once counts as left."""
    return min((_left(folder, *names) for folder, names in _memory_groups(mounted, own)), default=inf)


def cpu_quota(mounted: Path = MOUNTED, own: Path = OWN) -> float:
    """Return how many CPUs' time the groups allow; infinity where none has a limit."""
    return min(map(_quota, _groups("cpu", mounted, own)), default=inf)


def _memory_groups(mounted: Path, own: Path) -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """Yield the groups with their files: the limit, what is used, and the name of what can be taken back."""
    for folder in _groups("memory", mounted, own):
        yield folder, ("memory.max", "memory.current", "inactive_file")
        yield folder, ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _groups(resource: str, mounted: Path, own: Path) -> list[Path]:
    """Return the folders of this process's groups for a resource, and of all groups above them."""
    paths = _paths(own)
    trees = [(mounted, paths.get(VERSION_2, "/")), (mounted / resource, paths.get(resource, "/"))]
    return [folder for root, path in trees for folder in _upwards(root, path) if folder.is_dir()]


def _paths(own: Path) -> dict[str, str]:
    """Return the path of this process's group by resource, as in `4:memory:/a/b`."""
    try:
        lines = own.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    parts = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    return {resource: path for _, resources, path in parts for resource in resources.split(",")}


def _upwards(root: Path, path: str) -> Iterator[Path]:
    inside = root / path.strip("/")
    yield inside
    while inside != root and root in inside.parents:
        inside = inside.parent
        yield inside


def _left(folder: Path, limit: str, used: str, reclaimable: str) -> float:
    allowed = _number(folder / limit)
    taken = _number(folder / used)
    if inf in (allowed, taken):
        return inf
    stat = dict(line.split(maxsplit=1) for line in _text(folder / "memory.stat").splitlines() if " " in line)
    return allowed - taken + float(stat.get(reclaimable, 0))


def _quota(folder: Path) -> float:
    """Return a group's CPUs: `cpu.max` is a quota and its period, which version 1 has in two files."""
    quota, _, period = _text(folder / "cpu.max").partition(" ")
    if not quota:
        quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
    try:
        cpus = float(quota) / float(period)
    except (ValueError, ZeroDivisionError):  # "max", or no such files
        return inf
    return cpus if cpus > 0 else inf  # -1: without a limit


def _number(file: Path) -> float:
    """Return a file's number; infinity for "max" and where there is no such file."""
    try:
        return float(_text(file))
    except ValueError:
        return inf


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
