"""Each verb on a quantised embedding and head: all parts of a matrix stay together, and the flag fits them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

import tieconv
from tests.inspection.quantised.stored_models import (
    AWQ,
    BNB,
    BY_CLASS,
    GPTQ,
    HEAD,
    MLX_CONFIG,
    NAMED,
    awq,
    bitsandbytes,
    compressed,
    config,
    equal,
    gptq,
    mlx,
    model,
    packed,
    save,
    tensor,
    under,
)
from tieconv.checkpoint.quantised_matrix import PairState, Verdict
from tieconv.plans.config import Modules, _awq
from tieconv.reporters.text.diff_text import render

HEAD_ENTRY = {
    "quantization": {
        "group_size": 64,
        "bits": 8,
        "lm_head": {"group_size": 64, "bits": 4},
        "model.embed_tokens": {"group_size": 64, "bits": 4},
    }
}
TWICE = HEAD_ENTRY | {"quantization_config": HEAD_ENTRY["quantization"]}
GROUPS = {name: compressed(target)["quantization_config"]["config_groups"]["g"] for name, target in
          {"e": "re:.*embed_tokens$", "h": "lm_head"}.items()}  # fmt: skip
OWN_GROUP = {"quantization_config": compressed()["quantization_config"] | {"config_groups": GROUPS}}
"""A group that lists the head alone."""


def tensors(folder: Path) -> dict[str, bytes]:
    """The bytes of each stored tensor."""
    inspection = tieconv.inspect(folder)
    return {
        name: (folder / record.range.file).read_bytes()[record.range.start : record.range.end]
        for name, record in inspection.checkpoint.tensors.items()
    }


def values(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def refusal(plan: Any, *arguments: Any, **options: Any) -> tieconv.TieconvError:
    with pytest.raises(tieconv.RefusedError) as caught:
        plan(*arguments, **options)
    return caught.value


# Scheme, config, the part of the config that changes after a retie, and its value then.
RETIED: tuple[tuple[Any, dict[str, Any], tuple[str, ...], Any], ...] = (
    (packed, NAMED, ("quantization_config", "config_groups", "g", "targets"), ["re:.*embed_tokens$"]),
    (packed, NAMED, ("quantization_config", "ignore"), []),
    (packed, BY_CLASS, ("quantization_config", "ignore"), ["lm_head"]),
    (packed, OWN_GROUP, ("quantization_config", "ignore"), ["lm_head"]),
    (gptq, GPTQ, ("quantization_config", "lm_head"), False),
    (awq, AWQ, ("quantization_config", "lm_head"), False),
    (bitsandbytes, BNB, ("quantization_config", "llm_int8_skip_modules"), ["none", "lm_head"]),
    (mlx, MLX_CONFIG, ("quantization", "lm_head"), None),
    (mlx, HEAD_ENTRY, ("quantization", "lm_head"), None),
    (mlx, TWICE, ("quantization_config", "lm_head"), None),
)


@pytest.mark.parametrize(("make", "entries", "path", "expected"), RETIED)
@pytest.mark.parametrize("tied", [True, False])
def test_retie_drops_every_part(
    make: Any, entries: dict[str, Any], path: tuple[str, ...], expected: Any, tied: bool, tmp_path: Path
) -> None:
    """The codes of the embedding stay byte for byte; flag and quantisation config change together."""
    source = model(tmp_path / "m", equal(make), entries, tied, "qq")
    before = tensors(source)
    tieconv.plan_retie(source).execute(tmp_path / "out")
    assert tensors(tmp_path / "out") == {name: data for name, data in before.items() if not name.startswith(HEAD)}
    config = values(tmp_path / "out")
    assert config["tie_word_embeddings"] is True
    for key in path[:-1]:
        config = config[key]
    assert config.get(path[-1]) == expected
    again = tieconv.plan_retie(tmp_path / "out").plan
    assert again.changes_nothing and "already tied" in again.summary


@pytest.mark.parametrize(
    ("make", "entries"),
    [(packed, NAMED), (packed, BY_CLASS), (gptq, GPTQ), (awq, AWQ), (bitsandbytes, BNB), (mlx, HEAD_ENTRY)],
)
def test_a_round_trip(make: Any, entries: dict[str, Any], tmp_path: Path) -> None:
    """Untie of the re-tied model stores the same bytes under the head's names again, and lists the head."""
    source = model(tmp_path / "m", equal(make), entries, False, "qq")
    tieconv.plan_retie(source).execute(tmp_path / "tied")
    tieconv.plan_untie(tmp_path / "tied").execute(tmp_path / "untied")
    assert tensors(tmp_path / "untied") == tensors(source)
    inspection = tieconv.inspect(tmp_path / "untied")
    assert inspection.quantised is not None and inspection.quantised.relation is not None
    assert inspection.quantised.relation.state is PairState.EQUAL
    embedding, head = inspection.quantised.matrices
    assert (head.config.bits, head.config.group) == (embedding.config.bits, embedding.config.group)
    assert head.config.verdict is (Verdict.UNDECIDED if make is mlx else Verdict.QUANTISED)
    assert values(tmp_path / "untied")["tie_word_embeddings"] is False


