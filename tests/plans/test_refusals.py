"""What a planner refuses, each with its reason, and `plan_retie` on each layout; sizes and places of bytes."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

import tieconv
from tests import loops
from tests.checks.fixtures.model import (
    BART,
    BERT,
    EMBED,
    HEAD,
    INNER_BIAS,
    KIMI,
    LLAMA,
    OUTER_BIAS,
    T5,
    VOCAB,
    Config,
    Tensors,
    bert,
    flagged,
    llama,
    matrix,
    save,
    save_shards,
    vector,
)
from tests.checks.fixtures.tie import bart
from tieconv.checkpoint.finding import REVIEW_FIRST
from tieconv.checkpoint.weight_file import BITS, ByteRange, Storage, TensorRecord, nbytes
from tieconv.checkpoint.write_plan import DropTensor, OutputStorage, OutputTensor, ScaleTensor, SetConfig, SetMetadata
from tieconv.errors import RefusedError
from tieconv.plans.verbs.convert import split_shards, widest_first
from tieconv.plans.verbs.dedup import trimmed
from tieconv.plans.verbs.retie import Survivor
from tieconv.text import parse_size

TIED, UNTIED = flagged(LLAMA, True), flagged(LLAMA, False)


def refusal(function, path: Path, **options: object) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        function(path, **options)
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize("function", [tieconv.plan_untie, tieconv.plan_retie])
class TestBoth:
    """Refused whichever way."""

    def test_states_of_the_pair(self, function, tmp_path: Path) -> None:
        """No head, a head that no flag ties, nothing to copy from, and codes that mean something only with scales."""
        headless = {**LLAMA, "architectures": ["LlamaForSequenceClassification"]}
        absent = {name: values for name, values in llama().items() if name != EMBED}
        for code, config, tensors in (
            ("tie.headless", headless, llama()),
            ("tie.never", flagged(KIMI, True), llama(head=matrix(seed=1))),
            ("tie.absent", TIED, absent),
            ("tie.quantised", TIED, {**llama(), EMBED: np.zeros((8, 4), "<u4")}),
        ):
            with loops.case(code):
                assert refusal(function, save(tmp_path / code, config, tensors)).code == code

    def test_ambiguous_directories(self, function, tmp_path: Path) -> None:
        """A single file beside an index of another file: nobody knows which is meant."""
        path = save(tmp_path / "m", TIED, llama())
        index = path / "model.safetensors.index.json"
        index.write_text('{"weight_map": {"a": "model-00001-of-00002.safetensors"}}')
        assert refusal(function, path).code == "layout.ambiguous"
        index.write_text('{"weight_map": {"a": "model.safetensors"}}')
        assert refusal(function, path).code == "index.absent-tensor"

    def test_a_flag_written_twice(self, function, tmp_path: Path) -> None:
        """Readers disagree on a repeated key, so it is not edited."""
        path = save(tmp_path / "m", None, llama(head=matrix()))
        text = '{"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": FIRST, "tie_word_embeddings": LAST}'
        values = ("true", "true") if function is tieconv.plan_untie else ("false", "false")
        (path / "config.json").write_text(text.replace("FIRST", values[0]).replace("LAST", values[1]))
        assert refusal(function, path).code == "config.repeated-flag"


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (matrix().T.copy(), "transpose"),
        (matrix().astype("<f2"), "after a cast"),
        (matrix() * np.float32(4), "4.0 times"),
        (matrix(seed=3), "differ in 8 of 8 rows"),
        (matrix(10), r"\[10, 4\]"),
        (np.where(np.arange(32).reshape(8, 4) == 5, np.float32("nan"), matrix()), "row"),
    ],
)
def test_retie_says_how_the_head_differs(head: np.ndarray, words: str, tmp_path: Path) -> None:
    """Each state that is not equality is refused with its figures."""
    error = refusal(tieconv.plan_retie, save(tmp_path / "m", UNTIED, llama(head=head)))
    assert error.code in {"retie.not-equal", "retie.row-mismatch"}
    assert re.search(words, error.message), error.message


def test_a_tied_head_with_the_first_rows_of_the_embedding_is_dropped(tmp_path: Path) -> None:
    """The embedding stores every row of it. Zeros in its place would be untrained rows, and two different tables."""
    first = matrix()[:6]
    path = save(tmp_path / "m", TIED, llama(head=first))
    remedy = tieconv.inspect(path).findings[0].remedy
    assert remedy and "retie" in remedy.command and "--from embed --force" in remedy.command and not remedy.safe
    for error in (
        refusal(tieconv.plan_retie, path),
        refusal(tieconv.plan_retie, path, survivor="head", force=True),
        refusal(tieconv.plan_resize, path, to="rows"),
    ):
        assert error.code in {"retie.row-mismatch", "resize.tied"}
        assert "--from embed --force" in error.command_hint
    planned = tieconv.plan_retie(path, survivor="embed", force=True)
    assert planned.plan.notes == (f"{EMBED} stores all rows of {HEAD}: no value is lost",)
    planned.execute(tmp_path / "out")
    assert HEAD not in tieconv.inspect(tmp_path / "out").checkpoint.tensors
    assert not tieconv.inspect(tmp_path / "out").findings


def test_no_row_of_a_shorter_head_is_lost(tmp_path: Path) -> None:
    """Rows that the embedding lacks, or a model that the config says is untied: the refusal stays."""
    for case, config, head in (
        ("rows", TIED, matrix(6, seed=3)),
        ("more", TIED, matrix(10)),
        ("flag", UNTIED, matrix()[:6]),
    ):
        path = save(tmp_path / case, config, llama(head=head))
        error = refusal(tieconv.plan_retie, path, survivor="embed", force=True)
        assert error.code == "retie.row-mismatch" and "--force" not in error.command_hint, case


def test_signs_of_zeros_are_a_difference(tmp_path: Path) -> None:
    """+0 and −0 are not the same bytes."""
    plain, signed = matrix(), matrix()
    plain[2, 1], signed[2, 1] = 0.0, -0.0
    error = refusal(tieconv.plan_retie, save(tmp_path / "m", UNTIED, {**llama(head=signed), EMBED: plain}))
    assert "sign of zeros" in error.message


def test_untie_refuses_a_head_that_cannot_be_loaded(tmp_path: Path) -> None:
    """A transposed head stops every loader; a flag does not mend that."""
    path = save(tmp_path / "m", TIED, llama(head=matrix().T.copy()))
    assert refusal(tieconv.plan_untie, path).code == "untie.shape"


def test_an_empty_placeholder_is_dropped_or_filled(tmp_path: Path) -> None:
    """A zero-size head left by a sharded save is no tensor that is lost."""
    path = save(tmp_path / "m", TIED, llama(head=np.zeros((0,), "<f4")))
    drops = [op for op in tieconv.plan_retie(path).plan.operations if isinstance(op, DropTensor)]
    assert [(op.name, op.because) for op in drops] == [(HEAD, "it is empty")]
    tieconv.plan_untie(path).execute(tmp_path / "out")
    tie = tieconv.inspect(tmp_path / "out").word_tie
    assert tie is not None and [str(member.state) for member in tie.members] == ["canonical", "identical"]


def test_differing_bias_copies_are_not_merged_or_stripped(tmp_path: Path) -> None:
    """Which of two biases counts depends on the version: neither verb chooses."""
    tensors = bert(outer=np.zeros(8, "<f4"), inner=vector(seed=2))
    path = save(tmp_path / "m", flagged(BERT, True), tensors)
    assert refusal(tieconv.plan_retie, path).code == "retie.not-equal"
    assert refusal(tieconv.plan_retie, path, survivor="embed", force=True).code == "retie.not-equal"
    zero_inside = bert(outer=vector(seed=2), inner=np.zeros(8, "<f4"))
    path = save(tmp_path / "n", flagged(BERT, True), zero_inside)
    assert refusal(tieconv.plan_untie, path, bias="strip").code == "bias.copies-differ"


def test_a_trained_bias_that_no_class_reads_has_two_exits(tmp_path: Path) -> None:
    """No command removes trained values, so the hint gives the two decisions that are left."""
    path = save(tmp_path / "m", TIED, {**llama(), "lm_head.bias": vector()})
    error = refusal(partial(tieconv.plan_bias, "strip"), path)
    assert error.command_hint.startswith("use a class that reads it, or train the model without it; see its values: ")
    known = save(tmp_path / "bert", flagged(BERT, True), bert(outer=vector()))
    assert refusal(partial(tieconv.plan_bias, "strip"), known).command_hint.startswith("see its values: ")


@pytest.mark.parametrize("function", [tieconv.plan_untie, tieconv.plan_retie])
def test_a_stripped_pair_of_biases_is_written(function, tmp_path: Path) -> None:
    """Nothing of the pair is stored then, so the fresh inspection finds no group to prove."""
    path = save(tmp_path / "m", flagged(BERT, True), bert(outer=np.zeros(8, "<f4")))
    function(path, bias="strip").execute(tmp_path / "out")
    assert not any("bias" in name for name in tieconv.inspect(tmp_path / "out").checkpoint.tensors)


def test_stripping_a_known_zero_bias_says_what_follows(tmp_path: Path) -> None:
    """BERT's loader then reports it missing and starts it at zero, which is what was stored."""
    path = save(tmp_path / "m", flagged(BERT, True), bert(outer=np.zeros(8, "<f4")))
    plan = tieconv.plan_untie(path, bias="strip").plan
    assert any("missing" in note for note in plan.notes)
    names = {tensor.name for file in plan.weights for tensor in file.tensors}
    assert not names & {OUTER_BIAS, INNER_BIAS}


