"""The order, counts and phrases that all formats of `tieconv check` share."""

from __future__ import annotations

import os
import posixpath
from collections import Counter
from collections.abc import Iterable, Iterator

from tieconv.checkpoint.finding import Level
from tieconv.checkpoint.results.checked import RANK, CheckedFinding, CheckedModel, CheckReport
from tieconv.text import count, shown

LIMIT = 1000
"""Characters of one message: the limit of GitHub's code scanning. No rule writes a longer one."""


def worst_first(models: Iterable[CheckedModel]) -> list[CheckedModel]:
    """Sort the models: first unreadable ones, then by the worst open finding. Equal models keep their order."""
    return sorted(models, key=_badness)


def _badness(model: CheckedModel) -> int:
    return -1 if model.failure else min((RANK[entry.finding.level] for entry in model.open), default=3)


def open_findings(report: CheckReport) -> list[tuple[CheckedModel, CheckedFinding]]:
    """Return the findings of every model that no waiver covers, the worst first."""
    pairs = [(model, entry) for model in report.models for entry in model.open]
    return sorted(pairs, key=lambda pair: RANK[pair[1].finding.level])


def levels(entries: Iterable[CheckedFinding]) -> Counter[Level]:
    """Count the findings of each level."""
    return Counter(entry.finding.level for entry in entries)


def waived(model: CheckedModel) -> list[CheckedFinding]:
    """Return the waived findings."""
    return [entry for entry in model.findings if entry.waiver]


def trouble(model: CheckedModel) -> str:
    """Return what failed for a model with a failure: reading it or, if it has findings, fixing it."""
    return "could not be fixed" if model.findings else "could not be read"


def counted(number_of: Counter[Level]) -> str:
    """Return ``1 error, 2 warnings`` or ``no findings``."""
    return ", ".join(count(number_of[level], str(level)) for level in Level if number_of[level]) or "no findings"


def summary(report: CheckReport, *, fixing: bool = True) -> str:
    """Return the closing line: the number of models and of findings, and whether the check fails."""
    facts = f"{count(len(report.models), 'model')}: {', '.join(filter(None, _parts(report)))}."
    left = f" {not_checked(report)}." if report.not_checked else ""
    where = f" Settings: {line(report.settings, 200)}" if report.settings else ""
    fixable = f" --fix can repair {count(report.fixable, 'finding')}." if report.fixable and not fixing else ""
    return f"{facts} {_verdict(report)}{left}{fixable}{where}"


def _verdict(report: CheckReport) -> str:
    counting = sum(1 for model in report.models for _ in filter(report.counts, model.findings))
    if counting:
        have = "has" if counting == 1 else "have"
        higher = "" if report.fail_on is Level.ERROR else " or higher"
        return f"The check failed: {count(counting, 'finding')} {have} level {report.fail_on}{higher}."
    if any(model.failure for model in report.models):
        return "The check is incomplete."
    return "The check passed."


def _parts(report: CheckReport) -> Iterator[str]:
    numbers = levels(entry for model in report.models for entry in model.open)
    waived = sum(entry.waiver is not None for model in report.models for entry in model.findings)
    unread = sum(model.failure is not None for model in report.models)
    unfixed = sum(model.failure is not None and bool(model.findings) for model in report.models)
    if not report.models:
        yield "none changed since --newer-than"
    yield counted(numbers) if numbers else "no finding" if unread < len(report.models) else ""
    yield f"{waived} waived" if waived else ""
    yield f"{unread - unfixed} not checked" if unread > unfixed else ""
    yield f"{unfixed} not fixed" if unfixed else ""


def settings(report: CheckReport) -> str:
    """Return which settings file decided about the findings."""
    return f"settings: {line(report.settings, 200)}" if report.settings else "no settings file"


def not_checked(report: CheckReport) -> str:
    """Return how many models below the checked ones were found and not checked, with the option that checks them."""
    number = len(report.not_checked)
    return f"{count(number, 'model')} below {'was' if number == 1 else 'were'} not checked (--recursive checks them)"


def line(text: object, limit: int = LIMIT) -> str:
    """Return ``text`` as one line that is safe to print, at most ``limit`` characters with its escapes."""
    safe = shown(text, limit)
    return safe if len(safe) <= limit else f"{safe[: limit - 1]}…"


def command(text: str) -> str:
    """Return a command in full, because a shortened one would do something else."""
    return shown(text, len(text))


# The path and the URI of the file of a finding, for tools that look for it in a repository.

_FILES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".onnx", ".json")
_REMOTE = ("hf://", "s3://", "gs://", "az://")


def path_of(source: str, file: str) -> str:
    """Return the path of ``file`` in the model ``source``: a directory, one of its files, or a remote model."""
    folder, base = posixpath.split(source)
    if not file or base == file:
        return source
    if base.endswith(_FILES) and not source.startswith(_REMOTE):
        return posixpath.join(folder, file)
    return file if source in ("", ".") else f"{source.rstrip('/')}/{file}"


def relative(path: str) -> str | None:
    """Return ``path`` relative to the repository's root, or ``None`` for a path outside of it.

    The root is $GITHUB_WORKSPACE, else the nearest directory with `.git`, else the working directory.
    """
    if path.startswith(_REMOTE):
        return None
    from pathlib import Path  # a report without findings names no path

    here = Path.cwd()
    repository = next((directory for directory in (here, *here.parents) if (directory / ".git").exists()), here)
    inside = os.path.relpath(path or ".", os.environ.get("GITHUB_WORKSPACE") or repository)
    return None if inside == ".." or inside.startswith("../") else inside


def uri(path: str) -> str:
    """Return ``path`` as a URI reference: relative inside the repository, else `file:` or the remote scheme."""
    from urllib.parse import quote  # the text report has no URI

    if path.startswith(_REMOTE):
        scheme, _, rest = path.partition("://")
        return f"{scheme}://{quote(_bytes(rest), safe='/@')}"
    inside = relative(path)
    if inside is None:
        return "file://" + quote(_bytes(os.path.abspath(path)))
    return quote(_bytes(inside))


def _bytes(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")  # as file names are decoded
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