def test_each_drop_is_proved_again(tmp_path: Path) -> None:
    """A part that changes after the plan stops the write."""
    source = model(tmp_path / "m", equal(packed), NAMED, False, "qq")
    plan = tieconv.plan_retie(source)
    assert {proof.tensor.name for proof in plan.plan.proofs} == {
        "lm_head.weight_packed", "lm_head.weight_scale", "lm_head.weight_shape",
    }  # fmt: skip
    record = tieconv.inspect(source).checkpoint.tensors["lm_head.weight_scale"]
    file = source / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[record.range.start] ^= 1
    file.write_bytes(data)
    with pytest.raises(tieconv.TieconvError) as caught:
        plan.execute(tmp_path / "out")
    assert caught.value.code == "plan.stale" and not (tmp_path / "out").exists()


def test_a_part_that_differs_is_named(tmp_path: Path) -> None:
    """Equal codes with one other scale are not a copy."""

    def other_scale(number: int) -> Any:
        parts = packed(0)
        scales = parts["weight_scale"][1].copy()
        scales[-1, -1] += np.float32(number)
        return parts | {"weight_scale": tensor(scales)}

    source = model(tmp_path / "m", other_scale, NAMED, True, "qq")
    error = refusal(tieconv.plan_retie, source)
    assert error.code == "retie.not-equal"
    assert "lm_head.weight_scale differs" in error.message and "set-tie false" in error.command_hint
    assert refusal(tieconv.plan_retie, source, survivor="embed", force=True).code == "retie.not-equal"


def test_two_schemes_of_one_matrix(tmp_path: Path) -> None:
    """A Q4 embedding beside a Q8 head."""

    def wider(number: int) -> Any:
        if not number:
            return mlx(0)
        words = np.random.default_rng(0).integers(0, 2**32, (32, 16)).astype("<u4")
        return mlx(0) | {"weight": tensor(words)}

    error = refusal(tieconv.plan_retie, model(tmp_path / "m", wider, HEAD_8, False, "qq"))
    assert error.code == "retie.not-equal" and "4 bits" in error.message and "8 bits" in error.message


HEAD_8 = {"quantization": {"group_size": 64, "bits": 4, "lm_head": {"group_size": 64, "bits": 8}}}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("pair", ["fq", "qf"])
def test_codes_and_floats_are_two_matrices(pair: str, tied: bool, tmp_path: Path) -> None:
    source = model(tmp_path / "m", equal(packed), NAMED, tied, pair)
    error = refusal(tieconv.plan_retie, source)
    assert "two matrices" in error.message
    assert ("set-tie false" in error.command_hint) is tied
    if (pair, tied) == ("fq", False):
        assert tieconv.plan_untie(source).plan.changes_nothing