def test_t5_whose_two_flags_disagree(tmp_path: Path) -> None:
    """transformers 5 obeys one, transformers 4 the other: they compute different logits already."""
    tensors = {"shared.weight": matrix(), "lm_head.weight": matrix() * np.float32(0.5)}
    config = {**flagged(T5, False), "scale_decoder_outputs": True, "d_model": 4}
    assert refusal(tieconv.plan_retie, save(tmp_path / "m", config, tensors)).code == "flag.forward"


def test_t5_stored_twice_gets_a_scaled_head(tmp_path: Path) -> None:
    """An equal copy is not enough once the flag is false: it is replaced by the scaled one."""
    tensors = {"shared.weight": matrix(), "lm_head.weight": matrix()}
    config = {**flagged(T5, True), "d_model": 4}
    plan = tieconv.plan_untie(save(tmp_path / "m", config, tensors)).plan
    assert ScaleTensor("lm_head.weight", "shared.weight", -1) in plan.operations


def test_t5_with_a_head_of_its_own_is_not_guessed(tmp_path: Path) -> None:
    """A differing head under a true flag: which one is meant, and at which scale, nobody can say."""
    tensors = {"shared.weight": matrix(), "lm_head.weight": matrix(seed=4)}
    path = save(tmp_path / "m", {**flagged(T5, True), "d_model": 4}, tensors)
    assert refusal(tieconv.plan_untie, path).code == "flag.forward"


