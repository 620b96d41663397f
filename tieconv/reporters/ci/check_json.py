"""Write and read the report of `tieconv check` as JSON, schema `tieconv.check/1`."""

from __future__ import annotations

import json
from typing import Any

from tieconv.checkpoint.finding import Finding, Level, Remedy
from tieconv.checkpoint.results import checked


def render(report: checked.CheckReport) -> str:
    """Return one JSON document in ASCII. Names are exact, without the escapes of text output."""
    # A CI runner obeys `##[` anywhere in a line; only strings hold a `#`.
    return str(report).replace("##", "#\\u0023")


def read(text: str | bytes) -> checked.CheckReport:
    """Return the report that `render` wrote. Raises ``ValueError`` for any other text."""
    try:
        return report_of(json.loads(text))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def report_of(document: Any) -> checked.CheckReport:
    """Return the report of a parsed document. Raises ``ValueError`` for any other value."""
    try:
        if document["schema"] != checked.CHECK_SCHEMA:
            raise ValueError(f"its schema is not {checked.CHECK_SCHEMA}")
        models = tuple(_model_of(model) for model in document["models"])
        notes, rules = _texts(document["notes"]), _texts(document["rules"])
        settings = _text(document["settings"] or "") if "settings" in document else None  # an older report has no key
        return checked.CheckReport(models, Level(document["fail_on"]), notes, rules, settings)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a key is missing or does not fit {checked.CHECK_SCHEMA}: {error}") from error


def _model_of(document: dict[str, Any]) -> checked.CheckedModel:
    failure = document["failure"]
    reason = checked.Failure(_text(failure["message"]), _text(failure["hint"])) if failure else None
    fixes = tuple(
        checked.Fix(_text(fix["command"]), _texts(fix["rules"]), _text(fix["refusal"])) for fix in document["fixes"]
    )
    output = None if document["output"] is None else _text(document["output"])
    source, findings = _text(document["source"]), tuple(map(_finding_of, document["findings"]))
    unread, below = (_texts(document.get(key, [])) for key in ("unread", "below"))
    not_compared = int(document.get("not_compared", 0))
    return checked.CheckedModel(source, findings, reason, fixes, output, unread, below, not_compared)


def _finding_of(document: dict[str, Any]) -> checked.CheckedFinding:
    remedy, waived = document["remedy"], document["waiver"]
    rule, level, message = _text(document["rule"]), Level(document["level"]), _text(document["message"])
    action = Remedy(_text(remedy["command"]), remedy["safe"] is True) if remedy else None
    finding = Finding(rule, level, message, _texts(document["tensors"]), action)
    waiver = checked.Waiver(_text(waived["by"]), _text(waived["reason"])) if waived else None
    return checked.CheckedFinding(finding, _text(document["file"]), waiver)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("text expected")
    return value


def _texts(values: list[object]) -> tuple[str, ...]:
    return tuple(map(_text, values))
