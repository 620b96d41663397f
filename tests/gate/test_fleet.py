"""`tieconv fleet`: results as models finish, changed models alone, parts, tables, the page, and what is new."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.checks.fixtures import FIXTURES
from tests.checks.fixtures.model import LLAMA, flagged, llama, matrix, save
from tests.children import start, wait_until
from tests.cli.run import ok, refused, run
from tests.gate.conftest import NAMES
from tests.patience import prompt
from tests.schemas import validate
from tieconv.gate.fleet_runs import read_run


def report(*words: str) -> dict[str, object]:
    """The JSON of a report, which fits its schema."""
    document: dict[str, object] = json.loads(run("fleet report --no-config --json", *words).stdout)
    validate(document, "fleet")
    return document


def children(process: int) -> list[int]:
    """The processes that a process started, as Linux lists them."""
    if sys.platform != "linux":
        return []
    return [int(number) for number in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def ended(processes: list[int]) -> bool:
    """Wait until they have ended."""
    wait_until(lambda: not any(Path(f"/proc/{process}").exists() for process in processes))
    return True


def test_results_and_report(fleet: Path) -> None:
    """A line a model, then the counts, the rules and the files."""
    checked = ok("fleet check fleet -o runs")
    assert checked.stdout == ""
    assert checked.stderr.startswith("3 models: 3 read, 0 unchanged; ")
    assert re.search(r"models/s| s a model", checked.stderr) and checked.stderr.endswith(
        "next: tieconv fleet report runs\n"
    )
    lines = [json.loads(line) for line in Path("runs/check.jsonl").read_text().splitlines()]
    assert sorted(line["report"]["models"][0]["source"] for line in lines) == sorted(f"fleet/{name}" for name in NAMES)
    document = report("runs")
    assert (document["models"], document["failed"], document["unread"], document["unfinished"]) == (3, 1, 0, 0)
    assert document["rules"] == [{"rule": "TIE002", "level": "warning", "models": 1, "before": None}]
    assert document["bytes"] == sum(path.stat().st_size for path in fleet.rglob("*") if path.is_file())
    text = ok("fleet report --no-config runs")
    assert ": 1 failed" in text.stdout.splitlines()[0]
    assert "wrote runs/report.html" in text.stderr


def test_the_report_names_models_and_repairs(fleet: Path) -> None:
    """On the screen and on the page: what fails, the worst first, why, and the command that repairs it."""
    (fleet / "t5" / "model.safetensors").write_bytes(b"x")
    run("fleet check fleet -o runs")
    lines = run("fleet report --no-config runs").stdout.splitlines()
    at = lines.index("models that fail, the worst first")
    assert lines[at + 1].startswith("  fleet/t5: model.safetensors")
    repair = "tieconv retie fleet/llama-duplicated -o OUT"
    report = json.loads(run("fleet report --no-config --json runs").stdout)
    assert f": {report['failed']} failed, 1 of them could not be read" in lines[0] and report["failed"] == 2
    assert lines[at + 2].startswith("    hint: ")
    assert lines[at + 3].startswith("  fleet/llama-duplicated: TIE002: lm_head.weight is a byte-identical copy of ")
    assert lines[at + 4 :] == [f"    next: {repair}"]
    assert "  TIE002 redundant-copy  warning  1" in lines
    page = Path("runs/report.html").read_text(encoding="utf-8")
    assert page.count(f"<code>{repair}</code>") == 1 and "TIE002 redundant-copy" in page
    assert lines[at + 2].removeprefix("    hint: ") in page


def test_an_error_for_every_loader_is_above_an_error_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model without a head is worse than one that only old vLLM refuses. Its command follows its line."""
    monkeypatch.chdir(tmp_path)
    phi = {**LLAMA, "architectures": ["PhiForCausalLM"], "model_type": "phi", "hidden_size": 4, "intermediate_size": 5}
    save(tmp_path / "fleet" / "a", flagged(phi, False), llama(head=matrix(seed=1)))
    save(tmp_path / "fleet" / "z", flagged(LLAMA, False), llama())
    run("fleet check fleet -o runs --for vllm==0.28")
    assert [(model["source"], model["rules"][0]) for model in report("runs")["worst"]] == [  # type: ignore[attr-defined]
        ("fleet/z", "TIE003"), ("fleet/a", "CON003"),
    ]  # fmt: skip
    page = Path("runs/report.html").read_text(encoding="utf-8")
    assert re.search(
        r"is missing, but the config says untied\.[^<]*<br>get the file that has lm_head\.weight; if tied: "
        r"<code>tieconv retie fleet/z -o OUT</code>",
        page,
    )


