"""The lines of `fleet inspect`, `analyze`, `convert`, `export` and `parity`: what the command printed and wrote."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from stat import S_ISDIR
from typing import Any

from tieconv.checkpoint.results.checked import Failure
from tieconv.checkpoint.results.fleet import CommandResult
from tieconv.errors import SettingsError
from tieconv.execute.tree import walk
from tieconv.formats.strict_json import LAST_SECOND, real, whole
from tieconv.gate.fleet.runs import LINES, LineFormat, read_lines
from tieconv.text import shell_word, shown

RESULT_SCHEMA = "tieconv.fleet-result/1"
_LONGEST_NAME = 80


def _entry(result: CommandResult, asked: Mapping[str, object], **listed: object) -> dict[str, object]:
    failure = result.failure
    return {
        "source": result.source,
        "exit_code": result.exit_code,
        "seconds": round(result.seconds, 3),
        "output": result.output,
        "output_content": result.content,
        "error": failure and {"message": failure.message, "hint": failure.hint},
        "asked": asked,
        **listed,
        "report": json.loads(result.document) if result.document else None,
    }


def _parse(entry: Mapping[str, Any]) -> CommandResult:
    error, code = entry["error"], entry["exit_code"]
    return CommandResult(
        str(entry["source"]),
        None if code is None else whole(code, 255),
        real(entry["seconds"], LAST_SECOND),
        "",  # a run counts exit codes alone
        None if entry["output"] is None else str(entry["output"]),
        None if error is None else Failure(str(error["message"]), str(error["hint"])),
        str(entry.get("output_content", "")),
    )


def _failed(source: str, failure: Failure) -> CommandResult:
    return CommandResult(source, None, failure=failure)


def _is_kept(result: CommandResult, directory: str) -> bool:
    """Return whether ``directory`` still has what the command wrote for the model."""
    return result.output is None or content_of(_below(directory, result.output)) == result.content


RESULTS: LineFormat[CommandResult] = LineFormat(RESULT_SCHEMA, _entry, _parse, _failed, _is_kept)


def _below(directory: str, output: str) -> str:
    """Return where a run keeps ``output`` now, wherever RUNS has been moved: never a path that a line makes up."""
    return os.path.join(directory, os.path.basename(output.rstrip("/")) or "-")


def content_of(directory: str) -> str:
    """Return a SHA-256 of the names and sizes in a directory, or an empty text if there is none."""
    try:
        if os.path.islink(directory):
            return ""
        files = sorted((name, status.st_size) for name, status in walk(Path(directory)) if not S_ISDIR(status.st_mode))
    except (OSError, RecursionError):
        return ""
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()


def lost_result(source: str) -> CommandResult:
    """Return the result of a command whose process was killed."""
    message = f"{shown(source)}: the process that worked on it was killed"
    return CommandResult(source, None, failure=Failure(message, "if memory is short, use --jobs 1"))


def output_of(directory: str, source: str, fingerprint: str, options: Sequence[str]) -> str:
    """Return the directory below ``directory`` for what a command writes.

    It differs for each model, content and options, so nothing is replaced except by the same command.
    """
    digest = hashlib.sha256(json.dumps([source, fingerprint, *options]).encode()).hexdigest()
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", os.path.basename(source.rstrip("/"))).strip(".-")
    return os.path.join(directory, f"{name[:_LONGEST_NAME] or 'model'}-{digest[:10]}")


def exported_graphs(directory: str) -> dict[str, str]:
    """Return the graph that `fleet export` wrote for each model. Raises `SettingsError` if there is none."""
    name = re.compile(rf"export(-\d+-of-\d+)?{re.escape(LINES)}")
    files = (
        sorted(entry for entry in os.listdir(directory) if name.fullmatch(entry)) if os.path.isdir(directory) else []
    )
    lines = [line for file in files for line in read_lines(os.path.join(directory, file), RESULTS)]
    latest = {line.result.source: line.result.output for line in sorted(lines, key=lambda line: line.finished)}
    exported = os.path.join(directory, "export")
    graphs = {source: _below(exported, output) for source, output in latest.items() if output is not None}
    if not graphs:
        raise SettingsError(
            f"{shown(directory)} holds no graph",
            f"write them with: tieconv fleet export SOURCES -o {shell_word(directory)}",
            "fleet.graphs",
        )
    return graphs