def test_unlike_floats_no_values_may_change(tmp_path: Path) -> None:
    source = model(tmp_path / "m", equal(packed), NAMED, False, "qq")
    assert tieconv.plan_retie(source, fold_norm=True).plan.proofs
    assert refusal(tieconv.plan_retie, source, survivor="embed", max_kl=1.0).code == "tie.quantised"
    assert refusal(tieconv.plan_retie, source, survivor="mean", force=True).code == "tie.quantised"
    assert refusal(tieconv.plan_untie, model(tmp_path / "t", packed, NAMED, True, "q0"), keep_flag=True).code


class TestLoaders:
    """transformers 5 decides; mlx-lm for its own files."""

    def fp8(self, folder: Path, tied: bool, pair: str) -> Path:
        settings = compressed("re:.*lm_head$", "re:.*embed_tokens$")["quantization_config"]
        group = settings["config_groups"]["g"]
        group["weights"] = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
        entries = {"quantization_config": settings | {"format": "float-quantized"}}
        random = np.random.default_rng(0)
        parts = {
            "weight": ("F8_E4M3", random.integers(0, 120, (32, 64)).astype("|u1")),
            "weight_scale": tensor(random.uniform(0.1, 1, (32, 1)).astype("<f4")),
        }
        stored = under("model.embed_tokens", parts) | (under(HEAD, parts) if pair == "qq" else {})
        return save(folder, config(32, 64, tied, **entries), stored)

    def test_a_result_that_transformers_would_load_wrongly(self, tmp_path: Path) -> None:
        """It ties FP8 codes and not their scales, and compares the codes with floats."""
        source = self.fp8(tmp_path / "m", False, "qq")
        error = refusal(tieconv.plan_retie, source)
        assert error.code == "meaning.refused" and "compares FP8 codes with floats" in error.message
        plan = tieconv.plan_retie(source, survivor="embed", force=True)
        assert any("compares FP8 codes with floats" in note for note in plan.plan.notes)
        plan.execute(tmp_path / "out")

    def test_untie_is_not_measured(self, tmp_path: Path) -> None:
        """The copy has its own scales. transformers refuses some such files, so nothing is claimed of the others."""
        plan = tieconv.plan_untie(self.fp8(tmp_path / "m", True, "q0")).plan
        (note,) = (note for note in plan.notes if "transformers" in note)
        assert note.startswith("tieconv has no measurement of how transformers 5")

    def test_a_fault_that_the_model_already_has(self, tmp_path: Path) -> None:
        """transformers 5 fails at any packed embedding, so retie says so and goes on."""
        plan = tieconv.plan_retie(model(tmp_path / "m", equal(packed), NAMED, False, "qq")).plan
        assert any("transformers 5" in note and "already has this fault" in note for note in plan.notes)
        assert any("dequantize=True" in note for note in plan.notes)

    def test_mlx_is_safe(self, tmp_path: Path) -> None:
        plan = tieconv.plan_retie(model(tmp_path / "m", equal(mlx), MLX_CONFIG, False, "qq")).plan
        assert [note for note in plan.notes if "mlx-lm" in note or "transformers" in note] == []

    def test_a_class_whose_flag_may_not_change(self, tmp_path: Path) -> None:
        """A copy under the true flag goes; an untied head stays."""
        tied, untied = (
            model(tmp_path / str(flag), equal(packed), NAMED, flag, "qq", kind="Zamba") for flag in (True, False)
        )
        assert tieconv.plan_retie(tied).plan.summary.startswith("3 tensors dropped")
        assert refusal(tieconv.plan_retie, untied).code == "tie.unflippable"

    def test_a_class_that_ties_more_tables(self, tmp_path: Path) -> None:
        entries = compressed("re:.*lm_head$", "re:.*shared$") | {"architectures": ["T5ForConditionalGeneration"]}
        tables = under("shared", packed(0)) | under("lm_head", packed(0))
        path = save(tmp_path / "m", config(32, 64, True) | entries | {"model_type": "t5", "d_model": 64}, tables)
        assert "ties encoder.embed_tokens.weight too" in refusal(tieconv.plan_retie, path).message

    def test_no_measurement(self, tmp_path: Path) -> None:
        plan = tieconv.plan_retie(model(tmp_path / "m", equal(packed), NAMED, False, "qq", kind="Mistral")).plan
        assert "tieconv has no measurement of how vLLM 0.32, vLLM 0.28, llama.cpp would load the result" in plan.notes


