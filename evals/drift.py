"""Measure how far a model has moved: forgetting, and distances between the states that two models visit.

A state is a prompt with the beginning of an answer (arXiv 2605.22731). Two sets of states are compared as
rows of features: hashed words or hidden states. No distance says whether anything was forgotten;
docs/evaluation.md lists what each does and does not predict.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recovery.errors import InputError

Floats = NDArray[np.float64]
_WORD = re.compile(r"\w+|[^\w\s]", re.UNICODE)
_MOST = 2000  # rows of one set that a kernel is computed on
_COLUMNS = 512  # of hashed words
_DIRECTIONS = 128  # of projections


def forgetting(base: float, post: float) -> float:
    """Return F = base score - score after training; positive where something was lost."""
    return base - post


def retention_ratio(base: float, post: float) -> float | None:
    """Return the share of the base score that is left; None for a base score of 0."""
    return post / base if base else None


def lexical_features(texts: Sequence[str]) -> Floats:
    """Count each text's words in hashed columns; rows are normalised to length 1."""
    rows = np.zeros((len(texts), _COLUMNS))
    for row, text in zip(rows, texts, strict=True):
        for word in words(text):
            row[zlib.crc32(word.encode()) % _COLUMNS] += 1
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12))


def words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def jaccard_distance(a: Sequence[str], b: Sequence[str]) -> float:
    """Return 1 - shared words / all words of two sets of texts; 0 for two without any."""
    one, other = ({word for text in texts for word in words(text)} for texts in (a, b))
    return 1 - len(one & other) / len(one | other) if one | other else 0.0


def mmd_rbf(x: Floats, y: Floats) -> float:
    """Return the squared maximum mean discrepancy with an RBF kernel (Gretton et al. 2012), 0 for equal sets.

    The biased estimate: two samples of one distribution give a little more than 0. The kernel is as wide as
    the median distance of all rows.
    """
    x, y = _same_width(x, y)
    both = _square_distances(np.vstack([x, y]), np.vstack([x, y]))
    apart = both[np.triu_indices_from(both, k=1)]  # never empty: each set has a row
    bandwidth = float(np.sqrt(np.median(apart)))
    kernel = np.exp(-both / (2 * bandwidth**2)) if bandwidth else (both == 0).astype(float)
    n = len(x)
    return float(max(0.0, kernel[:n, :n].mean() + kernel[n:, n:].mean() - 2 * kernel[:n, n:].mean()))


def centroid_distance(x: Floats, y: Floats) -> float:
    """Return the Euclidean distance of the means."""
    x, y = _same_width(x, y)
    return float(np.linalg.norm(x.mean(axis=0) - y.mean(axis=0)))


def sliced_wasserstein(x: Floats, y: Floats) -> float:
    """Return the mean Wasserstein-1 distance of projections on random directions (Rabin et al. 2012)."""
    x, y = _same_width(x, y)
    arrows = np.random.default_rng(0).standard_normal((x.shape[1], _DIRECTIONS))
    arrows /= np.linalg.norm(arrows, axis=0)
    grid = (np.arange(512) + 0.5) / 512
    one, other = (np.quantile(rows @ arrows, grid, axis=0, method="inverted_cdf") for rows in (x, y))
    return float(np.abs(one - other).mean())


def distances(x: Floats, y: Floats) -> dict[str, float]:
    """Return every distance between two sets of rows."""
    return {
        "mmd": mmd_rbf(_thinned(x), _thinned(y)),
        "centroid": centroid_distance(x, y),
        "sliced_wasserstein": sliced_wasserstein(x, y),
    }


def _thinned(rows: Floats) -> Floats:
    return rows[:: max(1, -(-len(rows) // _MOST))]


def _square_distances(x: Floats, y: Floats) -> Floats:
    squares = (x**2).sum(axis=1)[:, None] + (y**2).sum(axis=1)[None, :] - 2 * x @ y.T
    return np.maximum(squares, 0.0)


def _same_width(x: Any, y: Any) -> tuple[Floats, Floats]:
    a, b = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1] or not len(a) or not len(b):
        raise InputError(
            f"drift: rows of shape {a.shape} against {b.shape}: two sets of equal width, not empty"
        )
    return a, b
