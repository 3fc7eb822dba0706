"""Check that Python imports this project's `evals` and `db`, names that other projects use too."""

from __future__ import annotations

from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("recovery", "pipelines", "evals", "dashboard", "db")
DISTRIBUTION = "recover-llm"
ROOT = Path(__file__).resolve().parents[2]


def foreign_package() -> str | None:
    """Return an error if Python would import another project's package under one of this project's names.

    Nothing of either is imported, so that nothing of the other runs.
    """
    for name in PACKAGES:
        spec = find_spec(name)
        folder = Path(spec.origin).resolve().parent if spec and spec.origin else None
        if folder != ROOT / name:
            elsewhere = folder or "nowhere"
            return (
                f"`{name}` would be imported from {elsewhere}, not {ROOT / name}: run `recover`, or python "
                "with -P, and take that folder off PYTHONPATH"
            )
    return None


def shared_names() -> dict[str, list[str]]:
    """Return the package names that another installed distribution provides too, with its name."""
    owners = packages_distributions()
    claims = {name: [dist for dist in owners.get(name, []) if dist != DISTRIBUTION] for name in PACKAGES}
    return {name: dists for name, dists in claims.items() if dists}