class TestConfigs:
    """What tieconv does not edit, it refuses."""

    def refused(self, folder: Path, entries: dict[str, Any], verb: Any = tieconv.plan_retie, pair: str = "qq") -> str:
        error = refusal(verb, model(folder, equal(packed), entries, verb is tieconv.plan_untie, pair))
        assert error.code == "quantised.config"
        return error.message

    def test_two_descriptions(self, tmp_path: Path) -> None:
        entries = NAMED | {"compression_config": {"quant_method": "compressed-tensors", "ignore": ["x"]}}
        assert "twice" in self.refused(tmp_path, entries)

    def test_a_pattern_that_also_excludes_others(self, tmp_path: Path) -> None:
        settings = BY_CLASS["quantization_config"] | {"ignore": ["re:.*(lm_head|norm)$"]}
        message = self.refused(tmp_path, {"quantization_config": settings}, tieconv.plan_untie, "q0")
        assert "would not list the head" in message

    def test_mlx_leaves_the_embedding_out(self, tmp_path: Path) -> None:
        settings = {"quantization": MLX_CONFIG["quantization"] | {"model.embed_tokens": False}}
        error = refusal(tieconv.plan_untie, model(tmp_path, equal(mlx), settings, True, "q0"))
        assert "would not list the head as quantised (lm_head)" in error.message

    def test_another_group_for_the_head(self, tmp_path: Path) -> None:
        settings = compressed("re:.*embed_tokens$")["quantization_config"]
        group = settings["config_groups"]["g"]
        wide = group | {"targets": ["Linear"], "weights": group["weights"] | {"num_bits": 8}}
        settings = settings | {"config_groups": {"a": wide, "g": group}}
        message = self.refused(tmp_path, {"quantization_config": settings}, tieconv.plan_untie, "q0")
        assert "other settings than the embedding" in message


def test_a_tensor_beside_the_parts(tmp_path: Path) -> None:
    """It would be lost or left alone."""

    def with_input_scale(number: int) -> Any:
        return packed(0) | {"input_scale": tensor(np.ones(1, "<f4"))}

    error = refusal(tieconv.plan_retie, model(tmp_path / "m", with_input_scale, NAMED, False, "qq"))
    assert "input_scale" in error.message


def test_broken_matrices(tmp_path: Path) -> None:
    def without_scales(number: int) -> Any:
        return {leaf: part for leaf, part in packed(0).items() if leaf != "weight_scale"}

    for verb in (tieconv.plan_retie, tieconv.plan_untie):
        error = refusal(verb, model(tmp_path / verb.__name__, without_scales, NAMED, False, "qq"))
        assert error.code == "quantised.broken"


def flag(folder: Path, value: str, **options: Any) -> object:
    """The flag that set-tie writes, or the code of its refusal."""
    try:
        plan = tieconv.plan_set_tie(value, folder, **options)
    except tieconv.RefusedError as error:
        return error.code
    plan.execute(folder.parent / "out")
    return json.loads((folder.parent / "out" / "config.json").read_text())["tie_word_embeddings"]