def test_a_run_names_at_most_twenty_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report names the others."""
    monkeypatch.chdir(tmp_path)
    for number in range(23):
        (tmp_path / "fleet" / f"m{number:02}").mkdir(parents=True)
        (tmp_path / "fleet" / f"m{number:02}" / "model.safetensors").write_bytes(b"x")
    lines = run("fleet check fleet -o runs").stderr.splitlines()
    assert lines[0].startswith("23 models: 0 read, 0 unchanged, 23 could not be read; ")
    assert [line.split(":")[0] for line in lines[1:21]] == [f"  fleet/m{number:02}" for number in range(20)]
    assert lines[21] == "  … and 3 more"


def test_without_pyarrow_the_page_is_written(fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the command says why there are no tables, and how to get them."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    ok("fleet check fleet -o runs")
    text = ok("fleet report --no-config runs")
    assert (
        "wrote runs/report.html\nno tables were written, because pyarrow is not installed: pip install" in text.stderr
    )
    assert not Path("runs/models.parquet").exists()


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_only_changed_models_are_read_again(fleet: Path, jobs: str) -> None:
    """A changed file, its time, and a new model; then the last result counts."""
    ok("fleet check fleet -o runs -j", jobs)
    assert "0 read, 3 unchanged" in ok("fleet check fleet -o runs -j", jobs).stderr
    shutil.copytree(fleet / "llama-duplicated", fleet / "new")
    os.utime(fleet / "t5" / "config.json", (1, 1))
    config = json.loads((fleet / "llama-duplicated" / "config.json").read_text())
    (fleet / "llama-duplicated" / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    assert "3 read, 1 unchanged" in ok("fleet check fleet -o runs -j", jobs).stderr
    assert [model["source"] for model in report("runs")["worst"]] == ["fleet/new"]  # type: ignore[attr-defined]


def test_other_options_read_every_model(fleet: Path) -> None:
    """And a run that mixes options has no report until it is finished."""
    ok("fleet check fleet -o runs")
    assert "3 read, 0 unchanged" in ok("fleet check fleet -o runs --depth full").stderr
    lines = Path("runs/check.jsonl").read_bytes().splitlines(keepends=True)
    Path("runs/check.jsonl").write_bytes(b"".join(lines[:4]))
    assert "different options" in refused("fleet report runs")


def test_a_killed_run_goes_on(fleet: Path) -> None:
    """Its unfinished line is replaced, and the report counts what is not finished."""
    ok("fleet check fleet -o runs")
    lines = Path("runs/check.jsonl").read_bytes().splitlines(keepends=True)
    Path("runs/check.jsonl").write_bytes(lines[0] + lines[1][:50])
    assert (report("runs")["models"], report("runs")["unfinished"]) == (1, 2)
    assert run("fleet report --no-config runs --since runs").exit_code == 2
    assert "2 read, 1 unchanged" in ok("fleet check fleet -o runs").stderr
    assert (report("runs")["models"], report("runs")["unfinished"]) == (3, 0)


def test_a_remedy_without_an_action_is_read_again(fleet: Path) -> None:
    """`--fix` does not apply the command for a graph with a NaN."""
    FIXTURES["ONX004 bad"](fleet / "graph")
    ok("fleet check fleet -o runs")
    assert "ONX004" in {row["rule"] for row in report("runs")["rules"]}


@pytest.mark.parametrize("kind", ["jsonl", "list"])
def test_deeply_nested_results_are_refused(kind: str, fleet: Path) -> None:
    """Neither file makes the parser fail without a sentence."""
    ok("fleet check fleet -o runs")
    Path(f"runs/check.{kind}").write_text("[" * 100_000 + "\n")
    message = refused("fleet report runs")
    assert "is not a" in message and "RecursionError" not in message
    shutil.copy(f"runs/check.{kind}", "earlier.jsonl")
    assert "line 1 cannot be read" in refused("check fleet/llama-duplicated --resume earlier.jsonl")


@pytest.mark.parametrize(("asked", "finished"), [("[1]", "0"), ("null", "0"), ("{}", "[]"), ("{}", '"x"')])
def test_keys_of_another_type_are_refused(asked: str, finished: str, fleet: Path) -> None:
    ok("fleet check fleet -o runs")
    entry = json.loads(Path("runs/check.jsonl").read_text().splitlines()[0]) | {
        "asked": json.loads(asked), "finished": json.loads(finished), "actions": []
    }  # fmt: skip
    entry["report"]["models"][0]["findings"] = []
    Path("runs/check.jsonl").write_text(json.dumps(entry) + "\n")
    assert "line 1 cannot be read" in refused("fleet report runs")


def test_a_hard_link_is_not_extended(fleet: Path) -> None:
    """Its other name would change too."""
    ok("fleet check fleet -o runs")
    Path("backup.jsonl").hardlink_to("runs/check.jsonl")
    assert "hard link" in refused("fleet check fleet -o runs")


def test_a_driver_that_is_killed(fleet: Path) -> None:
    """SIGKILL in the middle: a later run reads only what has no line, and every model has its findings."""
    for number in range(300):
        shutil.copytree(fleet / "llama-duplicated", fleet / f"copy-{number}")
    driver = start([sys.executable, "-P", "-m", "tieconv", "fleet", "check", "fleet", "-o", "runs", "-j2"])
    results = Path("runs/check.jsonl")
    wait_until(lambda: results.exists() and results.read_bytes().count(b"\n") >= 20, driver)
    workers = children(driver.pid)
    driver.kill()
    driver.wait()
    assert (workers or sys.platform != "linux") and ended(workers)
    done = results.read_bytes().count(b"\n")
    assert f"{303 - done} read, {done} unchanged" in ok("fleet check fleet -o runs -j2").stderr
    assert (report("runs")["models"], report("runs")["failed"]) == (303, 301)


def test_parts(fleet: Path) -> None:
    """Each part writes its file; together they are the run."""
    ok("fleet check fleet -o runs --part 1/2")
    assert "1 of 2 parts" in refused("fleet report runs")
    ok("fleet check fleet -o runs --part 2/2")
    assert sorted(path.name for path in Path("runs").glob("*.jsonl")) == ["check-1-of-2.jsonl", "check-2-of-2.jsonl"]
    assert (report("runs")["models"], report("runs")["failed"]) == (3, 1)
    ok("fleet check fleet -o runs")
    assert "parts of different runs" in refused("fleet report runs")
    for wrong in ("0/2", "3/2", "1", "a/b"):
        assert run("fleet check fleet -o runs --part", wrong).exit_code == 2


def test_new_fixed_still(fleet: Path) -> None:
    """Exit 1 on what is new: a finding, and a model that can no longer be read. A removed model fixes nothing."""
    shutil.copytree(fleet / "llama-duplicated", fleet / "second")
    shutil.copytree(fleet / "llama-duplicated", fleet / "third")
    ok("fleet check fleet -o yesterday")
    same = run("fleet report --no-config yesterday --since yesterday")
    assert same.exit_code == 0 and "0 new, 0 fixed, 3 still" in same.stdout
    shutil.copytree("yesterday", "today")
    shutil.rmtree(fleet / "third")
    shutil.rmtree(fleet / "second")
    shutil.copytree(fleet / "bart", fleet / "second")
    shutil.copytree(fleet / "llama-duplicated", fleet / "added")
    (fleet / "t5" / "model.safetensors").write_bytes(b"x")
    checked = run("fleet check fleet -o today")
    assert checked.exit_code == 2
    counts, why, _ = checked.stderr.splitlines()
    assert counts.startswith("5 models: 2 read, 2 unchanged, 1 could not be read; ")
    assert why.startswith("  fleet/t5: model.safetensors")
    assert run("fleet report --no-config today --since yesterday").exit_code == 1
    document = report("today", "--since", "yesterday")
    changes = [" ".join((change["state"], change["source"], change["rule"])) for change in document["changes"]]  # type: ignore[attr-defined]
    assert sorted(changes) == ["fixed fleet/second TIE002", "new fleet/added TIE002", "new fleet/t5 unread"]
    since = document["since"]
    assert isinstance(since, dict)
    assert {key: since[key] for key in ("new", "fixed", "still", "added", "removed")} == {
        "new": 2, "fixed": 1, "still": 1, "added": 1, "removed": 1,
    }  # fmt: skip
    assert run("fleet report --no-config today --since yesterday --ignore TIE002").exit_code == 1
    assert run("fleet report --no-config yesterday --since today").exit_code == 1


def test_runs_of_other_depths_are_not_compared(fleet: Path) -> None:
    ok("fleet check fleet -o deep --depth full")
    ok("fleet check fleet -o flat --depth header")
    assert "cannot be compared" in refused("fleet report flat --since deep")


def test_results_are_not_written_into_a_model(fleet: Path) -> None:
    model = next(path for path in Path("fleet").iterdir() if (path / "model.safetensors").exists())
    before = sorted(model.iterdir())
    assert "holds a model" in refused(f"fleet check fleet -o {model}") and sorted(model.iterdir()) == before


def test_no_run(fleet: Path) -> None:
    assert "holds no run" in refused("fleet report fleet")
    assert "cannot be read" in refused("fleet report nowhere")


def test_tables_answer_queries(fleet: Path) -> None:
    """One row a model, one a finding, with the types that queries need."""
    parquet = pytest.importorskip("pyarrow.parquet", reason="the tables are Parquet")
    ok("fleet check fleet -o runs")
    assert "runs/models.parquet, runs/findings.parquet" in ok("fleet report --no-config runs").stderr
    rows = parquet.read_table("runs/models.parquet").to_pylist()
    assert [(row["source"], row["failed"], row["findings"]) for row in rows] == [
        ("fleet/bart", False, 0), ("fleet/llama-duplicated", True, 1), ("fleet/t5", False, 0),
    ]  # fmt: skip
    [finding] = parquet.read_table("runs/findings.parquet").to_pylist()
    assert (finding["source"], finding["rule"], finding["counts"]) == ("fleet/llama-duplicated", "TIE002", True)
    assert finding["tensors"] == ["model.embed_tokens.weight", "lm_head.weight"] or len(finding["tensors"]) == 2
    assert rows[0]["finished"].timestamp() == pytest.approx(read_run("runs").models["fleet/bart"].finished, abs=0.01)


def test_the_query_of_the_guide(fleet: Path) -> None:
    """DuckDB reads the tables."""
    pytest.importorskip("pyarrow", reason="the tables are Parquet")
    duckdb = pytest.importorskip("duckdb", reason="DuckDB runs the query of the guide")
    guide = (Path(__file__).parents[2] / "docs/guides/fleets.md").read_text(encoding="utf-8")
    [query] = [text for text in re.findall(r"```sql\n(.*?)```", guide, re.DOTALL) if "findings.parquet" in text]
    ok("fleet check fleet -o runs")
    ok("fleet report --no-config runs")
    assert duckdb.sql(query.replace("findings.parquet", "runs/findings.parquet")).fetchall() == [
        ("TIE002", "warning", 1)
    ]


def test_layouts_of_registries(fleet: Path) -> None:
    """The model below an MLflow model directory, and in a directory of W&B artifacts, is found."""
    mlflow = fleet / "mlruns" / "1" / "models" / "m-1" / "artifacts"
    shutil.copytree(fleet / "llama-duplicated", mlflow / "model")
    (mlflow / "MLmodel").write_text("flavors: {}\n")
    shutil.copytree(fleet / "llama-duplicated", fleet / "artifacts" / "model-run:v3")
    assert "5 models: 5 read" in ok("fleet check fleet -o runs").stderr
    assert [model["source"] for model in report("runs")["worst"]] == [  # type: ignore[attr-defined]
        "fleet/artifacts/model-run:v3", "fleet/llama-duplicated", "fleet/mlruns/1/models/m-1/artifacts/model",
    ]  # fmt: skip


def test_the_page_escapes_and_runs_its_search_alone(fleet: Path) -> None:
    """A model's name is text, the policy names one script, and the page loads nothing."""
    os.rename(fleet / "llama-duplicated", fleet / "<script>alert(1)<")
    ok("fleet check fleet -o runs")
    ok("fleet report --no-config runs -o page")
    page = Path("page/report.html").read_text(encoding="utf-8")
    assert page.count("<script>") == 1 and "&lt;script&gt;alert(1)" in page
    assert re.findall(r"https?://", page) == []
    assert "prefers-color-scheme:dark" in page and "script-src 'sha256-" in page


