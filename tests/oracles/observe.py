"""What a runner saw, as one observation. This module needs only numpy: every interpreter can import it.

A runner is a script beside this one. It reads jobs as JSON lines and prints one observation a line. The outcome is that
of a prediction, or one of three. ``same``: both tables have the same values, and nobody can see whether they are one
parameter. ``left-out``: tied, and a file that the index does not name has another head. ``unmatched``: all stored
tensors were loaded, and the logits are those of no pair of tables.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

Job = dict[str, Any]
Observation = dict[str, Any]
Array = Any

LOGITS_DIFFER = 0.05
"""Relative distance from which logits are not those of the reference. Rounding to 16 bits stays below 0.02."""
VALUES_DIFFER = 0.02
"""The same for the values of a table."""


def from_logits(job: Job, logits: Array) -> Observation:
    """Return which tables gave ``logits``, those of the last position of the prompt, shape ``[vocabulary]``."""
    seen = np.asarray(logits, np.float64).reshape(-1)
    if not np.isfinite(seen).all():
        return _answer(job, "random", why="the logits are not finite")
    distances = {key: _distance(seen, reference) for key, reference in _references(job)}
    best = min(distances, key=lambda key: distances[key])
    if distances[best] > LOGITS_DIFFER:
        if _complete(job):
            return _answer(job, "unmatched", why=f"nearest {best} at {distances[best]:.3f}")
        return _answer(job, "random", why="the logits are those of no stored table")
    embedding, head, bias = best.split("|")
    lost = job["stored"]["bias"] == "nonzero" and bias == "0"
    return _answer(job, _outcome(job, {embedding}, {head}, None), lost, why=f"logits of {best}")


def from_tables(job: Job, embedding: Array, head: Array, one: bool | None, bias: Array = None) -> Observation:
    """Return what the loaded parameters are: arrays of shape ``[rows, width]``, and the head's bias, or ``None``.

    ``one`` says whether they are one parameter; ``None``: nobody can see it.
    """
    tables = _tables(job)
    values = [np.asarray(table, np.float32) for table in (embedding, head)]
    if any(np.isnan(table).any() for table in values):
        return _answer(job, "random", why="a table was not loaded")
    sources = [{name for name, table in tables.items() if _equal(value, table)} for value in values]
    lost = False
    if job["stored"]["bias"] == "nonzero":
        stored = _arrays(job)["bias"]
        lost = bias is None or not _equal(np.asarray(bias, np.float32).reshape(-1), stored.reshape(-1))
    return _answer(job, _outcome(job, sources[0], sources[1], one), lost)


def failed(job: Job, error: BaseException | str) -> Observation:
    """Return the observation of a loader that stopped."""
    if isinstance(error, str):
        return _answer(job, "error", why=error)
    lines = str(error).strip().splitlines()
    return _answer(job, "error", why=f"{type(error).__name__}: {lines[0][:200] if lines else ''}")


def serve(observe: Callable[[Job], Observation]) -> None:
    """Answer each job of stdin with a line; a loader's own output goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        job = json.loads(line)
        try:
            answer = observe(job)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a converter may call sys.exit
            answer = failed(job, error)
        print(json.dumps(answer), file=answers, flush=True)


def serve_with_transformers(observe: Callable[[Job], Observation]) -> None:
    """Answer each job of stdin with a line, without the messages and the progress bars of transformers."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    serve(observe)


def _outcome(job: Job, embedding: set[str], head: set[str], one: bool | None) -> str:
    """Return the outcome for the stored tables whose values the embedding and the head have."""
    stored = job["stored"]
    ours = {"E"} if stored["embedding"] else set()
    value = {"absent": None, "equal": "E"}.get(stored["head"], stored["head"])
    ours |= {value} if value else set()
    if not (embedding & ours and head & ours):
        return "random"
    if len(ours) == 2:
        if "E" in embedding and value in head:
            return "untied"
        outside = job["layout"].startswith("stray") and "E" in embedding and "E" in head
        if outside and one is False:
            return "same"
        return "left-out" if outside else "discarded"
    if stored["embedding"] and value:  # equal copies
        return "same" if one is None else "tied" if one else "untied"
    return "tied" if one is not False else "same"


def _complete(job: Job) -> bool:
    stored = job["stored"]
    return bool(stored["embedding"]) and stored["head"] != "absent" and not job["layout"].startswith("stray")


def _answer(job: Job, outcome: str, dropped: bool = False, why: str = "") -> Observation:
    return {"id": job["id"], "outcome": outcome, "dropped": dropped, "why": why}


def _distance(seen: Array, reference: Array) -> float:
    """Return the relative distance up to a factor: the programs scale logits at different steps."""
    if len(reference) > len(seen):
        return float("inf")
    first, wanted = seen[: len(reference)], np.asarray(reference, np.float64)
    factor = float(first @ wanted) / (float(wanted @ wanted) or 1.0)
    if factor <= 0:
        return float("inf")
    return float(np.linalg.norm(first - factor * wanted) / (np.linalg.norm(first) or 1.0))


def _equal(value: Array, table: Array) -> bool:
    if value.shape[0] < table.shape[0] or value.shape[1:] != table.shape[1:]:
        return False
    first = value[: table.shape[0]]
    return float(np.linalg.norm(first - table)) <= VALUES_DIFFER * float(np.linalg.norm(table))


_cache: dict[str, dict[str, Array]] = {}


def _arrays(job: Job) -> dict[str, Array]:
    path = job["reference"]
    if path not in _cache:
        _cache.clear()
        with np.load(path) as file:
            _cache[path] = {name: file[name] for name in file.files}
    return _cache[path]


def _references(job: Job) -> list[tuple[str, Array]]:
    return [(name, array) for name, array in _arrays(job).items() if "|" in name]


def _tables(job: Job) -> dict[str, Array]:
    return {name[6:]: array for name, array in _arrays(job).items() if name.startswith("table ")}
