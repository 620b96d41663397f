"""Packed codes give the values of the formula, written here element by element, for any codes and scales."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tieconv
from tests.inspection.quantised.stored_models import (
    EMBED,
    HEAD,
    Array,
    Tensor,
    config,
    matrix,
    save,
    tensor,
    under,
    values,
)
from tieconv.checkpoint.quantised_matrix import FaultKind, PairState, Verdict
from tieconv.loaders.registry import consumer
from tieconv.loaders.release_tables import quantised_cells

SEEDS = st.integers(0, 2**32 - 1)
QUICK = settings(max_examples=20, deadline=None)
AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)


def drawn(seed: int, rows: int, columns: int, bits: int) -> tuple[np.random.Generator, Array]:
    generator = np.random.default_rng(seed)
    return generator, generator.integers(0, 1 << bits, (rows, columns))


def scales_of(generator: np.random.Generator, shape: tuple[int, int], dtype: str = "<f2") -> Array:
    return (generator.uniform(-2, 2, shape)).astype(dtype)


def dense_words(codes: list[int], bits: int) -> list[int]:
    """A stream of bits, lowest first, cut into 32-bit words."""
    stream = sum(int(code) << index * bits for index, code in enumerate(codes))
    return [stream >> 32 * word & 0xFFFFFFFF for word in range(-(-len(codes) * bits // 32))]


def gapped_words(codes: list[int], bits: int) -> list[int]:
    """Words with as many whole codes as fit."""
    per_word = 32 // bits
    runs = [codes[start : start + per_word] for start in range(0, len(codes), per_word)]
    return [sum(int(code) << index * bits for index, code in enumerate(run)) for run in runs]


def packed(rows: Array, bits: int, *, gaps: bool = False) -> Array:
    """Each row of codes as 32-bit words."""
    pack = gapped_words if gaps else dense_words
    return np.array([pack(row.tolist(), bits) for row in rows], "<u4")


def computed(parts: dict[str, Tensor], shape: tuple[int, int], **entries: object) -> Array:
    with TemporaryDirectory() as folder:
        return values(save(Path(folder), config(*shape, **entries), under("lm_head", parts)))


def ct_config(bits: int, group: int, symmetric: bool) -> dict[str, object]:
    weights = {"num_bits": bits, "group_size": group, "symmetric": symmetric, "strategy": "group"}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups, "ignore": []}


class TestCompressedTensors:
    @given(SEEDS, st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8]), st.booleans(), st.booleans())
    @QUICK
    def test_packed(self, seed: int, bits: int, symmetric: bool, gaps: bool) -> None:
        rows, columns, group = 41, 128, 32
        gaps = gaps and (symmetric or 32 % bits == 0)
        generator, codes = drawn(seed, rows, columns, bits)
        scales = scales_of(generator, (rows, columns // group))
        parts = {
            "weight_packed": tensor(packed(codes, bits, gaps=gaps).view("<i4")),
            "weight_scale": tensor(scales),
            "weight_shape": tensor(np.array([rows, columns], "<i8")),
        }
        zero = np.full((rows, columns // group), 1 << (bits - 1))
        if not symmetric:
            zero = generator.integers(0, 1 << bits, zero.shape)
            words = np.array([dense_words(column.tolist(), bits) for column in zero.T], "<u4").T
            parts["weight_zero_point"] = tensor(np.ascontiguousarray(words).view("<i4"))
        formula = np.empty((rows, columns))
        for row in range(rows):
            for column in range(columns):
                group_of = row, column // group
                formula[row, column] = (int(codes[row, column]) - int(zero[group_of])) * float(scales[group_of])
        result = computed(parts, (rows, columns), quantization_config=ct_config(bits, group, symmetric))
        np.testing.assert_array_equal(result, formula)

    @given(SEEDS)
    @QUICK
    def test_columns_in_the_order_of_their_activations(self, seed: int) -> None:
        rows, columns, group = 9, 64, 32
        generator, codes = drawn(seed, rows, columns, 4)
        scales, index = scales_of(generator, (rows, 2)), generator.permutation(columns) // group
        parts = {
            "weight_packed": tensor(packed(codes, 4).view("<i4")),
            "weight_scale": tensor(scales),
            "weight_shape": tensor(np.array([rows, columns], "<i8")),
            "weight_g_idx": tensor(index.astype("<i4")),
        }
        result = computed(parts, (rows, columns), quantization_config=ct_config(4, group, True))
        np.testing.assert_array_equal(result, (codes - 8) * scales.astype("f8")[:, index])


class TestGptq:
    """No package of GPTQ is a test dependency, so the formula here is the reference."""

    @given(SEEDS, st.sampled_from([2, 3, 4, 8]), st.sampled_from(["gptq", "gptq_v2"]), st.booleans())
    @QUICK
    def test_both_versions(self, seed: int, bits: int, layout: str, ordered: bool) -> None:
        rows, columns, group = 64, 128, 32
        generator, codes = drawn(seed, rows, columns, bits)
        scales = scales_of(generator, (columns // group, rows))
        index = np.arange(columns) // group if ordered else generator.permutation(columns) // group
        stored_zero = generator.integers(0, (1 << bits) - 1, (columns // group, rows))
        parts = {
            "qweight": tensor(np.ascontiguousarray(packed(codes, bits).T).view("<i4")),
            "qzeros": tensor(packed(stored_zero, bits).view("<i4")),
            "scales": tensor(scales),
            "g_idx": tensor(index.astype("<i4")),
        }
        entries = {"quant_method": "gptq", "bits": bits, "group_size": group, "checkpoint_format": layout}
        formula = np.empty((rows, columns))
        for row in range(rows):
            for column in range(columns):
                group_of = index[column], row
                zero = int(stored_zero[group_of]) + (layout == "gptq")
                formula[row, column] = (int(codes[row, column]) - zero) * float(scales[group_of])
        result = computed(parts, (rows, columns), quantization_config={**entries, "lm_head": True})
        np.testing.assert_array_equal(result, formula)
        own = {key: entries.pop(key) for key in ("bits", "group_size")}
        others = {**entries, "bits": 4 if bits != 4 else 8, "group_size": 16, "lm_head": True}
        for pattern in ("lm_head", "+:.*head", "(?=lm_).*"):  # GPTQModel's settings of one module; one is undecided
            dynamic = {"-:.*gate.*": {}, ".*up_proj": {"bits": 2}, pattern: own}
            result = computed(parts, (rows, columns), quantization_config={**others, "dynamic": dynamic})
            np.testing.assert_array_equal(result, formula)


class TestAwq:
    """No package of AWQ is a test dependency, so the formula here is the reference."""

    @given(SEEDS)
    @QUICK
    def test_columns_are_interleaved(self, seed: int) -> None:
        rows, columns, group = 40, 64, 32
        generator, codes = drawn(seed, rows, columns, 4)
        zero = generator.integers(0, 16, (columns // group, rows))
        scales = scales_of(generator, (columns // group, rows))

        def words(matrix: Array) -> Array:
            """Eight neighbours of a row in one word, in AWQ's order."""
            out = np.zeros((matrix.shape[0], matrix.shape[1] // 8), "<u4")
            for row in range(matrix.shape[0]):
                for word in range(out.shape[1]):
                    for position, column in enumerate(AWQ_COLUMNS):
                        out[row, word] |= np.uint32(int(matrix[row, word * 8 + column]) << 4 * position)
            return out.view("<i4")

        parts = {"qweight": tensor(words(codes.T)), "qzeros": tensor(words(zero)), "scales": tensor(scales)}
        entries = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True}
        formula = np.empty((rows, columns))
        for row in range(rows):
            for column in range(columns):
                group_of = column // group, row
                formula[row, column] = (int(codes[row, column]) - int(zero[group_of])) * float(scales[group_of])
        result = computed(parts, (rows, columns), quantization_config=entries)
        np.testing.assert_array_equal(result, formula)


class TestBitsandbytes:
    @given(SEEDS, st.integers(1, 9), st.integers(1, 70), st.booleans())
    @QUICK
    def test_blocks_run_over_the_ends_of_rows(self, seed: int, rows: int, columns: int, nested: bool) -> None:
        generator = np.random.default_rng(seed)
        codes = generator.integers(0, 16, rows * columns)
        table = np.sort(generator.uniform(-1, 1, 16)).astype("<f4")
        even = np.append(codes, 0) if len(codes) % 2 else codes
        blocks = -(-len(codes) // 64)
        state: dict[str, object] = {"blocksize": 64, "shape": [rows, columns], "dtype": "float32", "quant_type": "nf4"}
        parts = {
            "weight": tensor((even[::2] << 4 | even[1::2]).astype("u1").reshape(-1, 1)),
            "weight.quant_map": tensor(table),
        }
        scales = generator.uniform(0.1, 3, blocks).astype("<f4")
        parts["weight.absmax"] = tensor(scales)
        if nested:
            nested_table = np.sort(generator.uniform(-1, 1, 256)).astype("<f4")
            maxima = generator.uniform(0.1, 3, -(-blocks // 2)).astype("<f4")
            absmax = generator.integers(0, 256, blocks).astype("u1")
            parts |= {"weight.absmax": tensor(absmax), "weight.nested_absmax": tensor(maxima)}
            parts |= {"weight.nested_quant_map": tensor(nested_table)}
            state |= {"nested_blocksize": 2, "nested_offset": 0.25}
            scales = nested_table[absmax] * maxima[np.arange(blocks) // 2] + np.float32(0.25)
        content = np.frombuffer(json.dumps(state).encode(), "u1")
        parts["weight.quant_state.bitsandbytes__nf4"] = tensor(content)
        formula = [float(table[code]) * float(scales[index // 64]) for index, code in enumerate(codes)]
        result = computed(parts, (rows, columns), quantization_config={"quant_method": "bitsandbytes"})
        np.testing.assert_array_equal(result, np.reshape(formula, (rows, columns)))


class TestMlx:
    @given(SEEDS, st.sampled_from([2, 3, 4, 5, 6, 8]))
    @QUICK
    def test_affine(self, seed: int, bits: int) -> None:
        rows, columns, group = 5, 128, 64
        generator, codes = drawn(seed, rows, columns, bits)
        scales, biases = (scales_of(generator, (rows, columns // group)) for _ in range(2))
        parts = {"weight": tensor(packed(codes, bits)), "scales": tensor(scales), "biases": tensor(biases)}
        places = np.arange(columns) // group
        formula = codes * scales.astype("f8")[:, places] + biases.astype("f8")[:, places]
        result = computed(parts, (rows, columns), quantization={"bits": bits, "group_size": group})
        np.testing.assert_array_equal(result, formula)


class TestFp8:
    @given(SEEDS, st.sampled_from([(24, 64), (25, 63), (1, 1)]))
    @QUICK
    def test_the_scale_of_a_block_multiplies(self, seed: int, shape: tuple[int, int]) -> None:
        ml_dtypes = pytest.importorskip("ml_dtypes")
        block = 8, 32
        generator = np.random.default_rng(seed)
        codes = generator.integers(0, 256, shape).astype("u1")
        codes[codes & 0x7F == 0x7F] = 0  # NaN
        sides = -(-shape[0] // block[0]), -(-shape[1] // block[1])
        scales = generator.uniform(0.01, 2, sides).astype("<f4")
        entries = {"quant_method": "fp8", "weight_block_size": list(block)}
        formula = np.empty(shape)
        for row in range(shape[0]):
            for column in range(shape[1]):
                value = float(codes[row, column : column + 1].view(ml_dtypes.float8_e4m3fn)[0])
                formula[row, column] = value * float(scales[row // block[0], column // block[1]])
        parts = {"weight": ("F8_E4M3", codes), "weight_scale_inv": tensor(scales)}
        result = computed(parts, shape, quantization_config=entries)
        np.testing.assert_array_equal(result, formula)


ROWS, WIDTH = 32, 64
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
EMBEDDING = {f"{EMBED}.weight": tensor(np.ones((ROWS, WIDTH), "<f4"))}


def nvfp4(seed: int = 0) -> dict[str, Tensor]:
    random = np.random.default_rng(seed)
    return {
        "weight": tensor(random.integers(0, 256, (ROWS, WIDTH // 2)).astype("|u1")),
        "weight_scale": ("F8_E4M3", np.full((ROWS, WIDTH // 16), 0x40, "|u1")),  # 2.0
        "weight_scale_2": tensor(np.array(0.25, "<f4")),
        "input_scale": tensor(np.array(1, "<f4")),
    }


def fp8(seed: int = 0) -> dict[str, Tensor]:
    codes = np.random.default_rng(seed).integers(0, 0x70, (ROWS, WIDTH)).astype("|u1")
    scales = {"weight_scale": tensor(np.array(0.5, "<f4")), "input_scale": tensor(np.array(1, "<f4"))}
    return {"weight": ("F8_E4M3", codes), **scales}


def described(
    folder: Path, algorithm: str, excluded: list[str], tensors: dict[str, Tensor], tied: bool = False
) -> Path:
    """A model with ModelOpt's own file beside the config."""
    save(folder, config(ROWS, WIDTH, tied), tensors)
    quantization = {"quant_algo": algorithm, "kv_cache_quant_algo": "FP8", "exclude_modules": excluded}
    text = json.dumps({"producer": {"name": "modelopt"}, "quantization": quantization})
    (folder / "hf_quant_config.json").write_text(text)
    return folder


def test_nvfp4_is_one_matrix(tmp_path: Path) -> None:
    folder = described(tmp_path, "NVFP4", [], EMBEDDING | under(HEAD, nvfp4()))
    head = matrix(tieconv.inspect(folder))
    assert (head.scheme, head.bits, head.block, head.shape) == ("ModelOpt NVFP4", 4, (1, 16), (ROWS, WIDTH))
    assert [part.role for part in head.parts] == ["codes", "scales", "global_scale", "input_scale"]
    codes = nvfp4()["weight"][1]
    expected = np.stack([E2M1[codes & 15], E2M1[codes >> 4]], -1).reshape(ROWS, WIDTH) * 2.0 * 0.25
    np.testing.assert_array_equal(values(folder), expected)


def test_fp8_is_not_one_of_compressed_tensors(tmp_path: Path) -> None:
    """The parts look alike, but no loader's answer for compressed-tensors applies."""
    inspection = tieconv.inspect(described(tmp_path, "FP8", [], under(EMBED, fp8()), tied=True))
    assert matrix(inspection, "embedding").scheme == "ModelOpt FP8"
    assert {str(consumer(*loader).predict(inspection).outcome) for loader in quantised_cells()} == {"unknown"}


@pytest.mark.parametrize(
    ("excluded", "verdict"),
    [
        (["lm_head"], Verdict.LEFT_OUT),
        (["model.layers.0*", "lm*"], Verdict.LEFT_OUT),
        (["model.layers.0*"], Verdict.QUANTISED),
    ],
)
def test_which_modules_are_left_out(excluded: list[str], verdict: Verdict, tmp_path: Path) -> None:
    inspection = tieconv.inspect(described(tmp_path, "NVFP4", excluded, EMBEDDING, tied=True))
    assert inspection.quantisation is not None
    assert (inspection.quantisation.method, inspection.quantisation.head.verdict) == ("modelopt", verdict)
    assert inspection.quantisation.path == "hf_quant_config.json.quantization"


def test_the_config_may_hold_it_too(tmp_path: Path) -> None:
    entries: dict[str, Any] = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
    stored = EMBEDDING | under(HEAD, nvfp4())
    inspection = tieconv.inspect(save(tmp_path, config(ROWS, WIDTH, quantization_config=entries), stored))
    assert matrix(inspection).config.verdict is Verdict.LEFT_OUT
    assert "QNT008" in [finding.rule for finding in inspection.findings]


@pytest.mark.parametrize(
    ("entries", "command"),
    [
        ({}, False),
        ({"modules_to_not_convert": ["lm_head"]}, False),
        ({"modules_to_not_convert": ["lm_head", "model.norm"]}, True),
    ],
)
def test_a_command_corrects_a_list_alone(entries: dict[str, Any], command: bool, tmp_path: Path) -> None:
    """Without a list, or with an empty one, FP8 leaves the head out by default. set-tie auto cannot correct that."""
    settings = {"quant_method": "fp8", "weight_block_size": [1, 64], **entries}
    parts = {"weight": ("F8_E4M3", np.ones((ROWS, WIDTH), "u1")), "weight_scale_inv": tensor(np.ones((ROWS, 1), "<f4"))}
    stored = EMBEDDING | under(HEAD, parts)
    model = save(tmp_path / "m", config(ROWS, WIDTH, quantization_config=settings), stored)
    (finding,) = (finding for finding in tieconv.inspect(model).findings if finding.rule == "QNT008")
    assert (finding.remedy is not None) is command
    if finding.remedy is not None:
        tieconv.plan_set_tie("auto", model).execute(tmp_path / "out")
        assert "QNT008" not in [finding.rule for finding in tieconv.inspect(tmp_path / "out").findings]


def test_equal_parts(tmp_path: Path) -> None:
    """Equality is proved part by part, and no verb edits ModelOpt's file."""
    folder = described(tmp_path / "m", "NVFP4", [], under(EMBED, nvfp4()) | under(HEAD, nvfp4()))
    inspection = tieconv.inspect(folder)
    assert inspection.quantised is not None and inspection.quantised.relation is not None
    assert inspection.quantised.relation.state is PairState.EQUAL
    with pytest.raises(tieconv.RefusedError) as caught:
        tieconv.plan_retie(folder)
    assert caught.value.code == "quantised.config"


def test_a_missing_scale(tmp_path: Path) -> None:
    parts = {leaf: part for leaf, part in nvfp4().items() if leaf != "weight_scale_2"}
    head = matrix(tieconv.inspect(described(tmp_path, "NVFP4", [], EMBEDDING | under(HEAD, parts))))
    assert [fault.kind for fault in head.faults] == [FaultKind.NO_SCALES]


@pytest.mark.parametrize("listed", ["lm_head", "model.llm.unembed"])
def test_the_head_is_listed_under_either_name(listed: str, tmp_path: Path) -> None:
    """Inkling2 stores its head under a name that the class does not have, and its config lists the class's name."""
    settings = {"quant_method": "fp8", "modules_to_not_convert": [listed]}
    config = {"architectures": ["Inkling2ForCausalLM"], "model_type": "inkling2_text", "quantization_config": settings}
    tables = {f"model.llm.{name}.weight": ("F32", np.ones((8, 4), "<f4")) for name in ("embed", "unembed")}
    inspection = tieconv.inspect(save(tmp_path, {**config, "tie_word_embeddings": False}, tables))
    assert inspection.quantisation is not None and inspection.quantisation.head.verdict is Verdict.LEFT_OUT
    assert inspection.config.why.startswith("Untied")
