"""PEFT adapters: what they change of their base model, and whether that is a tied pair."""

from __future__ import annotations

from pathlib import Path

import pytest

import tieconv as api
from fixtures.torch_files import hostile
from tests.checks.fixtures.model import EMBED, GEMMA, T5, Array, flagged, matrix, save, weights
from tests.checks.fixtures.more import LORA, base_of, save_adapter
from tests.loops import case as in_case, fresh
from tests.refusals import failure_of
from tests.schemas import validate
from tieconv.errors import RefusedError, TieconvError

WRAPPED = "base_model.model."
EMBEDDING = {
    f"{WRAPPED}model.embed_tokens.lora_embedding_A": matrix(2, 8),
    f"{WRAPPED}model.embed_tokens.lora_embedding_B": matrix(4, 2),
}
QUERY = {f"{WRAPPED}model.layers.0.self_attn.q_proj.lora_A.weight": matrix(2, 4)}


def rules(folder: Path) -> list[str]:
    return [f"{finding.rule} {finding.level}" for finding in api.inspect(folder).findings]


def test_what_it_says(tmp_path: Path) -> None:
    """The base, the modules, and whether the base ties are part of the evidence."""
    folder = tmp_path / "model"
    base = base_of(folder)
    save_adapter(folder, LORA, base, target_modules=["q_proj", "lm_head"], modules_to_save=["score"])
    inspection = api.inspect(folder)
    document = inspection.to_dict()
    validate(document, "inspect")
    modules = {"target_modules": ["q_proj", "lm_head"], "modules_to_save": ["score"]}
    assert document["adapter"] == {"kind": "LORA", "base_model": str(base), "base_tied": True} | modules
    assert (inspection.checkpoint.format, inspection.ties, inspection.head.output_head) == ("peft", (), None)


@pytest.mark.parametrize("tensors", [LORA, EMBEDDING], ids=["head", "embedding"])
@pytest.mark.parametrize("tied", [True, False])
def test_either_side_of_a_tied_pair(tensors: dict[str, Array], tied: bool, tmp_path: Path) -> None:
    """An error with the untie of the base where that is tied, silence where it is not."""
    folder = tmp_path / "model"
    base = base_of(folder, tied=tied)
    save_adapter(folder, tensors, base)
    assert rules(folder) == (["PEF001 error"] if tied else [])
    if tied:
        (finding,) = api.inspect(folder).findings
        assert finding.remedy is not None
        assert (finding.remedy.command, finding.remedy.safe) == (f"tieconv untie {base} -o OUT", True)


@pytest.mark.parametrize("depth", ["header", "candidates"])
@pytest.mark.parametrize("flag", [True, False])
def test_a_t5_with_a_separate_head(flag: bool, depth: str, tmp_path: Path) -> None:
    """transformers 5 declares a T5 tied and loads the head of a Flan-T5 as it is; transformers 4 ties by the flag."""
    stored = {"shared.weight": matrix(), "lm_head.weight": matrix(seed=1)}
    base = save(tmp_path / "model" / "base", flagged(T5, flag), stored)
    folder = save_adapter(tmp_path / "model", {f"{WRAPPED}lm_head.lora_A.weight": matrix(2, 4)}, base)
    findings = api.inspect(folder, depth=depth).findings
    assert ("PEF001" in {finding.rule for finding in findings}) is flag
    delta = {f"{WRAPPED}shared.token_adapter.trainable_tokens_delta": matrix(1)}
    rows = save_adapter(tmp_path / "model", delta, base, trainable_token_indices={"shared": [1]})
    (message,) = (entry.message for entry in api.inspect(rows, depth=depth).findings if entry.rule == "PEF005")
    says = "The base model is tied" if flag else "The base model is untied" if depth == "candidates" else "If the base"
    assert says in message