def test_a_source_that_cannot_be_listed(fleet: Path) -> None:
    """The run reads the others, and tries it again."""
    for _ in range(2):
        result = run("fleet check fleet/t5 fleet/absent -o runs")
        assert result.exit_code == 2 and "1 could not be read" in result.stderr
    assert report("runs")["unread"] == 1
    lines = Path("runs/check.jsonl").read_text().splitlines()
    assert [json.loads(line)["bytes"] for line in lines if "fleet/absent" in line] == [0, 0]


@pytest.mark.slow
def test_ten_thousand_models(models: Path, tmp_path: Path) -> None:
    """Check, the same again, and the report: every model has its finding, and no process takes 200 MiB."""
    names = ["llama-tied", "llama-duplicated", "llama-untied", "llama-headless-config"]
    for number in range(10_000):
        shutil.copytree(models / names[number % 4], tmp_path / "fleet" / f"m{number:05}", copy_function=os.link)
    seconds = []
    for words in (["check", "fleet", "-o", "runs", "-q", "-j", "2"],) * 2 + (["report", "runs", "--json"],):
        # A process of its own waits for the command, and tells the memory of the largest of its descendants.
        code = (
            "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:], stdout=open('out', 'w'));"
            "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, done.returncode)"
        )
        start = time.monotonic()
        command = [sys.executable, "-c", code, sys.executable, "-m", "tieconv", "fleet", *words]
        waiter = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        seconds.append(time.monotonic() - start)
        kilobytes, status = map(int, waiter.stdout.split())
        assert status == 0, waiter.stderr
        assert kilobytes < 200 << 10
    assert seconds[1] < seconds[0] / 2  # nothing is read again
    document = json.loads((tmp_path / "out").read_text())
    assert (document["models"], document["unread"]) == (10_000, 0)
    rules = {row["rule"]: row["models"] for row in document["rules"]}
    assert rules["TIE002"] == rules["TIE003"] == 2500


