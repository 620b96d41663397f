"""`check`, `fleet` and `analyze --revisions` on the Hub: each model or revision a row, and nothing twice."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.children import answer, sound
from tests.hub.conftest import Run, interrupt
from tests.hub.models import EMBEDDING, ROWS, WIDTH, noise, sharded, write_shard
from tests.hub.stub import Fault, Hub
from tests.patience import HANGS


@pytest.fixture
def org(hub: Hub, models: Path, tmp_path: Path) -> Hub:
    """Five models: two sound, one with a fault of its own, one gated, one malformed; and one of another owner."""
    hub.add("org/tied", models / "llama-tied")
    hub.add("org/diverged", models / "llama-diverged")
    hub.add("org/gated", models / "llama-untied", gated=True)
    hub.add("org/t5", models / "t5", task="translation")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "model.safetensors").write_bytes(b"no weights")
    hub.add("org/broken", broken)
    hub.add("other/tied", models / "llama-tied")
    return hub


def test_each_model_is_a_row(org: Hub, tieconv: Run) -> None:
    """What cannot be read is a row of the table and of the lines, and no end: the exit code says so."""
    result = tieconv("check", "hf://org/*", "--depth", "full", "-j", "2")
    assert result.returncode == 2
    table = result.stdout.rpartition("\n\n")[2]
    verdicts = {row.split()[0]: row for row in table.splitlines()}
    assert list(verdicts) == ["model", *(f"hf://org/{name}" for name in ("tied", "diverged", "gated", "t5", "broken"))]
    assert "gated" in verdicts["hf://org/gated"] and "not checked" in verdicts["hf://org/broken"]
    assert "TIE001" in verdicts["hf://org/diverged"] and " ok " in verdicts["hf://org/tied"]
    lines = tieconv("check", "hf://org/*", "--depth", "full", "--format", "jsonl").stdout.splitlines()
    told = [json.loads(line)["models"][0] for line in lines]
    assert [model["source"] for model in told] == list(verdicts)[1:]
    assert [model["failure"] is None for model in told] == [True, True, False, True, False]


def test_what_was_not_compared(org: Hub, tieconv: Run) -> None:
    """By samples a broken tie may look sound; so the gate fails, and says what compares it."""
    result = tieconv("check", "hf://org/*")
    rows = {row.split()[0]: row for row in result.stdout.rpartition("\n\n")[2].splitlines()}
    assert "TIE012" in rows["hf://org/diverged"] and " ok " in rows["hf://org/tied"]
    assert {"hf://org/diverged: failed", "hf://org/tied: ok"} <= set(result.stdout.splitlines())
    assert "was not compared with the embedding: the sampled bytes are equal" in result.stdout
    [note] = [line for line in result.stderr.splitlines() if line.startswith("note:")]
    assert "lm_head.weight of hf://org/diverged" in note and "--depth full" in note
    [model] = json.loads(tieconv("check", "hf://org/diverged", "--format", "json").stdout)["models"]
    assert model["unread"] == ["lm_head.weight"]
    whole = tieconv("check", "hf://org/diverged", "--depth", "full", "--format", "json")
    assert whole.returncode == 1 and json.loads(whole.stdout)["models"][0]["unread"] == []
    assert "note:" not in whole.stderr


def test_resumed_unread(org: Hub, tieconv: Run) -> None:
    """What a run file keeps says so too."""
    words = ("check", "hf://org/div*", "--resume", "run.jsonl")
    first, second = tieconv(*words), tieconv(*words)
    assert second.stdout == first.stdout and "TIE012" in second.stdout and "--depth full" in second.stderr


def test_filters(org: Hub, tieconv: Run) -> None:
    """By task, by name and by number."""

    def sources(*words: str) -> list[str]:
        lines = tieconv("check", *words, "--depth", "header", "--format", "jsonl").stdout.splitlines()
        return [json.loads(line)["models"][0]["source"] for line in lines]

    assert sources("hf://org/*", "--task", "translation") == ["hf://org/t5"]
    assert sources("hf://org/*", "--limit", "2") == ["hf://org/tied", "hf://org/diverged"]
    assert sources("hf://org/*", "--limit", "1", "--include", "t5") == ["hf://org/t5"]
    assert sources("hf://org/t*") == ["hf://org/tied", "hf://org/t5"]
    assert sources("hf://org/?i*", "--limit", "1", "hf://other/tied") == ["hf://org/tied", "hf://other/tied"]
    assert tieconv("check", "hf://org/tied", "--limit", "2").returncode == 2
    assert "matches no model" in tieconv("check", "hf://nobody/*").stderr


def test_models_of_another_owner() -> None:
    """A listing that names models of somebody else is not followed there."""
    from tieconv.sources.hub.source import _matching

    models = [SimpleNamespace(id=name) for name in ("org/a", "other/a", "orga")]
    assert list(_matching(models, "org", "*")) == [("hf://org/a", None)]
    assert list(_matching(models[1:2], "org", "*")) == []


def test_filters_of_a_pattern(org: Hub, tieconv: Run) -> None:
    """By name and age; the listing says when each model was changed, and a lone model is asked for."""
    org.modified = {"org/tied": "2026-11-20T10:00:00.000Z"}
    result = tieconv("check", "hf://org/*", "--newer-than", "2026-11-10", "--limit", "1")
    assert result.returncode == 0 and "hf://org/tied: ok" in result.stdout
    assert "1 model:" in result.stderr
    both = ("hf://org/tied", "hf://org/t5")
    result = tieconv("check", *both, "--newer-than", "2026-11-10")
    assert "hf://org/tied: ok" in result.stdout and "hf://org/t5" not in result.stdout
    result = tieconv("check", "hf://org/*", "--exclude", "[!t]*", "--include", "t*", "--limit", "1")
    assert "hf://org/tied: ok" in result.stdout and "hf://org/t5" not in result.stdout


def test_resume(org: Hub, tieconv: Run, tmp_path: Path) -> None:
    """A run file keeps what was found; the next run reads only what is missing or failed, and says the same."""
    run = tmp_path / "run.jsonl"
    words = ("check", "hf://org/*", "--depth", "full", "--resume", str(run), "--format", "json")
    first = tieconv(*words)
    assert len(run.read_text().splitlines()) == 5
    lines = run.read_text().splitlines(keepends=True)
    run.write_text("".join(lines[:1]) + lines[1][:50])  # killed while it wrote the second
    org.requests.clear()
    second = tieconv(*words)
    assert (second.stdout, second.returncode) == (first.stdout, first.returncode)
    asked = {one.path.split("?")[0] for one in org.requests if one.path.startswith("/api/models/")}
    assert asked == {f"/api/models/org/{name}" for name in ("diverged", "gated", "t5", "broken")}
    org.requests.clear()
    tieconv(*words)
    asked = {one.path.split("?")[0] for one in org.requests if one.path.startswith("/api/models/")}
    assert asked == {"/api/models/org/gated", "/api/models/org/broken"}
    org.requests.clear()
    tieconv("check", "hf://org/*", "--depth", "header", "--resume", run)
    assert len({one.path for one in org.requests if one.path.startswith("/api/models/")}) == 5


def test_no_run_file(org: Hub, tieconv: Run, tmp_path: Path) -> None:
    """A file of another kind is neither read nor written over."""
    (tmp_path / "notes").write_text("my notes\nmore\n")
    result = tieconv("check", "hf://org/*", "--resume", "notes")
    assert result.returncode == 2 and "is not a tieconv.run/1 file" in result.stderr
    assert (tmp_path / "notes").read_text() == "my notes\nmore\n"


def test_busy_listing(org: Hub, hasty: Run) -> None:
    """The list of models is asked for again where the server is busy."""
    org.faults["api:models"] = Fault("status", 1, "503")
    assert hasty("check", "hf://other/*").returncode == 0


def test_resumed_run_counts_the_same(org: Hub, tieconv: Run, models: Path) -> None:
    """The closing line of a run that is taken up again is that of the first, safe remedies included."""
    org.add("org/duplicated", models / "llama-duplicated")
    words = ("check", "hf://org/d*", "hf://org/t*", "--depth", "full", "--resume", "run.jsonl")
    first, second = tieconv(*words), tieconv(*words)
    assert "--fix can repair" in first.stderr
    assert (second.returncode, second.stdout, second.stderr) == (first.returncode, first.stdout, first.stderr)


@pytest.mark.parametrize("variable", ["HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT"])
def test_a_variable_that_is_not_a_number(variable: str, org: Hub, environment: dict[str, str], tmp_path: Path) -> None:
    """One sentence and exit code 2: huggingface_hub raises while it is imported."""
    words = [sys.executable, "-P", "-m", "tieconv", "inspect", "hf://org/tied"]
    result = subprocess.run(words, env={**environment, variable: "1.5"}, cwd=tmp_path, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (2, "")
    first, hint = result.stderr.splitlines()
    assert first.startswith("error: huggingface_hub does not accept a variable") and variable in hint


@pytest.mark.sampled(1)
@pytest.mark.parametrize("group", [True, False], ids=["group", "parent alone"])
def test_interrupt_of_processes(group: bool, org: Hub, environment: dict[str, str], tmp_path: Path) -> None:
    """^C ends a run with `-j` at once, also where only the parent hears it, while servers are silent."""
    for name in ("config.json", "model.safetensors"):
        org.faults[name] = Fault("stall", value=str(2 * HANGS))
    patient = {**environment, "HF_HUB_DOWNLOAD_TIMEOUT": str(int(2 * HANGS))}
    interrupt(("check", "hf://org/*", "-j", "3"), org, patient, tmp_path, stalled=2, group=group)


NAMES = ("llama-tied", "llama-duplicated", "llama-headless-config", "t5")


@pytest.fixture
def organisation(hub: Hub, models: Path) -> Hub:
    """Four models of one owner, two of which have a finding, and one of another owner."""
    for name in NAMES:
        hub.add(f"organisation/{name}", models / name)
    hub.add("other/tied", models / "llama-tied")
    return hub


def results(directory: Path, verb: str) -> dict[str, dict[str, object]]:
    """The last line of each model, by its name."""
    lines = map(json.loads, (directory / f"{verb}.jsonl").read_text().splitlines())
    if verb != "check":
        return {line["source"].rpartition("/")[2]: line for line in lines}
    checked = [(line, line["report"]["models"][0]) for line in lines]
    return {model["source"].rpartition("/")[2]: line | {"checked": model} for line, model in checked}


def rules(directory: Path) -> dict[str, list[str]]:
    lines = results(directory, "check")
    return {name: sorted(entry["rule"] for entry in line["checked"]["findings"]) for name, line in lines.items()}  # type: ignore[index]


def test_the_findings_are_the_local_ones(organisation: Hub, tieconv: Run, models: Path, tmp_path: Path) -> None:
    """Of one owner's models; each line has the commit."""
    for name in NAMES:
        shutil.copytree(models / name, tmp_path / "local" / name)
    assert (
        tieconv("fleet", "check", tmp_path / "local", "-o", tmp_path / "here", "-q", "--depth", "full").returncode == 0
    )
    sound(tieconv("fleet", "check", "hf://organisation/*", "-o", tmp_path / "far", "-q", "-j", "2", "--depth", "full"))
    assert rules(tmp_path / "far") == rules(tmp_path / "here")
    commits = {name: line["fingerprint"] for name, line in results(tmp_path / "far", "check").items()}
    assert commits == {name: organisation.repos[f"organisation/{name}"].commit for name in NAMES}