@pytest.mark.parametrize("survivor", ["embed", "head"])
def test_force_does_not_rescale(survivor: str, tmp_path: Path) -> None:
    """Tying T5 by force would also multiply its logits: refused."""
    tensors = {"shared.weight": matrix(), "lm_head.weight": matrix(seed=4)}
    path = save(tmp_path / "m", {**flagged(T5, False), "d_model": 4}, tensors)
    assert refusal(tieconv.plan_retie, path, survivor=survivor, force=True).code == "flag.forward"
    equal = {"shared.weight": matrix(), "lm_head.weight": matrix()}
    path = save(tmp_path / "n", {**flagged(T5, False), "d_model": 4}, equal)
    assert "would multiply the logits" in refusal(tieconv.plan_retie, path).message


@pytest.mark.parametrize(("first", "new"), [("model-1", "model-head-2"), ("model-head-2", "model-head-3")])
def test_a_second_head_shard_gets_a_name_of_its_own(tmp_path: Path, first: str, new: str) -> None:
    """`model-head.safetensors` may be taken already, and the next name too."""
    shards = {f"{first}.safetensors": {EMBED: matrix()}, "model-2.safetensors": llama_rest()}
    weight_map = {name: file for file, tensors in shards.items() for name in tensors}
    path = save_shards(tmp_path / "m", TIED, shards, weight_map)
    tieconv.plan_untie(path).execute(tmp_path / "untied")
    plan = tieconv.plan_untie(tmp_path / "untied", bias="zero").plan
    assert [file.name for file in plan.weights] == [f"{new}.safetensors"]