@pytest.mark.parametrize(("make", "entries"), [(packed, NAMED), (awq, AWQ), (mlx, MLX_CONFIG)])
class TestTheFlagContradicts:
    """Both matrices are stored with all their parts, and the config says tied."""

    @pytest.mark.parametrize("pair", ["fq", "qq", "qf"])
    @pytest.mark.parametrize("value", ["false", "auto"])
    def test_false(self, make: Any, entries: dict[str, Any], pair: str, value: str, tmp_path: Path) -> None:
        # transformers reads AWQ codes only inside the blocks, so an untied head would be random.
        expected = "meaning.refused" if make is awq and pair != "qq" else False
        assert flag(model(tmp_path / "m", make, entries, True, pair), value) == expected

    @pytest.mark.parametrize("pair", ["fq", "qq", "qf"])
    @pytest.mark.parametrize("tied", [True, False])
    def test_true_needs_equal_parts(
        self, make: Any, entries: dict[str, Any], pair: str, tied: bool, tmp_path: Path
    ) -> None:
        assert flag(model(tmp_path / "m", make, entries, tied, pair), "true") == "set-tie.discards"

    @pytest.mark.parametrize("tied", [True, False])
    def test_no_head_is_stored(self, make: Any, entries: dict[str, Any], tied: bool, tmp_path: Path) -> None:
        source = model(tmp_path / "m", make, entries, tied, "q0")
        assert flag(source, "false") == "set-tie.random"
        assert flag(source, "auto") is True


def test_equal_parts_may_be_tied(tmp_path: Path) -> None:
    """A note says that the copy stays."""
    source = model(tmp_path / "m", equal(packed), NAMED, False, "qq")
    assert any("tieconv retie drops them" in note for note in tieconv.plan_set_tie("true", source).plan.notes)
    assert flag(source, "auto") is True


def test_mlx_lm_decides_for_its_files(tmp_path: Path) -> None:
    """It fails at a tied model that stores codes for the head."""
    source = model(tmp_path / "m", equal(mlx), MLX_CONFIG, False, "qq")
    assert flag(source, "true") == "meaning.refused"
    assert flag(source, "true", force=True) is True


@pytest.mark.parametrize(("make", "entries"), [(gptq, GPTQ), (awq, AWQ)])
def test_transformers_decides(make: Any, entries: dict[str, Any], tmp_path: Path) -> None:
    """With the flag true it uses the embedding as the head, with the flag false random numbers."""
    source = model(tmp_path / "m", make, entries, True, "fq")
    assert flag(source, "false") == "meaning.refused"
    assert flag(source, "false", force=True) is False


def test_the_flag_of_broken_matrices(tmp_path: Path) -> None:
    def without_scales(number: int) -> Any:
        return {leaf: part for leaf, part in packed(0).items() if leaf != "weight_scale"}

    source = model(tmp_path / "m", without_scales, NAMED, True, "fq")
    assert flag(source, "false") == "quantised.broken"


def test_unread_tables_leave_auto_open(tmp_path: Path) -> None:
    """tieconv claims nothing about values that it did not compare."""

    def packed_unknown(number: int) -> Any:
        return {"W_q": packed(number)["weight_packed"], "scale": packed(number)["weight_scale"]}

    source = model(tmp_path / "m", packed_unknown, {"quantization_config": {"quant_method": "hqq"}}, True, "fq")
    assert flag(source, "auto") in ("set-tie.ambiguous", "quantised.broken")


@pytest.mark.parametrize(
    ("values", "listing", "entries"),
    [
        ({}, False, {}),
        ({"modules_to_not_convert": ["a"]}, False, {("modules_to_not_convert",): ("a", "lm_head")}),
        ({"modules_to_not_convert": ["lm_head"]}, False, {}),
        ({"modules_to_not_convert": ["a", "lm_head"]}, True, {("modules_to_not_convert",): ("a",), ("lm_head",): True}),
        ({"lm_head": True}, False, {("lm_head",): False}),
        ({"lm_head": True}, True, {}),
    ],
)
def test_entries_of_awq(values: dict[str, Any], listing: bool, entries: dict[tuple[str, ...], Any]) -> None:
    """A list of modules in floats is kept in step, and none is made for a head in floats."""
    assert _awq(values, Modules("model.embed_tokens", "lm_head", ()), listing) == entries