WRITTEN = ("check.list", "check.jsonl", "report.html", "models.parquet", "findings.parquet")
"""What `fleet check` and `fleet report` write into RUNS."""


def refused_or_ok(line: str) -> str:
    """The output of a command that ends with exit code 0 or 2 and never calls itself a bug."""
    with prompt(5):
        result = run(line)
    assert result.exit_code in (0, 2), result.output
    assert "this is a bug" not in result.stderr and "Traceback" not in result.stderr, result.stderr
    return result.stderr


def test_nothing_is_written_through_a_symlink(fleet: Path, tmp_path: Path) -> None:
    """Not with content, without, or absent: the command refuses, and the other file keeps its bytes."""
    ok("fleet check fleet -o whole")
    ok("fleet report --no-config whole")
    for name in WRITTEN:
        for content in (b"precious", b"", None):
            shutil.rmtree("runs", ignore_errors=True)
            shutil.copytree("whole", "runs")
            Path("runs", name).unlink()
            Path("runs", name).symlink_to(tmp_path / "victim")
            (tmp_path / "victim").unlink(missing_ok=True)
            if content is not None:
                (tmp_path / "victim").write_bytes(content)
            line = "fleet report --no-config runs" if name[0] in "rmf" else "fleet check fleet -o runs"
            assert "symlink" in refused(line), (name, content)
            now = (tmp_path / "victim").read_bytes() if (tmp_path / "victim").exists() else None
            assert now == content, (name, content)
            assert not list(Path("runs").glob(".*")), (name, content)
    Path("whole/check.list").rename("check.list")
    Path("whole/check.list").symlink_to("../check.list")
    assert "whole/check.list" in refused("fleet report --no-config whole")