@pytest.mark.parametrize("base", [None, "org/absent", "", "\x1b[31m"])
def test_base_that_is_not_here(base: str | None, tmp_path: Path) -> None:
    """It may tie: a warning, and the command that reads the base which the user points at."""
    folder = save_adapter(tmp_path / "model", LORA, None, base_model_name_or_path=base)
    (finding,) = api.inspect(folder).findings
    assert (finding.rule, str(finding.level)) == ("PEF001", "warning")
    assert finding.remedy is not None and finding.remedy.command == f"tieconv check {folder} --base BASE"
    assert finding.message.isprintable()


def test_a_base_beside_the_adapter_is_in_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its path, which the user may point at; the directory is not read without it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tied").mkdir()
    folder = save_adapter(tmp_path / "model", LORA, None, base_model_name_or_path="tied")
    (finding,) = api.inspect(folder).findings
    assert finding.remedy is not None and finding.remedy.command == f"tieconv check {folder} --base tied"
    assert "tied was not read" in finding.message


def test_class_of_an_absent_base_is_named(tmp_path: Path) -> None:
    mapping = {"base_model_class": "Qwen3ForCausalLM", "parent_library": "transformers"}
    folder = save_adapter(tmp_path / "model", LORA, None, auto_mapping=mapping)
    assert "Qwen3ForCausalLM" in api.inspect(folder).findings[0].message


def test_base_that_ties_by_default(tmp_path: Path) -> None:
    """The base's own class decides where its config says nothing."""
    base = save(tmp_path / "model" / "base", GEMMA, {EMBED: matrix()})
    assert rules(save_adapter(tmp_path / "model", LORA, base)) == ["PEF001 error"]


def test_base_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path in an adapter's config is not followed out of its directory; the user may name the base model."""
    base = save(tmp_path / "base", GEMMA, {EMBED: matrix()})
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path / "model")
    (tmp_path / "model" / "link").symlink_to(base)
    for path in (base, Path("../base"), tmp_path / "model" / ".." / "base", tmp_path / "model" / "link"):
        folder = save_adapter(tmp_path / "model", LORA, path)
        assert api.inspect(folder).base is None, path
    inspection = api.inspect(folder, base=base)
    assert inspection.base is not None
    assert "PEF001 error" in [f"{finding.rule} {finding.level}" for finding in inspection.findings]


def test_base_that_cannot_be_read(tmp_path: Path) -> None:
    """A damaged base is not this model's fault; a directory without a config, such as `/`, is not even listed."""
    base = save(tmp_path / "one" / "base", flagged(GEMMA, True), {EMBED: matrix()})
    (base / "model.safetensors").write_bytes(b"damaged")
    assert rules(save_adapter(tmp_path / "one", LORA, base)) == ["PEF001 warning"]
    for absent in (tmp_path / "two", Path("/")):
        assert api.inspect(save_adapter(tmp_path / "two", LORA, absent)).base is None


@pytest.mark.parametrize(
    "config",
    [{"target_modules": "all-linear"}, {"target_modules": r".*\.(q|v)_proj"}, {"trainable_token_indices": [1]}],
    ids=str,
)
def test_other_targets_are_silent(config: dict[str, object], tmp_path: Path) -> None:
    """What counts is which modules have parts; a pattern of the file is never run."""
    folder = tmp_path / "model"
    assert rules(save_adapter(folder, QUERY, base_of(folder), **config)) == []


def test_weight_tying_that_peft_ensures(tmp_path: Path) -> None:
    """A merge adds the change of each module to the one matrix (measured with peft 0.21.2)."""
    folder = tmp_path / "model"
    (finding,) = api.inspect(save_adapter(folder, LORA, base_of(folder), ensure_weight_tying=True)).findings
    assert finding.rule == "PEF001" and "Add both to target_modules" in finding.message
    (finding,) = api.inspect(save_adapter(tmp_path / "alone", LORA, None, ensure_weight_tying=True)).findings
    assert finding.rule == "PEF001" and "add both to target_modules and untie it" in finding.message


