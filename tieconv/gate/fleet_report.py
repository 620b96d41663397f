"""Judge a run by the policy, and compare it with an earlier run."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from tieconv.checkpoint.finding import Level
from tieconv.checkpoint.results.checked import RANK, CheckedModel, CheckReport
from tieconv.checkpoint.results.fleet import UNREAD, Change, FleetReport, RuleCount, Since
from tieconv.errors import SettingsError
from tieconv.gate.examine import report_of
from tieconv.gate.fleet_runs import FinishedModel, FleetRun
from tieconv.gate.policy import Policy
from tieconv.sources.user_files import place_of, write_bytes
from tieconv.text import shown


def fleet_report(run: FleetRun, policy: Policy, earlier: FleetRun | None = None) -> FleetReport:
    """Return the report on ``run``. Raises `SettingsError` if the runs cannot be compared."""
    checked = _judged(run, policy)
    since = None
    before: Counter[tuple[str, str]] = Counter()
    if earlier is not None:
        if run.models and earlier.models and run.options != earlier.options:
            problem = f"{shown(run.directory)} and {shown(earlier.directory)} cannot be compared"
            hint = "run both with the same options"
            raise SettingsError(f"{problem}: their --depth or --for differs", hint, "fleet.options")
        old = _judged(earlier, policy)
        since = _since(checked, old, earlier.directory)
        before = _models_of_rules(old)
    counts = _models_of_rules(checked)
    rules = [
        RuleCount(rule, level, counts[rule, level], before[rule, level] if earlier else None)
        for rule, level in sorted(counts | before, key=lambda key: (RANK[Level(key[1])], -counts[key], key[0]))
    ]
    size = sum(model.bytes for model in run.models.values())
    finished = max((model.finished for model in run.models.values()), default=0.0)
    return FleetReport(run.directory, checked, run.unfinished, size, finished, tuple(rules), since)


def _judged(run: FleetRun, policy: Policy) -> CheckReport:
    models = (policy.judge(finished.model, place_of(source)) for source, finished in run.models.items())
    return report_of(tuple(models), policy, tuple(policy.settings_notes()))


def _models_of_rules(report: CheckReport) -> Counter[tuple[str, str]]:
    counts: Counter[tuple[str, str]] = Counter()
    for model in report.models:
        counts.update(
            {(entry.finding.rule, str(entry.finding.level)) for entry in model.findings if report.counts(entry)}
        )
    return counts


def _since(now: CheckReport, old: CheckReport, directory: str) -> Since:
    models, before = ({model.source: model for model in report.models} for report in (now, old))
    changes = [change for source, model in models.items() for change in _changes(now, model, before.get(source))]
    return Since(
        directory, old.failed, tuple(changes), len(models.keys() - before.keys()), len(before.keys() - models.keys())
    )


def _changes(report: CheckReport, model: CheckedModel, before: CheckedModel | None) -> Iterator[Change]:
    """Yield what is new, fixed or the same. Nothing is fixed in a model that could not be read."""
    if model.failure is not None:
        known = before is not None and before.failure is not None
        yield Change("still" if known else "new", model.source, UNREAD, str(Level.ERROR), model.failure.message)
        return
    after, earlier = _counting(report, model), _counting(report, before) if before else {}
    if before is not None and before.failure is not None:
        yield Change("fixed", model.source, UNREAD, str(Level.ERROR), before.failure.message)
    for fingerprint, change in after.items():
        state = "still" if fingerprint in earlier else "new"
        yield Change(state, *change)
    for fingerprint, change in earlier.items():
        if fingerprint not in after:
            yield Change("fixed", *change)


def _counting(report: CheckReport, model: CheckedModel) -> Mapping[str, tuple[str, str, str, str]]:
    return {
        entry.fingerprint: (model.source, entry.finding.rule, str(entry.finding.level), entry.finding.message)
        for entry in model.findings
        if report.counts(entry)
    }


# Write a run as two Parquet tables: one row a model, one row a finding.


MODELS, FINDINGS = "models.parquet", "findings.parquet"


def write_tables(directory: str, report: CheckReport, models: Mapping[str, FinishedModel]) -> tuple[str, str]:
    """Write both tables, and return their paths. Needs pyarrow. Raises `DestinationError`."""
    import pyarrow

    text = pyarrow.string()
    model_columns = {
        "source": text,
        "failed": pyarrow.bool_(),
        "failure": text,
        "findings": pyarrow.int32(),
        "bytes": pyarrow.int64(),
        "finished": pyarrow.timestamp("ms", tz="UTC"),
    }
    finding_columns = dict.fromkeys(("source", "rule", "level", "message", "file"), text)
    finding_columns |= {"tensors": pyarrow.list_(text), "waiver": text, "fingerprint": text, "counts": pyarrow.bool_()}
    rows = [
        {
            "source": model.source,
            "failed": report.fails(model),
            "failure": model.failure and model.failure.message,
            "findings": sum(1 for _ in model.open),
            "bytes": models[model.source].bytes,
            "finished": int(models[model.source].finished * 1000),
        }
        for model in report.models
    ]
    findings = [
        {
            "source": model.source,
            "rule": entry.finding.rule,
            "level": str(entry.finding.level),
            "message": entry.finding.message,
            "file": entry.file,
            "tensors": list(entry.finding.tensors),
            "waiver": entry.waiver and entry.waiver.reason,
            "fingerprint": entry.fingerprint,
            "counts": report.counts(entry),
        }
        for model in report.models
        for entry in model.findings
    ]
    return (
        _write(os.path.join(directory, MODELS), rows, model_columns),
        _write(os.path.join(directory, FINDINGS), findings, finding_columns),
    )


def _write(path: str, rows: list[dict[str, Any]], columns: dict[str, Any]) -> str:
    """Write a table completely or not at all."""
    import pyarrow
    from pyarrow import parquet

    file = pyarrow.BufferOutputStream()
    rows = [{name: _encodable(value) for name, value in row.items()} for row in rows]
    parquet.write_table(pyarrow.Table.from_pylist(rows, schema=pyarrow.schema(list(columns.items()))), file)
    write_bytes(path, file.getvalue().to_pybytes())
    return path


def _encodable(value: Any) -> Any:
    """Return a value that UTF-8 can encode: a file name may hold other bytes, which Python keeps as surrogates."""
    if isinstance(value, list):
        return [_encodable(entry) for entry in value]
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