def test_what_a_run_writes_is_of_a_new_file(fleet: Path) -> None:
    """A planted file lends neither its mode nor its inode, and a second name of it keeps its bytes."""
    ok("fleet check fleet -o runs")
    ok("fleet report --no-config runs")
    for name in WRITTEN:
        Path("runs", name).chmod(0o6777)
        if name != "check.jsonl":
            Path(name).hardlink_to(f"runs/{name}")
    before = {name: Path(name).read_bytes() for name in WRITTEN if name != "check.jsonl"}
    ok("fleet check fleet/t5 -o runs")
    ok("fleet report --no-config runs")
    Path("new").touch()
    mode = Path("new").stat().st_mode
    assert {name: Path("runs", name).stat().st_mode for name in WRITTEN} == dict.fromkeys(WRITTEN, mode)
    assert {name: Path(name).read_bytes() for name in before} == before


def test_copies_stay_below_the_run(fleet: Path, tmp_path: Path) -> None:
    """RUNS/convert is a directory, and so is each copy in it: never a symlink to another place."""
    (tmp_path / "victim").mkdir()
    Path("runs").mkdir()
    Path("runs/convert").symlink_to(tmp_path / "victim")
    assert "runs/convert cannot be written: it is a symlink" in refused("fleet convert fleet/t5 -o runs -- --to torch")
    assert os.listdir(tmp_path / "victim") == []