def test_copies_of_both(tmp_path: Path) -> None:
    """Whole copies, as a resized vocabulary leaves them: both findings name both modules."""
    folder = tmp_path / "model"
    copies = {f"{WRAPPED}model.embed_tokens.weight": matrix(10), f"{WRAPPED}lm_head.weight": matrix(10, seed=1)}
    save_adapter(folder, copies | QUERY, base_of(folder), modules_to_save=["embed_tokens", "lm_head"])
    rows, whole = api.inspect(folder).findings
    assert (rows.rule, whole.rule) == ("PEF004", "PEF002")
    assert all("embed_tokens and lm_head" in finding.message for finding in (rows, whole))
    (folder / "base").rename(tmp_path / "elsewhere")
    assert [str(finding.rule) for finding in api.inspect(folder).findings] == ["PEF002"]
    report = api.check(folder, base=tmp_path / "elsewhere")
    assert [entry.finding.rule for entry in report.models[0].findings] == ["PEF004", "PEF002"]
    assert report.exit_code == 1


@pytest.mark.parametrize("rows", [[1, 9], {"embed_tokens": [1, 9]}, {"lm_head": [9]}])
def test_token_rows_beyond_the_base_model(rows: object, tmp_path: Path) -> None:
    """PEFT 0.21 fails to load the adapter: "index 9 is out of bounds for dimension 0 with size 8"."""
    folder = tmp_path / "model"
    tensors = {f"{WRAPPED}model.embed_tokens.token_adapter.trainable_tokens_delta": matrix(2)}
    save_adapter(folder, tensors, base_of(folder), trainable_token_indices=rows)
    (beyond,) = [finding for finding in api.inspect(folder).findings if finding.rule == "PEF004"]
    assert beyond.message.startswith("The adapter replaces row 9, and the base model has 8 rows. peft fails to load")
    assert beyond.remedy is not None and "--to 10" in beyond.remedy.command


def test_model_with_an_adapter_beside_it_is_a_model(tmp_path: Path) -> None:
    folder = base_of(tmp_path / "model")
    save_adapter(folder, LORA, None)
    assert api.inspect(folder).checkpoint.format == "safetensors"
    assert api.inspect(folder / "adapter_model.safetensors").checkpoint.format == "peft"


def test_text_names_the_base(tmp_path: Path) -> None:
    from tieconv.reporters.text.inspect_text import render

    folder = tmp_path / "model"
    save_adapter(folder, QUERY, base_of(folder), modules_to_save=["lm_head"])
    text = render(api.inspect(folder))
    for word in ("adapter of", "tied", "changes", "q_proj", "replaces", "lm_head"):
        assert word in text


@pytest.mark.parametrize("plan", [api.plan_untie, api.plan_retie])
def test_no_command_writes_it(plan, tmp_path: Path) -> None:
    error = failure_of(plan, RefusedError, save_adapter(tmp_path / "model", LORA, None))
    assert error.code == "format.read-only" and "base" in error.hint


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda folder: (folder / "adapter_model.safetensors").unlink(), "peft.no-weights"),
        (lambda folder: (folder / "adapter_config.json").write_text("{"), "json.malformed"),
        (lambda folder: (folder / "adapter_model.safetensors").write_bytes(b""), "safetensors.empty"),
    ],
    ids=["no weights", "config", "weights"],
)
def test_malformed(damage, code: str, tmp_path: Path) -> None:
    folder = save_adapter(tmp_path / "model", LORA, None)
    damage(folder)
    assert failure_of(api.inspect, TieconvError, folder).code == code


def test_odd_config_values(tmp_path: Path) -> None:
    """Values of other types are taken for absent."""
    folder = save_adapter(tmp_path / "model", QUERY, None, target_modules=3, modules_to_save={"a": 1}, peft_type=None)
    adapter = api.inspect(folder).checkpoint.adapter
    assert adapter is not None and (adapter.targets, adapter.saved, adapter.kind) == ((), (), "")


def test_adapter_file_is_whole(tmp_path: Path) -> None:
    """The adapter's tensors are listed under their names in the file."""
    folder = save_adapter(tmp_path / "model", QUERY, None)
    assert (folder / "adapter_model.safetensors").read_bytes() == weights(QUERY)
    assert set(api.inspect(folder).checkpoint.tensors) == set(QUERY)