SCHEMES = ((packed, NAMED), (gptq, GPTQ), (awq, AWQ), (bitsandbytes, BNB), (mlx, MLX_CONFIG))


KEYS = ("quantization", "quantization_config")


def names(folder: Path) -> set[str]:
    return set(tieconv.inspect(folder).checkpoint.tensors)


@pytest.mark.parametrize(("make", "entries"), SCHEMES)
@pytest.mark.parametrize("tied", [True, False])
def test_dedup_never_drops_one_part(make: Any, entries: dict[str, Any], tied: bool, tmp_path: Path) -> None:
    """Codes of the head that equal the embedding's stay, because their scales stay too."""
    source = model(tmp_path / "m", equal(make), entries, tied, "qq")
    plan = tieconv.plan_dedup(source)
    assert plan.plan.changes_nothing
    if make in (mlx, bitsandbytes) and tied:
        assert any("tieconv retie drops all parts together" in note for note in plan.plan.notes)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("make", "entries"), SCHEMES[:-1])
@pytest.mark.parametrize(("tied", "pair"), [(True, "q0"), (False, "qq"), (False, "fq"), (False, "qf")])
def test_convert_keeps_all_parts(make: Any, entries: dict[str, Any], tied: bool, pair: str, tmp_path: Path) -> None:
    """To torch and back, and into shards: the same names, the same relation, the same function."""
    source = model(tmp_path / "m", equal(make), entries, tied, pair)
    tieconv.plan_convert("torch", source).execute(tmp_path / "torch")
    tieconv.plan_convert("safetensors", tmp_path / "torch", max_shard_size=3000).execute(tmp_path / "back")
    for folder in (tmp_path / "torch", tmp_path / "back"):
        assert names(folder) == names(source)
        before, after = tieconv.inspect(source).quantised, tieconv.inspect(folder).quantised
        assert before is not None and after is not None and before.relation == after.relation
        assert [matrix.shape for matrix in before.matrices] == [matrix.shape for matrix in after.matrices]
        assert tieconv.diff(source, folder).same_function


@pytest.mark.parametrize("pair", ["q0", "qq"])
def test_no_program_reads_a_torch_file_with_codes_of_mlx(pair: str, tmp_path: Path) -> None:
    """`mlx_lm.convert -q` writes such models. Shards of safetensors stay the same function."""
    source = model(tmp_path / "m", equal(mlx), MLX_CONFIG, pair == "q0", pair)
    with pytest.raises(tieconv.RefusedError, match="mlx-lm reads safetensors files, not torch"):
        tieconv.plan_convert("torch", source)
    tieconv.plan_convert("safetensors", source, max_shard_size=3000).execute(tmp_path / "shards")
    assert tieconv.diff(source, tmp_path / "shards").same_function


def test_the_metadata_of_torchao_stays(tmp_path: Path) -> None:
    """torchao builds a tensor from its parts and the metadata. Shards keep it, and a torch file cannot."""
    source = model(tmp_path / "m", equal(packed), NAMED, False, "fq")
    (path,) = source.glob("*.safetensors")
    with safe_open(path, "np") as file:
        save_file({key: file.get_tensor(key) for key in file.keys()}, path, {"tensor_names": "[]"})  # noqa: SIM118
    with pytest.raises(tieconv.RefusedError, match="torchao builds these tensors from the metadata"):
        tieconv.plan_convert("torch", source)
    tieconv.plan_convert("safetensors", source, max_shard_size=3000).execute(tmp_path / "shards")
    assert all(
        file.metadata == {"tensor_names": "[]"} for file in tieconv.inspect(tmp_path / "shards").checkpoint.files
    )