def llama_rest() -> dict[str, np.ndarray]:
    return {name: tensor for name, tensor in llama().items() if name != EMBED}


def test_an_alias_in_the_metadata_goes_with_its_tensor(tmp_path: Path) -> None:
    """`save_model` records ``{dropped: kept}``; renaming the kept one back makes that untrue."""
    from safetensors.numpy import save_file

    path = save(tmp_path / "m", TIED, llama())
    tensors = {HEAD: matrix(), **llama_rest()}
    save_file(tensors, path / "model.safetensors", {"format": "pt", EMBED: HEAD, "norm": "model.norm.weight"})
    plan = tieconv.plan_retie(path).plan
    assert SetMetadata("model.safetensors", EMBED, None) in plan.operations
    assert plan.weights[0].metadata == {"format": "pt", "norm": "model.norm.weight"}


@pytest.mark.parametrize(("verb", "before"), [(tieconv.plan_untie, "tied"), (tieconv.plan_retie, "untied")])
def test_an_optimizer_state_of_the_model_before(tmp_path: Path, verb, before: str) -> None:
    """torch loads it only into as many parameters."""
    path = save(tmp_path / "m", TIED if before == "tied" else UNTIED, llama(head=matrix()))
    (path / "optimizer.pt").touch()
    note = f"optimizer.pt holds the optimizer state of the {before} model: training cannot resume from it"
    assert note in verb(path).plan.notes


def test_only_levels_that_differ_are_written(tmp_path: Path) -> None:
    """A config that already says so is not touched."""
    plan = tieconv.plan_retie(save(tmp_path / "m", TIED, llama(head=matrix()))).plan
    assert not [op for op in plan.operations if isinstance(op, SetConfig)]
    assert not plan.texts


def test_the_own_flag_of_a_text_config(tmp_path: Path) -> None:
    """LFM2 reads tie_embedding first, at the level of its own config."""
    text = {"model_type": "lfm2", "tie_embedding": True, "tie_word_embeddings": True}
    config = {"architectures": ["Lfm2VlForConditionalGeneration"], "model_type": "lfm2_vl", "text_config": text}
    path = save(tmp_path / "m", config, {"model.language_model.embed_tokens.weight": matrix()})
    assert SetConfig("text_config.tie_embedding", False, True, True) in tieconv.plan_untie(path).plan.operations


