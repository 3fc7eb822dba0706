"""Which distributions this project needs, in which versions, and which of them are absent or do not fit."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion

from pipelines.machine.foreign_packages import DISTRIBUTION


@cache
def needed() -> dict[str, Requirement]:
    """Return the requirements of this project without its extras, by name; none where it is not installed."""
    try:
        listed = requires(DISTRIBUTION) or []
    except PackageNotFoundError:  # run from the sources alone
        return {}
    found = [one for one in map(_parsed, listed) if one and (not one.marker or one.marker.evaluate())]
    return {one.name: one for one in found}


def _parsed(text: str) -> Requirement | None:
    try:
        return Requirement(text)
    except InvalidRequirement:
        return None


def distribution(module: str) -> str:
    """Return the name by which the distribution of a needed package is installed."""
    return module.replace("_", "-")


def wanted(name: str) -> str:
    """Return a distribution as pip takes it, with the versions that fit."""
    requirement = needed().get(name)
    if requirement is None:
        return name
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{name}{extras}{requirement.specifier}"


def unfit_versions() -> dict[str, str]:
    """Return what is wrong with each needed distribution that is absent or has another version."""
    found = {}
    for name, requirement in needed().items():
        try:
            there = version(name)
        except PackageNotFoundError:
            found[name] = "is not installed"
            continue
        if not _fits(requirement, there):
            found[name] = f"{there} is installed, {requirement.specifier} is needed"
    return found


def _fits(requirement: Requirement, there: str) -> bool:
    """Return whether a version is one that is needed; a pre-release between the bounds is."""
    try:
        return requirement.specifier.contains(there, prereleases=True)
    except InvalidVersion:
        return False
