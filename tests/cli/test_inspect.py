"""`tieconv inspect` as a user meets it, its first three lines, and encoder-decoders as transformers saves them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest
from safetensors.numpy import load_file

import tieconv
import tieconv as api
from fixtures.hostile import entry, file_of
from tests.checks.fixtures import builder
from tests.checks.fixtures.model import Config, flagged, matrix, save
from tests.cli.run import ok, run
from tests.cli.stored import configure
from tests.patience import HANGS
from tests.schemas import validate
from tieconv.cli import COMMANDS, main
from tieconv.reporters.text.inspect_text import render

ROOT = Path(__file__).parents[2]
FIXTURES = sorted(path.name for path in (ROOT / "fixtures" / "models").iterdir())


@pytest.mark.parametrize("name", FIXTURES)
@pytest.mark.parametrize("depth", ["header", "candidates", "full"])
def test_json_follows_its_schema(models: Path, name: str, depth: str) -> None:
    """One JSON document on stdout, nothing on stderr, for every fixture at every depth."""
    result = ok(f"inspect --json --depth {depth}", models / name)
    validate(json.loads(result.stdout), "inspect")
    assert result.stderr == ""


@pytest.mark.parametrize("name", FIXTURES)
def test_text_names_what_matters(models: Path, name: str) -> None:
    """The text names embedding, head, bias, ties and findings, without a tab or a control character."""
    text = ok("inspect", models / name).stdout
    for word in ("input embedding", "output head", "head bias", "config", "ties", "findings"):
        assert word in text
    assert text.isprintable() or (set(text) - set("\n") and text.replace("\n", "").isprintable())


def test_a_tied_model_names_its_absent_head(models: Path) -> None:
    """The head of a tied model is named although it is not stored, and the model is silent."""
    document = json.loads(ok("inspect --json", models / "llama-tied").stdout)
    assert document["head"]["output_head"]["name"] == "lm_head.weight"
    assert document["head"]["output_head"]["tied_to"] == "model.embed_tokens.weight"
    assert document["findings"] == []
    assert document["config"]["declared"] == [{"path": "tie_word_embeddings", "value": True, "present": True}]


@pytest.mark.parametrize("command", ["inspect", "check", "untie"])
def test_a_mistyped_embedding(models: Path, command: str) -> None:
    """It is no finding about the model, and the closest name is offered; the head of a tied model may be absent."""
    model = models / "llama-tied"
    result = run(f"{command} --embed model.embed_token.weight", model)
    assert (result.exit_code, result.stdout) == (2, "")
    hint = "hint: did you mean model.embed_tokens.weight?\n"
    assert result.stderr.endswith(f"stores no tensor model.embed_token.weight\n{hint}")
    ok("inspect --embed model.embed_tokens.weight --head lm_head.weight", model)
    ok(f"{command} --embed transformer.wte.weight", models / "gpt2-unprefixed")


def test_a_head_that_differs_in_the_sign_of_zeros(tmp_path: Path) -> None:
    """transformers 4.57 and 5.23 compare values, so they tie it. 5.0 does not compare."""
    table = matrix()
    table[3] = 0.0
    head = np.where(table == 0, -table, table)
    config = flagged({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 8}, True)
    model = save(tmp_path / "model", config, {"model.embed_tokens.weight": table, "lm_head.weight": head})
    text = ok("inspect", model).stdout
    assert text.startswith("Tied: lm_head.weight differs from the embedding only in the sign of zeros.")
    assert "transformers 5.0 keeps both. transformers 4.57 and 5.23 tie them." in text
    rows = {row.version: str(row.outcome) for row in api.inspect(model, consumers="transformers").consumers}
    assert rows["5.x"] == rows["4.57"] == "tied" and rows["5.0"] == "untied"


def test_an_equal_copy_costs_bytes(models: Path) -> None:
    """A stored copy is proved identical, counted once in the unique bytes, and has a next command."""
    document = json.loads(ok("inspect --json", models / "llama-duplicated").stdout)
    tie = document["ties"][0]
    states = {member["name"]: member["state"] for member in tie["members"]}
    assert states == {"model.embed_tokens.weight": "canonical", "lm_head.weight": "identical"}
    model = document["model"]
    assert model["bytes_stored"] - model["bytes_unique"] == tie["bytes_wasted"] == 192 * 32 * 2
    assert [finding["rule"] for finding in document["findings"]] == ["TIE002"]
    assert "tieconv retie" in document["findings"][0]["remedy"]["command"]


def test_a_diverged_head_is_measured(models: Path) -> None:
    """Three rows differ: their number, where they are, ulp and absolute difference are given."""
    document = json.loads(ok("inspect --json", models / "llama-diverged").stdout)
    member = document["ties"][0]["members"][1]
    assert member["state"] == "near"
    assert member["detail"]["rows_differing"] == 3
    assert member["detail"]["row_ranges"] == [[189, 192]]
    assert member["detail"]["max_abs"] > 0.2
    assert document["ties"][0]["consistent"] is False
    assert document["findings"][0]["level"] == "error"
    assert member["detail"]["max_ulp"] == 31_744
    text = ok("inspect", models / "llama-diverged").stdout
    assert "near: 3 of 192 rows differ, max |difference|" in text and " ulp" not in text, (
        "across a zero the number says nothing"
    )


def test_header_depth_reads_no_tensor_byte(models: Path) -> None:
    """With --depth header the states of stored copies are unread, and nothing is claimed."""
    document = json.loads(ok("inspect --json --depth header", models / "llama-duplicated").stdout)
    assert document["ties"][0]["members"][1]["state"] == "unread"
    assert document["ties"][0]["consistent"] is None


def test_other_ways_to_name_a_model(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight file, an index, and the current directory are models too."""
    alone = json.loads(ok("inspect --json", models / "llama-tied" / "model.safetensors").stdout)
    assert alone["model"]["layout"] == "file"
    index = json.loads(ok("inspect --json", models / "llama-tied-sharded" / "model.safetensors.index.json").stdout)
    assert index["model"]["layout"] == "sharded"
    monkeypatch.chdir(models / "llama-tied")
    assert ".: LlamaForCausalLM" in ok("inspect").stdout.splitlines()[4]