def test_what_is_not_a_regular_file_is_refused(fleet: Path) -> None:
    """A FIFO, a directory, and links to devices: an answer at once, without reading."""
    ok("fleet check fleet -o whole")
    kinds = {
        "fifo": os.mkfifo,
        "directory": os.mkdir,
        "zero": lambda path: os.symlink("/dev/zero", path),
        "loop": lambda path: os.symlink(os.path.basename(path), path),
    }
    for name in WRITTEN:
        for kind, make in kinds.items():
            shutil.rmtree("runs", ignore_errors=True)
            shutil.copytree("whole", "runs")
            Path("runs", name).unlink(missing_ok=True)
            make(f"runs/{name}")
            lines = ["fleet report --no-config runs"]
            if name.startswith("check"):
                lines += ["fleet check fleet -o runs", f"check fleet/t5 --resume runs/{name}"]
                lines += ["fleet report --no-config whole --since runs"]
            for line in lines:
                assert f"runs/{name}" in refused_or_ok(line), (name, kind, line)


def test_the_size_of_results_is_bounded(fleet: Path) -> None:
    """A sparse terabyte, and a line without an end."""
    ok("fleet check fleet -o runs")
    for size, word in ((1 << 40, "larger than"), (80 << 20, "line 1 ")):
        Path("runs/check.jsonl").write_bytes(b"")
        os.truncate("runs/check.jsonl", size)
        assert word in refused_or_ok("fleet report --no-config runs"), size
    os.truncate("runs/check.list", 1 << 40)
    assert "larger than" in refused_or_ok("fleet report --no-config runs")


NUMBERS = ("NaN", "Infinity", "-Infinity", "1e300", "1e20", "-1e12", "-1", "1e999", "true", '"1"', "[]", "1" * 100_000,
           str(10**400), str(2**70), str(2**63))  # fmt: skip


def test_numbers_out_of_range_are_refused(fleet: Path) -> None:
    """Every reader of a line answers with its number."""
    ok("fleet check fleet -o runs")
    line, *_ = Path("runs/check.jsonl").read_text().splitlines()
    for key in ("bytes", "finished"):
        for number in NUMBERS:
            changed = re.sub(rf'"{key}": [0-9.]+', lambda _, put=f'"{key}": {number}': put, line)
            assert changed != line
            Path("runs/check.jsonl").write_text(changed + "\n")
            for command in ("fleet report --no-config runs", "fleet check fleet -o runs"):
                assert "line 1 cannot be read" in refused(command), (key, number[:40])
    for changed in (line.replace('"asked"', '"asked": {}, "asked"'), "[" * 99_999, line.replace("{", "[{", 1)):
        Path("runs/check.jsonl").write_text(changed + "\n")
        assert "line 1 cannot be read" in refused("fleet report --no-config runs"), changed[:60]


def test_a_name_that_is_not_utf8(fleet: Path) -> None:
    """The results keep it, the tables and the page escape it."""
    shutil.copytree(os.fsencode(fleet / "t5"), os.fsencode(fleet) + b"/\xff")
    ok("fleet check fleet -o runs")
    assert "0 read, 4 unchanged" in ok("fleet check fleet -o runs").stderr
    assert report("runs")["models"] == 4
