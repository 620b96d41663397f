"""The gate's answer for programs: schema `tieconv.check/1`, and back."""

from __future__ import annotations

import json
from typing import Any

from tieconv.checkpoint.finding import Finding, Level, Remedy
from tieconv.checkpoint.results.checked import (
    CHECK_SCHEMA,
    CheckedFinding,
    CheckedModel,
    CheckReport,
    Failure,
    Fix,
    Waiver,
)


def render(report: CheckReport) -> str:
    """One JSON document in ASCII; names are those of the files, character for character."""
    # A CI runner obeys `##[` anywhere in a line; only strings hold a `#`.
    return str(report).replace("##", "#\\u0023")


def read(text: str | bytes) -> CheckReport:
    """The report that `render` wrote; ``ValueError`` for anything else."""
    try:
        given = json.loads(text)
        if given["schema"] != CHECK_SCHEMA:
            raise ValueError(f"its schema is not {CHECK_SCHEMA}")
        models = tuple(_model_of(model) for model in given["models"])
        return CheckReport(models, Level(given["fail_on"]), _texts(given["notes"]), _texts(given["rules"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a key is missing or is no {CHECK_SCHEMA}: {error}") from error


def _model_of(given: dict[str, Any]) -> CheckedModel:
    failure = given["failure"]
    reason = Failure(_text(failure["message"]), _text(failure["hint"])) if failure else None
    fixes = tuple(Fix(_text(fix["command"]), _texts(fix["rules"]), _text(fix["refusal"])) for fix in given["fixes"])
    output = None if given["output"] is None else _text(given["output"])
    return CheckedModel(
        _text(given["source"]),
        tuple(map(_finding_of, given["findings"])),
        reason,
        fixes,
        output,
        _texts(given.get("unread", [])),
    )


def _finding_of(given: dict[str, Any]) -> CheckedFinding:
    remedy, waived = given["remedy"], given["waiver"]
    finding = Finding(
        _text(given["rule"]),
        Level(given["level"]),
        _text(given["message"]),
        _texts(given["tensors"]),
        Remedy(_text(remedy["command"]), remedy["safe"] is True) if remedy else None,
    )
    waiver = Waiver(_text(waived["by"]), _text(waived["reason"])) if waived else None
    return CheckedFinding(finding, _text(given["file"]), waiver)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("text expected")
    return value


def _texts(values: list[object]) -> tuple[str, ...]:
    return tuple(map(_text, values))