def test_nested_levels_are_all_shown(models: Path) -> None:
    """A vision-language config declares the flag at the top and in text_config."""
    document = json.loads(ok("inspect --json", models / "qwen2-vl").stdout)
    paths = [entry["path"] for entry in document["config"]["declared"]]
    assert paths == ["tie_word_embeddings", "text_config.tie_word_embeddings"]


def test_names_that_load_as_another(models: Path) -> None:
    """The hub's GPT-2 names lack the prefix: names in the file are shown, with what they load as."""
    document = json.loads(ok("inspect --json", models / "gpt2-unprefixed").stdout)
    member = document["ties"][0]["members"][0]
    assert (member["name"], member["loads_as"]) == ("wte.weight", "transformer.wte.weight")


EVERYWHERE = {"numpy", "torch", "huggingface_hub", "ml_dtypes", "transformers", "safetensors", "rich"}
OF_A_CHECK = {"numpy", "torch", "concurrent.futures", "multiprocessing", "difflib", "tomllib", "hashlib",
              "tieconv.checks.registry", "tieconv.gate.fixes", "tieconv.execute.carry_out"}  # fmt: skip


@pytest.mark.parametrize(
    ("command", "heavy"),
    [("--help", EVERYWHERE), ("--version", EVERYWHERE), (f"inspect {ROOT}/fixtures/models/llama-tied", EVERYWHERE),
     (f"check --no-config {ROOT}/fixtures/models/llama-tied", OF_A_CHECK)],
    ids=["help", "version", "inspect", "check"],
)  # fmt: skip
def test_heavy_modules_stay_out(command: str, heavy: set[str]) -> None:
    """What is not used is not imported: no framework, and for a plain model neither a rule nor a pool."""
    code = (
        "import sys\nfrom tieconv.cli import main\n"
        f"try: main({command.split()!r})\nexcept SystemExit: pass\n"
        f"print(sorted({heavy} & set(sys.modules)), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stderr.strip().splitlines()[-1] == "[]"


def test_the_list_of_commands_is_theirs() -> None:
    """The help lists each command with its own first line, without importing it."""
    for name, (_, line) in COMMANDS.items():
        command = main.get_command(click.Context(main), name)
        assert command is not None
        assert command.get_short_help_str(200) == line
    code = (
        "import sys\nfrom tieconv.cli import main\ntry: main(['--help'])\nexcept SystemExit: print(sorted(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "tieconv.cli.errors" in result.stdout and "tieconv.api" not in result.stdout


def test_python_m_and_version() -> None:
    """`python -m tieconv --version` is the console script."""
    result = subprocess.run([sys.executable, "-m", "tieconv", "--version"], capture_output=True, text=True, check=True)
    assert result.stdout == "tieconv, version 0.1.0\n"


def test_traceback_only_on_request() -> None:
    """A traceback is shown with --traceback and only then."""
    command = [sys.executable, "-m", "tieconv", "inspect", "/nonexistent"]
    quiet = subprocess.run(command, capture_output=True, text=True)
    traced = subprocess.run([*command, "--traceback"], capture_output=True, text=True)
    assert "Traceback" not in quiet.stderr and traced.stderr.startswith("Traceback")
    assert traced.stderr.endswith(quiet.stderr) and traced.returncode == quiet.returncode == 2


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    """Each shell gets a script that names the command."""
    assert "_TIECONV_COMPLETE" in ok(f"completion {shell}").stdout


@pytest.mark.needs("huggingface_hub")
def test_the_hub_is_pointed_at() -> None:
    """A bare org/name is offered its hf:// form; offline, that form says how to fetch the model."""
    bare = run("inspect org/name")
    assert bare.exit_code == 2 and "hf://org/name" in bare.stderr.splitlines()[1]
    hub = run("inspect hf://org/name@main")
    hint = "hint: unset HF_HUB_OFFLINE, or fetch it first: hf download org/name"
    assert hub.exit_code == 2 and hub.stderr.splitlines()[1] == hint


@pytest.mark.parametrize("name", ["llama-diverged", "llama-duplicated", "gpt2-unprefixed"])
def test_no_word_is_cut_on_a_narrow_terminal(name: str, models: Path) -> None:
    """At 80 columns sentences are broken between words; only the line that repeats a finding is shortened."""
    inspection = api.inspect(models / name)
    broken, whole = render(inspection, width=80), render(inspection)
    body = [text.partition("\n\n")[2].split() for text in (broken, whole)]
    assert body[0] == body[1]
    assert [line for line in broken.splitlines() if len(line) > 80 and str(models) not in line] == []


def test_a_missing_head_is_told_as_what_it_is(tmp_path: Path, model) -> None:
    """A class that has none has none; of an unknown one only the name is not known."""
    folder = model("bert-mlm")
    configure(folder, architectures=["BertForSequenceClassification"])
    assert re.search(r"output head +none: this architecture has none\n", ok("inspect", folder).stdout)
    configure(folder, model_type="mine", architectures=["MineForCausalLM"])
    assert "this architecture has none" not in ok("inspect", folder).stdout


@pytest.mark.parametrize(("value", "shown"), [('"False"', '"False"'), ("0", "0"), ("[]", "[]"), ("null", "null")])
def test_a_flag_that_is_no_boolean_decides_nothing(value: str, shown: str, models: Path, tmp_path: Path) -> None:
    """The first line quotes the flag: transformers 5 refuses it, and other loaders take its truth value."""
    model = Path(shutil.copytree(models / "llama-untied", tmp_path / "model"))
    config = model / "config.json"
    config.write_text(config.read_text().replace('"tie_word_embeddings": false', f'"tie_word_embeddings": {value}'))
    first = ok("inspect", model).stdout.splitlines()[0]
    reason = f"tie_word_embeddings is {shown}, which is not a boolean, and loaders disagree about its meaning."
    assert first == f"Unknown: {reason}"


LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
COPY = {"model.embed_tokens.weight": matrix(), "lm_head.weight": matrix()}
MODELS = Path(__file__).parents[2] / "fixtures" / "models"


def first_lines(folder: Path) -> list[str]:
    return ok("inspect", folder).stdout.splitlines()[:4]


def test_nothing_is_wrong() -> None:
    lines = "Tied: tie_word_embeddings is true.", "No findings.", "Nothing to repair.", ""
    assert first_lines(MODELS / "llama-tied") == [*lines]


def test_a_copy_names_the_command(tmp_path: Path) -> None:
    folder = save(tmp_path / "model", LLAMA | {"tie_word_embeddings": True}, COPY)
    tied, wrong, run, empty = first_lines(folder)
    assert tied == "Tied: tie_word_embeddings is true."
    assert wrong.startswith("1 warning: lm_head.weight is a byte-identical copy of model.embed_tokens.weight.")
    assert (run, empty) == (f"Run: tieconv retie {folder} -o OUT", "")


def test_a_command_that_changes_the_outputs_says_so(tmp_path: Path) -> None:
    alone = {"model.embed_tokens.weight": matrix()}
    folder = save(tmp_path / "model", LLAMA | {"tie_word_embeddings": False}, alone)
    tied, wrong, first, command = first_lines(folder)
    assert tied == "Untied: tie_word_embeddings is false."
    assert wrong.startswith("1 error: ")
    assert first == "First: get the file that has lm_head.weight, if the head was trained separately."
    assert command.startswith("If the model is tied, run: tieconv retie ")
    assert command.endswith("(review first: may change the model's outputs)")
    checked = run("check", folder).stdout
    assert re.search(r"next: get the file that has lm_head\.weight\n +if tied: tieconv retie ", checked)
    for report in ("github", "markdown", "junit", "sarif"):
        text = run("check", folder, "--format", report).stdout.replace("`", "")
        assert re.search(r"get the file that has lm_head\.weight; if tied: tieconv retie ", text), report


def test_the_message_of_several_findings_is_called_the_first(tmp_path: Path) -> None:
    bias = {"lm_head.bias": np.ones(8, "<f4")}
    folder = save(tmp_path / "model", LLAMA | {"tie_word_embeddings": True}, COPY | bias)
    _, wrong, run, _ = first_lines(folder)
    assert wrong.startswith("1 error, 1 warning; first: lm_head.bias holds values up to 1, but")
    assert run == "Run: tieconv explain BIA001"
    assert ok("inspect", folder).stdout.count(f"\n{' ' * 19}next: ") == 2  # each finding has its next command


def test_a_finding_without_a_remedy_is_explained(tmp_path: Path) -> None:
    folder = save(tmp_path / "model", LLAMA, {"model.norm.weight": matrix()})
    tied, wrong, run, _ = first_lines(folder)
    assert tied == "Untied: tie_word_embeddings is absent, and the default of LlamaForCausalLM is false."
    assert wrong.startswith("1 error: ")
    assert run == "Run: tieconv explain TIE006"


@pytest.mark.parametrize("width", [40, 80])
def test_the_finding_is_wrapped_and_not_cut(width: int, tmp_path: Path) -> None:
    """The whole sentence is above the command, on a narrow terminal too."""
    folder = save(tmp_path / "m", LLAMA | {"tie_word_embeddings": True}, COPY)
    lines = render(api.inspect(folder), width=width).splitlines()
    run = next(number for number, line in enumerate(lines) if line.startswith("Run: "))
    assert lines[run - 1].endswith("the copy wastes 128 B.") and max(map(len, lines[:run])) <= width


def test_the_cause_comes_before_its_consequences() -> None:
    """Errors of loaders follow from the files: the first sentence says what is wrong with the files."""
    for options in ((), ("--consumers",), ("--for", "vllm")):
        lines = ok("inspect", MODELS / "llama-diverged", *options).stdout.splitlines()
        first = next(line for line in lines if "lm_head.weight differs from model.embed_tokens.weight" in line)
        assert lines.index(first) == 1, options


def test_tables_that_are_not_stored_are_named(tmp_path: Path) -> None:
    """A known class ties its tables, also if the file lacks them."""
    folder = save(tmp_path / "model", LLAMA | {"tie_word_embeddings": True}, {"model.norm.weight": matrix()})
    assert "ties\n  model.embed_tokens.weight, lm_head.weight: not stored\n" in ok("inspect", folder).stdout
    folder = save(tmp_path / "unknown", {}, {"norm.weight": matrix()})
    assert "ties\n  none known for this architecture\n" in ok("inspect", folder).stdout


def test_what_the_default_depth_did_not_compare(tmp_path: Path) -> None:
    """Equal layers are waste that only `--depth full` finds: the default depth claims no smaller size."""
    layers = {f"model.layers.{number}.mlp.up_proj.weight": np.ones((128, 200), np.float32) for number in range(4)}
    folder = save(tmp_path / "model", LLAMA | {"tie_word_embeddings": True}, COPY | layers)
    sentence = "Only tied tensors were compared. --depth full compares the other 4."
    text = ok("inspect", folder).stdout
    assert ", at most 410 kB unique (128 B stored twice)\n" + sentence in text
    document = json.loads(ok("inspect --json", folder).stdout)
    assert document["model"]["not_compared"] == {"tensors": 4, "bytes": 3 * 128 * 200 * 4}
    checked = run("check --select STO", folder)
    assert (checked.exit_code, sentence in checked.stderr) == (0, True)
    assert json.loads(run("check --format json", folder).stdout)["models"][0]["not_compared"] == 4
    full = run("check --select STO --depth full", folder)
    assert "STO001" in full.stdout and sentence not in full.stderr
    assert sentence not in ok("inspect --depth full", folder).stdout
    assert "not_compared" not in ok("inspect --depth full --json", folder).stdout


def test_a_head_that_was_not_compared_is_not_called_tied(tmp_path: Path) -> None:
    """The flag says tied, both tables are stored, and at depth `header` no byte is compared: transformers 5 decides."""
    folder = save(tmp_path / "model", LLAMA | {"tie_word_embeddings": True}, COPY)
    first = ok("inspect --depth header", folder).stdout.splitlines()[0]
    assert first == "Unknown: lm_head.weight is stored, and tieconv did not compare it with the embedding."
    assert ok("inspect", folder).stdout.startswith("Tied: ")


def test_the_base_model_of_an_adapter_is_the_one_that_was_read(tmp_path: Path) -> None:
    """The adapter's config contains another path; the first line answers for the pair of the given model."""
    adapter = builder("PEF002", "bad")(tmp_path / "adapter")
    for name, verdict in (("llama-tied", "tied"), ("llama-untied", "untied")):
        lines = ok("inspect", adapter, "--base", MODELS / name).stdout.splitlines()
        row = next(line.split() for line in lines if line.lstrip().startswith("adapter of"))
        assert lines[0] == f"The base model is {verdict}." and row[2:] == [str(MODELS / name), verdict]


SHARED, ENCODER = "model.shared.weight", "model.encoder.embed_tokens.weight"
DECODER, PROJECTION = "model.decoder.embed_tokens.weight", "model.decoder.output_projection.weight"
MARIAN: Config = {"architectures": ["MarianMTModel"], "model_type": "marian", "vocab_size": 8, "d_model": 4}
FSMT: Config = {
    "architectures": ["FSMTForConditionalGeneration"], "model_type": "fsmt", "src_vocab_size": 8,
    "tgt_vocab_size": 8, "d_model": 4, "tie_word_embeddings": False,
}  # fmt: skip
BIAS = np.zeros((1, 8), "<f4")


def test_the_table_that_both_ends_of_marian_share(tmp_path: Path) -> None:
    """The encoder's table is not stored under its own name: the shared one is the input embedding, not nothing."""
    folder = save(tmp_path, flagged(MARIAN, True), {SHARED: matrix(), "final_logits_bias": BIAS})
    lines = [line.split() for line in ok("inspect", folder).stdout.splitlines()]
    assert ["input", "embedding", SHARED, "[8,", "4]", "F32"] in lines
    assert tieconv.inspect(folder).to_dict()["head"]["input_embedding"] == {
        "name": SHARED, "shape": [8, 4], "dtype": "F32",
    }  # fmt: skip


def test_untied_it_stands_for_nothing(tmp_path: Path) -> None:
    """Where each name is a parameter of its own the shared table is not the encoder's."""
    folder = save(tmp_path, flagged(MARIAN, False), {SHARED: matrix(), "final_logits_bias": BIAS})
    assert tieconv.inspect(folder).head.input_embedding is None
    head = next(line for line in ok("inspect", folder).stdout.splitlines() if "output head" in line)
    assert head.endswith("  not stored")


def test_figures_of_distinct_tables(tmp_path: Path) -> None:
    """Ulps count to billions where signs differ; the cosine says how far two tables are from each other."""
    tensors = {ENCODER: matrix(), DECODER: matrix(seed=1), PROJECTION: matrix(seed=1)}
    screen = ok("inspect", save(tmp_path, FSMT, tensors)).stdout
    (line,) = [line for line in screen.splitlines() if "distinct: " in line]
    assert "rows differ, cosine " in line and "ulp" not in line


def test_fsmt_that_transformers_4_saved(tmp_path: Path) -> None:
    """It holds the head for the decoder's table too: untie writes the head's values there, not the encoder's."""
    tensors = {ENCODER: matrix(), PROJECTION: matrix(seed=1)}
    folder = save(tmp_path / "model", FSMT, tensors)
    (finding,) = tieconv.inspect(folder).findings
    assert finding.rule == "TIE011" and finding.tensors == (DECODER, PROJECTION)
    assert "in place of the canonical name" not in ok("inspect", folder).stdout
    ok("untie", folder, "-o", tmp_path / "out")
    after = load_file(tmp_path / "out" / "model.safetensors")
    assert (after[DECODER] == tensors[PROJECTION]).all() and (after[ENCODER] == tensors[ENCODER]).all()
    assert tieconv.inspect(tmp_path / "out").findings == ()


SAVED = {
    "the head for both": ({ENCODER: 0, PROJECTION: 1}, "untied"),
    "the decoder's table for both": ({ENCODER: 0, DECODER: 1}, "random error"),
    "two that differ": ({ENCODER: 0, DECODER: 1, PROJECTION: 2}, "discarded"),
    "two that are equal": ({ENCODER: 0, DECODER: 1, PROJECTION: 1}, "untied"),
    "neither": ({ENCODER: 0}, "random"),
    "no encoder's table": ({DECODER: 1, PROJECTION: 1}, "random"),
}
"""Tables by their seeds, and what transformers 4.48.3 and 4.57.6 make of them, untied: decoder and head are one."""


@pytest.mark.parametrize("name", SAVED)
def test_fsmt_in_transformers_4(name: str, tmp_path: Path) -> None:
    """As measured. What is thrown away although the config declares the model untied has no command."""
    seeds, outcome = SAVED[name]
    folder = save(tmp_path, FSMT, {key: matrix(seed=seed) for key, seed in seeds.items()})
    evidence = tieconv.inspect(folder, consumers="transformers<5")
    release_448, release_457 = (str(entry.outcome) for entry in evidence.consumers)
    assert f"{release_448} {release_457}" == outcome if " " in outcome else release_448 == release_457 == outcome
    if outcome == "discarded":
        (lost,) = [entry for entry in evidence.findings if entry.rule == "CON002"]
        assert lost.tensors == (DECODER,) and lost.remedy is None
        assert run("check --for transformers==4.57 --fix", folder).exit_code == 1


NAME = "model.layers.{}.mlp.experts.{}.weight"
SAVE = """
import sys, torch
state = {sys.argv[3].format(i // 1000, i % 1000): torch.zeros(1) for i in range(int(sys.argv[2]))}
torch.save(state, sys.argv[1])
"""
CALLS = """
import cProfile, pstats, sys
import tieconv
tieconv.inspect(sys.argv[2])  # imports what it needs
profile = cProfile.Profile()
profile.runcall(tieconv.inspect, sys.argv[1])
print(pstats.Stats(profile).total_calls)
"""
INSPECT = """
import resource, sys, time
import tieconv
started = time.process_time()
tieconv.inspect(sys.argv[1])
print(time.process_time() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""
PEER = """
import sys, time
import torch
from tests.lazy import load_file
started = time.process_time()
path = sys.argv[1]
state = torch.load(path, weights_only=True, mmap=True) if path.endswith(".bin") else load_file(path)
print(time.process_time() - started)
"""
CALLS_PER_TENSOR = {"safetensors": 30, "bin": 95}
MOST = {"safetensors": 500_000, "bin": 250_000}  # a storage of a torch file counts as two tensors
MEBIBYTES = 1024
TWICE = 2  # the peer takes longer; a busy core may double what either takes


def child(script: str, *arguments: object) -> list[float]:
    """The numbers that a script prints, run in a process of its own."""
    words = [sys.executable, "-P", "-c", script, *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=HANGS, check=True)
    return [float(word) for word in done.stdout.split()]


def write(path: Path, tensors: int) -> Path:
    if path.suffix == ".bin":
        child(SAVE, path, tensors, NAME)
    else:
        names = (NAME.format(i // 1000, i % 1000) for i in range(tensors))
        header = {name: entry("F32", [1], [4 * i, 4 * i + 4]) for i, name in enumerate(names)}
        path.write_bytes(file_of(header, bytes(4 * tensors)))
    return path


@pytest.mark.needs("torch")
@pytest.mark.parametrize("suffix", ["safetensors", pytest.param("bin", marks=pytest.mark.slow)])
def test_calls_for_each_tensor(suffix: str, tmp_path: Path) -> None:
    """Work is linear, and a tensor takes few calls: what makes records or dictionaries anew adds some."""
    few, many = write(tmp_path / f"few.{suffix}", 500), write(tmp_path / f"many.{suffix}", 3_000)
    calls = [child(CALLS, path, few)[0] for path in (few, many)]
    assert (calls[1] - calls[0]) / 2_500 <= CALLS_PER_TENSOR[suffix]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_half_a_million_beside_the_peer(suffix: str, tmp_path: Path) -> None:
    """A whole inspection takes less CPU time than the peer takes to load, and less than 1 GiB."""
    path = write(tmp_path / f"many.{suffix}", MOST[suffix])
    pairs = [(child(INSPECT, path), child(PEER, path)) for _ in range(3)]  # in turn, so that load meets both
    assert max(memory for (_, memory), _ in pairs) < MEBIBYTES
    assert min(seconds for (seconds, _), _ in pairs) < TWICE * min(seconds for _, (seconds,) in pairs)