def test_a_changed_commit_is_read_again(organisation: Hub, tieconv: Run, models: Path, tmp_path: Path) -> None:
    """The second run asks for no file; after one commit, for those of that model alone."""
    words = ("fleet", "check", "hf://organisation/*", "-o", tmp_path / "runs", "--depth", "full")
    assert "4 read, 0 unchanged" in tieconv(*words).stderr
    organisation.requests.clear()
    assert "0 read, 4 unchanged" in tieconv(*words).stderr
    assert not [request for request in organisation.requests if "/resolve/" in request.path]
    organisation.add("organisation/t5", models / "llama-duplicated").commit = "f" * 40
    organisation.requests.clear()
    assert "1 read, 3 unchanged" in tieconv(*words).stderr
    asked = {request.path for request in organisation.requests if "/resolve/" in request.path}
    assert asked and all("/organisation/t5/" in path for path in asked)
    assert rules(tmp_path / "runs")["t5"] == ["TIE002"]


def test_what_was_not_compared_is_counted(organisation: Hub, tieconv: Run, tmp_path: Path) -> None:
    """By default samples of a copy are read, which prove nothing. The report says so, and how to compare."""
    assert tieconv("fleet", "check", "hf://organisation/*", "-o", tmp_path / "runs", "-q").returncode == 0
    text = tieconv("fleet", "report", tmp_path / "runs", "--no-config").stdout
    assert "\n1 model with tied names that were not compared; to compare: --depth full\n" in text
    assert "not compared; use --depth full" in (tmp_path / "runs" / "report.html").read_text()
    document = json.loads(tieconv("fleet", "report", tmp_path / "runs", "--no-config", "--json").stdout)
    assert (document["uncompared"], document["unread"]) == (1, 0)