def test_diff_after_untie_of_a_model_with_an_entry_for_each_module(tmp_path: Path) -> None:
    """mlx-lm writes entries for mixed bits. The entry of the new head repeats the embedding's, and changes nothing."""
    entry = {"group_size": 64, "bits": 4, "mode": "affine"}
    mixed = {key: MLX_CONFIG["quantization"] | {"model.embed_tokens": entry} for key in KEYS}
    source = model(tmp_path / "m", equal(mlx), mixed, True, "q0")
    tieconv.plan_untie(source).execute(tmp_path / "untied")
    assert tieconv.diff(source, tmp_path / "untied").same_function
    config = json.loads((tmp_path / "untied" / "config.json").read_text())
    assert all(config[key]["lm_head"] == entry for key in KEYS)
    (tmp_path / "untied" / "config.json").write_text(json.dumps(config | {KEYS[0]: config[KEYS[0]] | {"bits": 8}}))
    assert not tieconv.diff(source, tmp_path / "untied").same_function


class TestDiff:
    """`diff` compares the matrix, and its report lists the parts in one row."""

    def test_other_scales(self, tmp_path: Path) -> None:
        def other_scales(number: int) -> Any:
            return packed(number) | {"weight_scale": packed(number + 5)["weight_scale"]}

        source = model(tmp_path / "a", packed, NAMED, False, "fq")
        comparison = tieconv.diff(source, model(tmp_path / "b", other_scales, NAMED, False, "fq"))
        assert not comparison.same_function
        (matrix,) = comparison.matrices
        assert (matrix.name, matrix.parts) == ("lm_head.weight", ("lm_head.weight_scale",))
        assert matrix.relation is not None
        assert (matrix.relation.state, matrix.relation.differing) == (PairState.DIFFERENT, ("scales",))
        text = render(comparison)
        assert "lm_head.weight  compressed-tensors pack-quantized, 4 bits: different; differing parts: scales" in text
        assert "lm_head.weight_scale" not in text.partition("A and B differ")[0]

    def test_equal_after_dequantising(self, tmp_path: Path) -> None:
        """Codes counted from the other end, with scales of the other sign."""

        def exact(number: int) -> Any:
            scales = np.full((32, 1), 0.25, "<f2")
            return mlx(number) | {"scales": tensor(scales), "biases": tensor(-scales)}

        def exact_turned(number: int) -> Any:
            parts = exact(number)
            words, scales, biases = (parts[leaf][1] for leaf in ("weight", "scales", "biases"))
            return {"weight": tensor(~words), "scales": tensor(-scales), "biases": tensor(biases + 15 * scales)}

        source = model(tmp_path / "a", exact, MLX_CONFIG, True, "q0")
        comparison = tieconv.diff(source, model(tmp_path / "b", exact_turned, MLX_CONFIG, True, "q0"))
        (matrix,) = comparison.matrices
        assert matrix.relation is not None and matrix.relation.state is PairState.EQUAL_VALUES
        assert "equal after dequantising" in render(comparison)

    def test_a_float_matrix_and_its_codes(self, tmp_path: Path) -> None:
        source = model(tmp_path / "a", packed, NAMED, False, "ff")
        comparison = tieconv.diff(source, model(tmp_path / "b", packed, NAMED, False, "fq"))
        (matrix,) = comparison.matrices
        assert matrix.a is not None and matrix.b is not None and matrix.relation is not None
        assert (matrix.a.scheme, matrix.b.bits, matrix.relation.state) == ("F32", 4, PairState.DIFFERENT)
        assert "F32 in A, compressed-tensors pack-quantized, 4 bits in B: different" in render(comparison)
        assert matrix.a.shape == matrix.b.shape == (32, 64)

    def test_a_matrix_of_one_model(self, tmp_path: Path) -> None:
        source = model(tmp_path / "tied", packed, NAMED, True, "q0")
        tieconv.plan_untie(source).execute(tmp_path / "untied")
        comparison = tieconv.diff(source, tmp_path / "untied")
        (matrix,) = comparison.matrices
        assert matrix.relation is None and matrix.a is None
        assert "lm_head.weight  only in B: compressed-tensors pack-quantized, 4 bits in 3 parts" in render(comparison)