def test_a_transposed_view_is_converted_row_by_row(tmp_path: Path) -> None:
    """safetensors has no strides."""
    torch = pytest.importorskip("torch")
    path = save(tmp_path / "m", TIED, {})
    (path / "model.safetensors").unlink()
    torch.save({EMBED: torch.tensor(matrix().T.copy()).T}, path / "pytorch_model.bin")
    tieconv.plan_convert("safetensors", path).execute(tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").read_bytes().endswith(matrix().tobytes())


def test_bart_needs_three_copies(tmp_path: Path) -> None:
    """With the flag false encoder, decoder and head are parameters of their own."""
    tensors = {"model.shared.weight": matrix(), "final_logits_bias": np.zeros((1, 8), "<f4")}
    plan = tieconv.plan_untie(save(tmp_path / "m", flagged(BART, True), tensors)).plan
    names = {tensor.name for tensor in plan.weights[0].tensors}
    assert {"model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"} <= names


def test_hints_name_only_commands_that_work(tmp_path: Path) -> None:
    """No verb takes a transposed head, or a model without both tables, so no hint offers one."""
    transposed = save(tmp_path / "t", TIED, llama(head=np.ascontiguousarray(matrix().T)))
    prefixed = save(tmp_path / "p", TIED, {f"_orig_mod.{name}": tensor for name, tensor in llama().items()})
    for path in (transposed, prefixed):
        for plan in (partial(tieconv.plan_set_tie, "auto"), tieconv.plan_retie, tieconv.plan_untie):
            hint = refusal(plan, path).hint
            assert hint and not {"untie", "retie", "set-tie"} & {*re.findall(r"tieconv ([a-z-]+)", hint)}, hint


def test_old_values_are_json(tmp_path: Path) -> None:
    """A null is not None, and the text "false" is not the boolean."""
    from tieconv.reporters.text.plan_text import render

    for number, (value, words) in enumerate({None: "null", "false": '"false"', 1: "1"}.items()):
        config = {**TIED, "tie_word_embeddings": value, "architectures": [""]}
        plan = tieconv.plan_untie(save(tmp_path / str(number), config, llama(head=matrix())))
        assert re.search(rf"tie_word_embeddings +{words} becomes false", render(plan.outcome())), value


@pytest.mark.parametrize("function", [tieconv.plan_untie, tieconv.plan_retie])
def test_two_formats_side_by_side(function, tmp_path: Path) -> None:
    """The other format would stay behind as it was: nothing is written, and inspect says which one it read."""
    path = save(tmp_path / "m", TIED, llama())
    (path / "pytorch_model.bin").write_bytes(b"stale")
    assert refusal(function, path).code == "layout.two-formats"
    findings = tieconv.inspect(path).findings
    assert [finding.rule for finding in findings] == ["IDX009"]
    assert "safetensors" in findings[0].message and "torch" in findings[0].message


NAMES = {"embed": EMBED, "head": HEAD}
MAMBA = {"d_model": 4, "n_layer": 1, "vocab_size": 8, "ssm_cfg": {}, "tie_embeddings": True}


class TestOtherPrograms:
    """A config that is not one of transformers gets no key that its loader does not know, and no name goes or comes."""

    def test_keys_and_names(self, tmp_path: Path) -> None:
        """lerobot, diffusers and timm have no tie flag at all."""
        configs = {
            "lerobot": {"type": "pi0", "dtype": "float32"},
            "diffusers": {"_class_name": "UNet2DModel", "_diffusers_version": "0.40.0"},
            "timm": {"architecture": "vit_tiny", "num_classes": 8, "pretrained_cfg": {}},
        }
        for program, config in configs.items():
            one = save(tmp_path / program / "one", config, llama())
            two = save(tmp_path / program / "two", config, llama(head=matrix()))
            assert refusal(tieconv.plan_untie, one, **NAMES).code == "config.foreign", program
            assert refusal(tieconv.plan_untie, one, keep_flag=True, **NAMES).code == "config.foreign", program
            assert refusal(tieconv.plan_retie, two, **NAMES).code == "config.foreign", program
            for plan in (partial(tieconv.plan_set_tie, "true"), partial(tieconv.plan_bias, "zero")):
                assert refusal(plan, two, **NAMES).code == "config.foreign", program

    def test_the_flag_of_mamba(self, tmp_path: Path) -> None:
        """state-spaces' loader takes tie_embeddings, loads strictly, and wants both names."""
        path = save(tmp_path / "m", MAMBA, llama(head=matrix()))
        config = tieconv.inspect(path).config
        assert (config.effective, config.why) == (True, "Tied: tie_embeddings is true.")
        untied = tieconv.plan_untie(path, **NAMES).execute(tmp_path / "untied").output
        tied = tieconv.plan_retie(untied, **NAMES).execute(tmp_path / "tied").output
        for folder, flag in ((untied, False), (tied, True)):
            inspection = tieconv.inspect(folder)
            assert inspection.checkpoint.config_values == {**MAMBA, "tie_embeddings": flag}
            assert {EMBED, HEAD} <= inspection.checkpoint.tensors.keys()
        copies = {(entry.finding.rule, str(entry.finding.level)) for entry in tieconv.check(path).models[0].findings}
        assert ("TIE002", "note") in copies and tieconv.check(path).exit_code == 0

    def test_the_flag_of_mistral(self, tmp_path: Path) -> None:
        """params.json has tied_embeddings, and an absent key may be unknown to the loader."""
        params = {"dim": 4, "n_layers": 1, "head_dim": 2, "hidden_dim": 8, "vocab_size": 8}
        tensors = {"tok_embeddings.weight": matrix(), "output.weight": matrix(), "norm.weight": vector()}
        names = {"embed": "tok_embeddings.weight", "head": "output.weight"}
        for case, more, tied in (("absent", {}, False), ("false", {"tied_embeddings": False}, False)):
            path = save(tmp_path / case, None, tensors)
            (path / "model.safetensors").rename(path / "consolidated.safetensors")
            (path / "params.json").write_text(json.dumps(params | more))
            assert tieconv.inspect(path).config.effective is tied, case
            if more:
                output = tieconv.plan_set_tie("true", path, **names).execute(tmp_path / "out").output
                assert json.loads((Path(output) / "params.json").read_text()) == params | {"tied_embeddings": True}
            else:
                assert refusal(partial(tieconv.plan_set_tie, "true"), path, **names).code == "config.foreign"
            assert refusal(tieconv.plan_retie, path, **names).code == "config.foreign"

    def test_litgpt(self, tmp_path: Path) -> None:
        """It keeps the config.json that it downloaded, but reads model_config.yaml."""
        path = save(tmp_path / "m", UNTIED, llama(head=matrix()))
        tieconv.plan_convert("torch", path).execute(tmp_path / "lit")
        (tmp_path / "lit" / "pytorch_model.bin").rename(tmp_path / "lit" / "lit_model.pth")
        (tmp_path / "lit" / "model_config.yaml").write_text("name: tiny")
        assert refusal(tieconv.plan_retie, tmp_path / "lit").code == "config.foreign"


def test_a_head_at_another_place(tmp_path: Path) -> None:
    """MLX names below language_model., but the head at the top: it is not missing, and no verb abandons it."""
    config = {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        "tie_word_embeddings": False,
        "text_config": {"model_type": "qwen2_5_vl_text", "vocab_size": 8, "tie_word_embeddings": False},
        "quantization": {"bits": 4, "group_size": 32},
    }
    tensors = {"language_model.model.embed_tokens.weight": matrix(), "language_model.model.norm.weight": vector()}
    path = save(tmp_path / "m", config, {**tensors, "lm_head.weight": matrix(seed=1)})
    (finding,) = tieconv.inspect(path).findings
    assert "lm_head.weight is stored" in finding.message
    assert "mlx-vlm" in finding.message
    for function in (tieconv.plan_untie, tieconv.plan_retie):
        assert refusal(function, path).code == "tie.unexplained"
    assert refusal(partial(tieconv.plan_set_tie, "auto"), path).code == "tie.unexplained"


def test_a_lone_file_of_an_unknown_class_says_what_its_program_must_do(tmp_path: Path) -> None:
    """No config has the class: no note names a class, and a smaller limit of shards is not ignored silently."""
    tensors = {"emb.weight": matrix(), "out.weight": matrix(), "out.bias": 0 * vector(), "more": matrix(seed=2)}
    file = save(tmp_path / "m", None, tensors) / "model.safetensors"
    names = {"embed": "emb.weight", "head": "out.weight"}
    (note,) = tieconv.plan_retie(file, **names).plan.notes
    assert "a program that does not tie its head may refuse the file" in note and note.endswith(REVIEW_FIRST)
    (note,) = tieconv.plan_untie(file, **names).plan.notes
    assert "a program that ties its head may refuse the file" in note and REVIEW_FIRST not in note
    (note,) = tieconv.plan_convert("safetensors", file, max_shard_size=100).plan.notes
    assert "larger than --max-shard-size" in note
    (note,) = tieconv.plan_bias("strip", file, **names).plan.notes
    assert note == "tieconv does not know the class: a program with a parameter out.bias may refuse the file"
    assert "no config.json" in str(refusal(tieconv.plan_resize, file, to="config", **names))


def test_resize_changes_an_encoder_and_leaves_shared_rows_alone(tmp_path: Path) -> None:
    """A class without a head has an embedding all the same, and equal sizes need no change."""
    encoder = {**LLAMA, "architectures": ["LlamaForSequenceClassification"]}
    plan = tieconv.plan_resize(save(tmp_path / "m", encoder, llama()), to=str(VOCAB + 2)).plan
    assert [operation.path for operation in plan.operations if isinstance(operation, SetConfig)] == ["vocab_size"]
    torch = pytest.importorskip("torch")
    shared = save(tmp_path / "n", {**TIED, "vocab_size": VOCAB}, {})
    (shared / "model.safetensors").unlink()
    state = {name: torch.tensor(value) for name, value in llama().items()}
    torch.save({**state, HEAD: state[EMBED]}, shared / "pytorch_model.bin")
    assert tieconv.plan_resize(shared, to="config").plan.changes_nothing
    assert refusal(tieconv.plan_resize, shared, to="9999").code == "resize.shared"


def test_a_variant_is_not_left_behind(tmp_path: Path) -> None:
    """With a changed flag or size, from_pretrained(variant="fp16") gets a random head, or fails."""
    tied, untied = (
        save(tmp_path / "tied", TIED, llama(head=matrix())),
        save(tmp_path / "m", UNTIED, llama(head=matrix())),
    )
    for name in ("model.fp16.safetensors", "model-00001-of-00002.fp16.safetensors", "consolidated.safetensors"):
        for path in (tied, untied):
            (path / name).write_bytes((path / "model.safetensors").read_bytes())
        for function, path, options in (
            (tieconv.plan_untie, tied, {}),
            (partial(tieconv.plan_set_tie, "false"), tied, {}),
            (tieconv.plan_retie, untied, {}),
            (tieconv.plan_resize, untied, {"to": VOCAB + 8}),
        ):
            error = refusal(function, path, **options)
            assert error.code == "layout.beside" and f"{name} holds the weights of the same model" in str(error)
        for plan in (
            tieconv.plan_dedup(tied),
            tieconv.plan_retie(tied),
            tieconv.plan_untie(untied),
            tieconv.plan_convert("safetensors", untied, max_shard_size=200),
        ):
            assert name in {link.name for link in plan.plan.links}
        for path in (tied, untied):
            (path / name).unlink()
    (tied / "original").mkdir()
    (tied / "original" / "consolidated.safetensors").write_bytes(b"")
    assert not tieconv.plan_untie(tied).plan.changes_nothing


FORCE = {"force": True}
CASES: dict[str, tuple[Config, Tensors, dict[str, object]]] = {
    "untied copy": (UNTIED, llama(head=matrix()), {}),
    "tied copy": (TIED, llama(head=matrix()), {}),
    "already tied": (TIED, llama(), {}),
    "head alone": (TIED, {HEAD: matrix(), "model.norm.weight": vector(4)}, {}),
    "placeholder": (TIED, llama(head=np.zeros((0, 4), "<f4")), {}),
    "other": (UNTIED, llama(head=matrix(seed=1)), {}),
    "other, survivor without force": (UNTIED, llama(head=matrix(seed=1)), {"survivor": Survivor.HEAD}),
    "other, force without survivor": (UNTIED, llama(head=matrix(seed=1)), FORCE),
    "other, keep the embedding": (UNTIED, llama(head=matrix(seed=1)), {**FORCE, "survivor": Survivor.EMBED}),
    "other, keep the head": (UNTIED, llama(head=matrix(seed=1)), {**FORCE, "survivor": Survivor.HEAD}),
    "other, keep the mean": (UNTIED, llama(head=matrix(seed=1)), {**FORCE, "survivor": Survivor.MEAN}),
    "transposed": (TIED, llama(head=matrix().T), {}),
    "transposed, by force": (TIED, llama(head=matrix().T), {**FORCE, "survivor": Survivor.HEAD}),
    "longer": (TIED, llama(head=matrix(9)), {}),
    "longer, by force": (TIED, llama(head=matrix(9)), {**FORCE, "survivor": Survivor.EMBED}),
    "scaled": (TIED, llama(head=matrix() * 2), {}),
    "biases differ": (flagged(BERT, True), bert(outer=vector(), inner=vector(seed=1)), {}),
    "biases differ, by force": (
        flagged(BERT, True),
        bert(outer=vector(), inner=vector(seed=1)),
        {**FORCE, "survivor": Survivor.EMBED},
    ),
    "BART, every copy": (flagged(BART, False), {**bart("encoder", "decoder"), HEAD: matrix()}, {}),
    "BART, one copy": (flagged(BART, False), {**bart("encoder"), HEAD: matrix()}, {}),
    "BART, head of its own": (flagged(BART, False), bart("encoder", "decoder"), {}),
    "BART, keep the head": (flagged(BART, False), bart("encoder", "decoder"), {**FORCE, "survivor": Survivor.HEAD}),
    "BART, halves alone": (
        flagged(BART, True),
        {key: one for key, one in bart("encoder", "decoder").items() if "coder" in key},
        {},
    ),
}
EXPECTED = json.loads(Path(__file__).with_name("retie.json").read_text(encoding="utf-8"))
"""The code of each refusal, or the operations and notes of each plan."""


def answer(path: Path, options: dict[str, object]) -> list[str]:
    try:
        plan = tieconv.plan_retie(path, **options).plan
    except RefusedError as error:
        assert error.hint
        return [error.code]
    return [*map(str, plan.operations), *plan.notes]


def test_every_entry_has_a_case() -> None:
    """No answer is left of a case that is gone."""
    assert EXPECTED.keys() == CASES.keys()


@pytest.mark.parametrize("case", CASES)
def test_answer(case: str, tmp_path: Path) -> None:
    """The exact code, or the exact operations in their order and every note."""
    config, tensors, options = CASES[case]
    assert answer(save(tmp_path / "model", config, tensors), options) == EXPECTED[case]


UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


@given(st.integers(1, 10**6), st.sampled_from(sorted(UNITS)), st.booleans(), st.booleans())
def test_a_size_is_its_number_times_its_unit(number: int, unit: str, lower: bool, gap: bool) -> None:
    """In any case, with or without a space."""
    text = f"{number}{' ' * gap}{unit.lower() if lower else unit}"
    assert parse_size(text) == number * UNITS[unit]


@pytest.mark.parametrize(("text", "number"), [("1.5GB", 1_500_000_000), ("7", 7), (" 5 GB ", 5 * 10**9)])
def test_fractions_and_plain_bytes(text: str, number: int) -> None:
    """As huggingface_hub takes them."""
    assert parse_size(text) == number


@pytest.mark.parametrize("text", ["", "GB", "0", "0.1B", "-1GB", "5XB", "1e9", "5 GB GB", "٣GB "])
def test_what_is_no_size(text: str) -> None:
    """Nothing is guessed."""
    if text == "٣GB ":  # digits of another script are digits to Python
        assert parse_size(text) == 3 * 10**9
        return
    with pytest.raises(ValueError, match="size"):
        parse_size(text)


def tensor(name: str, dtype: str, elements: int) -> OutputTensor:
    size = nbytes(dtype, (elements,))
    assert size is not None
    return OutputTensor(name, dtype, (elements,), ByteRange("f", 0, size))


tensors = st.lists(
    st.builds(
        tensor, st.text(max_size=3), st.sampled_from(["BOOL", "U8", "BF16", "F32", "F64", "I64"]), st.integers(0, 9)
    ),
    max_size=12,
)


@given(tensors)
def test_every_tensor_starts_on_a_multiple_of_its_element(found: list[OutputTensor]) -> None:
    """Readers that map a file cannot use a float that starts between two."""
    position = 0
    for entry in widest_first(found):
        assert position % (BITS[entry.dtype] // 8) == 0
        position += entry.nbytes


@given(tensors, st.integers(1, 100))
def test_a_split_keeps_order_and_limit(found: list[OutputTensor], limit: int) -> None:
    """The shards, one after the other, are the tensors; each fits, or holds one tensor that does not."""
    named = [OutputTensor(str(place), t.dtype, t.shape, t.content) for place, t in enumerate(found)]
    shards = list(split_shards(named, limit))
    assert sorted((t.name for shard in shards for t in shard), key=int) == [t.name for t in named]
    for shard in shards:
        assert shard and (sum(t.nbytes for t in shard) <= limit or len(shard) == 1)
    small = [t.name for shard in shards for t in shard if t.nbytes <= limit]
    assert small == sorted(small, key=int)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), min_size=1, max_size=4))
def test_a_trimmed_storage_holds_its_views(places: list[tuple[int, int]]) -> None:
    """From before the first to the last used byte; each view stays on the border that it was on."""
    storage = Storage("0", ByteRange("f", 64, 64 + 80), crc=1)
    views = [
        TensorRecord(str(place), "U8", (size,), ByteRange("f", 64 + start, 64 + start + size), storage="0")
        for place, (start, size) in enumerate(places)
    ]
    found = trimmed(storage, views)
    first, last = min(v.range.start for v in views), max(v.range.end for v in views)
    assert found.range.end == last and 0 <= first - found.range.start < 16
    assert (found.range.start - 64) % 16 == 0
    assert found == OutputStorage(storage.range, 1) if found.range == storage.range else found.crc is None