def test_other_commands(organisation: Hub, tieconv: Run, tmp_path: Path) -> None:
    """`inspect` has the document of the command alone. `convert` writes each model below the run."""
    models = "hf://organisation/t5", "hf://organisation/llama-tied"
    sound(tieconv("fleet", "inspect", *models, "-o", tmp_path / "runs", "-q"))
    alone = json.loads(tieconv("inspect", "hf://organisation/t5", "--json").stdout)
    document = results(tmp_path / "runs", "inspect")["t5"]["report"]
    assert isinstance(document, dict) and document["ties"] == alone["ties"]
    words = ("fleet", "convert", "hf://organisation/t5", "-o", tmp_path / "runs", "-q", "--", "--to", "torch")
    assert tieconv(*words).returncode == 0
    output = results(tmp_path / "runs", "convert")["t5"]["output"]
    assert Path(str(output), "pytorch_model.bin").exists()


TABLE = ROWS * WIDTH * 2
HEADERS = 9 * 65536
STEPS = ("step1-tokens1B", "step20-tokens20B", "step300")


@pytest.fixture
def run_of_steps(hub: Hub, tmp_path: Path) -> Path:
    """Three branches with other heads, and the embedding of the first."""
    for number, step in enumerate(STEPS):
        hub.add_branch("org/m", step, sharded(tmp_path / step, head=noise(TABLE, 2 + number)))
    return tmp_path


