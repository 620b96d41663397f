"""The states of a quantised pair in one file, GGUF or ONNX, and codes of 3 bits that fit two packings.

Each state has its findings, what each verb does, and the loader's answer. The numbers are those of the list of states
that the rules were written from; test_quantised_states.py has the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tieconv
import tieconv as api
from fixtures.gguf_bytes import ARCHITECTURE
from tests.inspection.quantised.stored_models import compressed, config, save, tables, tensor, under
from tests.inspection.quantised.test_formulas import packed
from tieconv.checkpoint.quantised_matrix import PairState

ROWS, WIDTH = 64, 64
VALUES = np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype("f4")
EMBEDDING, HEAD = "token_embd.weight", "output.weight"


@dataclass(frozen=True)
class State:
    """The types of embedding and head, what `inspect` says, the result of retie and untie, and llama.cpp's answer."""

    types: dict[str, str]
    first_line: str
    rules: str
    verbs: tuple[str, str]
    loads: str


STATES = {
    "22 one table": State(
        {EMBEDDING: "Q4_0"}, "The head computes with its type, Q4_0.", "", ("=", "Q4_0 Q4_0"), "tied"
    ),
    "23 an equal head": State(
        {EMBEDDING: "Q4_0", HEAD: "Q4_0"}, "Untied: llama.cpp uses output.weight as the head.", "TIE004", ("Q4_0", "="),
        "untied",
    ),
    "24 a finer head of the same matrix": State(
        {EMBEDDING: "Q4_0", HEAD: "Q8_0"}, "Untied: llama.cpp uses output.weight as the head.", "",
        ("retie.not-equal", "="), "untied",
    ),
}  # fmt: skip


def write(path: Path, types: dict[str, str]) -> Path:
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(str(path), ARCHITECTURE)
    writer.add_embedding_length(WIDTH)
    for name, kind in types.items():
        of_kind = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(name, gguf.quants.quantize(VALUES, of_kind), raw_dtype=of_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def done(verb: Callable[..., Any], path: Path, out: Path) -> str:
    """Return the types of the written tables, ``=`` for no change, or the code of the refusal."""
    gguf = pytest.importorskip("gguf")
    try:
        plan = verb(path)
    except tieconv.RefusedError as error:
        return error.code
    if plan.plan.changes_nothing:
        return "="
    plan.execute(out)
    return " ".join(each.tensor_type.name for each in gguf.GGUFReader(out).tensors)


@pytest.mark.parametrize("name", STATES)
def test_a_gguf_file(name: str, tmp_path: Path) -> None:
    """A tied file of 4 bits, an equal copy that retie drops, and a finer head that it refuses to drop."""
    state = STATES[name]
    path = write(tmp_path / "model.gguf", state.types)
    inspection = tieconv.inspect(path, consumers="llama.cpp")
    assert inspection.config.effect.endswith(state.first_line)
    assert [finding.rule for finding in inspection.findings] == state.rules.split()
    verbs = (tieconv.plan_retie, tieconv.plan_untie)
    results = tuple(done(verb, path, tmp_path / f"{number}.gguf") for number, verb in enumerate(verbs))
    assert results == state.verbs
    assert [str(each.outcome) for each in inspection.consumers] == [state.loads]


def test_an_onnx_graph(tmp_path: Path) -> None:
    """25: dedup makes two equal matrices one, with equal bits."""
    pytest.importorskip("onnx")
    from tests.onnx.graphs import outputs, same_bits
    from tests.onnx.share.test_quantised_pairs import Pair, V, build

    path = build(tmp_path / "model.onnx", Pair())
    api.plan_graph_dedup(path).execute(tmp_path / "out.onnx")
    assert same_bits(*(outputs(each, (2, 7), V) for each in (path, tmp_path / "out.onnx")))
    assert (tmp_path / "out.onnx").stat().st_size < 0.7 * path.stat().st_size
    assert not api.plan_graph_dedup(tmp_path / "out.onnx").plan.matrices


def test_codes_of_three_bits_that_fit_two_packings(tmp_path: Path) -> None:
    """26: a row of 30 codes takes three words in both packings, so a float embedding is not compared with the codes."""
    rows, width = 32, 30
    codes = np.random.default_rng(0).integers(0, 8, (rows, width))
    assert packed(codes, 3).shape == packed(codes, 3, gaps=True).shape
    scales = np.full((rows, 1), 0.5, "<f4")
    entries = compressed("re:.*lm_head$")
    weights = entries["quantization_config"]["config_groups"]["g"]["weights"]
    weights |= {"num_bits": 3, "strategy": "channel", "group_size": None}
    parts = {
        "weight_packed": tensor(packed(codes, 3).view("<i4")),
        "weight_scale": tensor(scales),
        "weight_shape": tensor(np.array([rows, width], "<i8")),
    }
    embedding = {"weight": tensor(((codes - 4) * scales).astype("<f4"))}
    tensors = {"model.norm.weight": tensor(np.ones(width, "<f4"))}
    tensors |= under("model.embed_tokens", embedding) | under("lm_head", parts)
    folder = save(tmp_path / "m", config(rows, width, True, **entries), tensors)
    relation = tables(tieconv.inspect(folder)).relation
    assert relation is not None and relation.state is PairState.UNREAD
    assert "fit two packings" in relation.reason
    with pytest.raises(tieconv.RefusedError) as caught:
        tieconv.plan_retie(folder)
    assert caught.value.code == "tie.quantised"