def saved_by_torch(folder: Path, state: object, **config: object) -> Path:
    """An adapter whose weights are a torch file."""
    torch = pytest.importorskip("torch")
    save_adapter(folder, QUERY, base_of(folder), **config)
    (folder / "adapter_model.safetensors").unlink()
    torch.save(state, folder / "adapter_model.bin")
    return folder


def real_adapter(folder: Path, *, safe: bool) -> dict[str, tuple[int, ...]]:
    """What PEFT itself saves for a tied model whose head it changes: names and shapes."""
    pytest.importorskip("peft")
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from peft import LoraConfig, get_peft_model
    from peft.utils.save_and_load import get_peft_model_state_dict

    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    base = transformers.LlamaForCausalLM(config)
    base.save_pretrained(folder.with_name("base"))
    base.config._name_or_path = str(folder.with_name("base"))
    model = get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj", "lm_head"]))
    model.save_pretrained(folder, safe_serialization=safe, save_embedding_layers=False)
    saved = get_peft_model_state_dict(model, save_embedding_layers=False)
    return {name: tuple(tensor.shape) for name, tensor in saved.items()}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["", "adapter_model.bin", "adapter_config.json"], ids=lambda name: name or "directory")
def test_torch_file_of_peft_itself(name: str, tmp_path: Path) -> None:
    """The same tensors, adapter and findings as from the safetensors file."""
    expected = real_adapter(tmp_path / "safe", safe=True)
    assert real_adapter(tmp_path / "adapter", safe=False) == expected
    assert (tmp_path / "adapter" / "adapter_model.bin").exists()
    torch_adapter, safe = api.inspect(tmp_path / "adapter" / name), api.inspect(tmp_path / "safe")
    assert torch_adapter.checkpoint.format == "peft" and not torch_adapter.checkpoint.cautions
    assert {tensor.name: tensor.shape for tensor in torch_adapter.checkpoint.tensors.values()} == expected
    assert torch_adapter.checkpoint.adapter == safe.checkpoint.adapter
    assert [(f.rule, f.level) for f in torch_adapter.findings] == [(f.rule, f.level) for f in safe.findings] != []


def test_torch_file_beside_safetensors(tmp_path: Path) -> None:
    """PEFT loads the safetensors file; that another one stands beside it is said, once it is not named."""
    torch = pytest.importorskip("torch")
    folder = save_adapter(tmp_path / "model", QUERY, None)
    torch.save({"other": torch.zeros(2)}, folder / "adapter_model.bin")
    inspection = api.inspect(folder)
    assert set(inspection.checkpoint.tensors) == set(QUERY)
    assert [caution.code for caution in inspection.checkpoint.cautions] == ["layout.two-formats"]
    for name, tensors in (("adapter_model.bin", {"other"}), ("adapter_model.safetensors", set(QUERY))):
        checkpoint = api.inspect(folder / name).checkpoint
        assert (set(checkpoint.tensors), checkpoint.cautions) == (tensors, ())


def test_torch_file_with_more_than_tensors(tmp_path: Path) -> None:
    """What a torch file says about itself is said of an adapter, too."""
    torch = pytest.importorskip("torch")
    folder = saved_by_torch(tmp_path / "model", {"base_model.model.a.lora_A.weight": torch.zeros(2), "step": 3})
    assert [caution.code for caution in api.inspect(folder).checkpoint.cautions] == ["torch.extra"]


HOSTILE = [case for case in hostile(Path("/nonexistent/canary")) if case.name.startswith(("run-", "bomb-", "zip-"))]


def test_hostile_torch_file(tmp_path: Path) -> None:
    """An adapter's pickle is read like a model's: refused by the same code, and nothing of it runs."""
    for case in HOSTILE:
        with in_case(case.name):
            folder = fresh(tmp_path)
            (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
            (folder / "adapter_model.bin").write_bytes(case.data)
            error = failure_of(api.inspect, TieconvError, folder)
            assert error.code == case.code and "adapter_model.bin" in error.message
