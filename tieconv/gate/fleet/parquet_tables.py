"""Write a run as two Parquet tables: one row a model, one row a finding."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from tieconv.checkpoint.results.checked import CheckReport
from tieconv.gate.fleet.runs import FinishedModel
from tieconv.sources.user_files import write_bytes

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