def asked(hub: Hub) -> tuple[int, int]:
    """Requests and bytes of files since the last call."""
    files = [request for request in hub.requests if "/api/" not in request.path]
    hub.requests.clear()
    return len(files), sum(request.sent for request in files)


@pytest.mark.slow
def test_two_matrices_once(hub: Hub, tieconv: Run, run_of_steps: Path) -> None:
    """Headers, config and two matrices a revision; a finished run asks for no file; a changed branch is read again."""
    words = ("analyze", "hf://org/m", "--revisions", ",".join(reversed(STEPS)), "--resume", "run.jsonl", "--json")
    document = answer(tieconv(*words))
    assert [entry["name"] for entry in document["revisions"]] == list(STEPS)
    assert [entry["step"] for entry in document["revisions"]] == [1, 20, 300]
    requests, brought = asked(hub)
    assert 3 * 2 * TABLE < brought < 3 * (2 * TABLE + HEADERS + 16384)
    assert requests < 3 * (9 + 4 + 2 * 2 + 9)
    last = {measure["name"]: measure["value"] for measure in document["revisions"][-1]["measures"]}
    assert last["cosine E to first"] == pytest.approx(1, abs=1e-6) and last["cosine U to first"] < 0.99

    again = json.loads(tieconv(*words).stdout)
    assert asked(hub)[1] == 0
    assert all(entry["reused"] for entry in again["revisions"])
    assert [entry["measures"] for entry in again["revisions"]] == [entry["measures"] for entry in document["revisions"]]

    shutil.rmtree(run_of_steps / STEPS[2])
    hub.add_branch("org/m", STEPS[2], sharded(run_of_steps / STEPS[2], head=noise(TABLE, 99)))
    third = json.loads(tieconv(*words).stdout)
    assert [entry["reused"] for entry in third["revisions"]] == [True, True, False]
    assert (
        3 * 2 * TABLE < asked(hub)[1] < 3 * (2 * TABLE + HEADERS + 16384)
    )  # the first two are what it is compared with


@pytest.mark.slow
def test_nothing_stays_on_the_disk(tieconv: Run, run_of_steps: Path) -> None:
    """The copies of the tables are gone at the end, also after an error."""
    scratch = run_of_steps / "scratch"
    scratch.mkdir()
    for names in (",".join(STEPS), f"{STEPS[0]},{STEPS[1]},step999"):
        tieconv("analyze", "hf://org/m", "--revisions", names, TMPDIR=str(scratch))
        assert list(scratch.iterdir()) == []


@pytest.mark.slow
def test_a_revision_that_is_missing(tieconv: Run, run_of_steps: Path) -> None:
    """One sentence; what was measured before it is in the file."""
    names = f"{STEPS[0]},{STEPS[1]},step999"
    result = tieconv("analyze", "hf://org/m", "--revisions", names, "--resume", "run.jsonl")
    assert result.returncode == 2 and "step999" in result.stderr.splitlines()[0]
    assert len((run_of_steps / "run.jsonl").read_text().splitlines()) == 2


def test_a_tied_run(hub: Hub, tieconv: Run, tmp_path: Path) -> None:
    """A tied model has one table, of which half the bytes are fetched."""
    for number, step in enumerate(STEPS[:2]):
        path = tmp_path / step
        path.mkdir()
        (path / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}))
        layer = ((4096, 512), noise(4096 * 512 * 2, 7))
        stored = {EMBEDDING: ((ROWS, WIDTH), noise(TABLE, number)), "model.layers.0.mlp.up_proj.weight": layer}
        write_shard(path / "model.safetensors", stored)
        hub.add_branch("org/t", step, path)
    result = sound(tieconv("analyze", "hf://org/t", "--revisions", ",".join(STEPS[:2]), "--json"))
    last = json.loads(result.stdout)["revisions"][1]
    assert last["tables"] == {"T": EMBEDDING}
    names = ["cosine T to first", "cosine T to previous", "mean norm T"]
    assert [measure["name"] for measure in last["measures"]] == names
    assert 2 * TABLE < asked(hub)[1] < 2 * (TABLE + 65536 + 16384)
