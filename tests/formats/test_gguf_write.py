"""GGUF: retie drops an equal output.weight, untie adds one, and every other byte of the model stays."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tieconv as api
from fixtures.gguf_bytes import F32, Q4_0, Tensor, gguf
from tieconv.errors import RefusedError
from tieconv.formats.gguf import TYPES
from tieconv.loaders.llama_cpp import head_rule

gguf_package = pytest.importorskip("gguf")
ORACLES = Path(__file__).parents[1] / "oracles"
EMBEDDING, HEAD = "token_embd.weight", "output.weight"


def values(seed: int, rows: int = 8) -> bytes:
    return np.random.default_rng(seed).standard_normal((rows, 32), dtype="<f4").tobytes()


EMBED: Tensor = (EMBEDDING, (8, 32), F32, values(0))
COPY: Tensor = (HEAD, *EMBED[1:])
NORM: Tensor = ("output_norm.weight", (3,), F32, values(2)[:12])


def write(folder: Path, data: bytes, name: str = "model.gguf") -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    (folder / name).write_bytes(data)
    return folder / name


def refusal(plan: Any, *arguments: Any, **options: Any) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        plan(*arguments, **options)
    return caught.value


def test_retie_and_untie_are_inverse(tmp_path: Path) -> None:
    """The tied file is, byte for byte, the one that was never untied; a type of blocks is copied as it is."""
    for number, (kind, data) in enumerate(((F32, values(0)), (Q4_0, bytes(range(18)) * 8))):
        table = ((8, 32), kind, data)
        whole = gguf([(EMBEDDING, *table), (HEAD, *table), NORM])
        tied = gguf([(EMBEDDING, *table), NORM])
        folder = tmp_path / str(number)
        outcome = api.plan_retie(write(folder, whole)).execute(folder / "tied.gguf")
        assert outcome.verified and (folder / "tied.gguf").read_bytes() == tied
        api.plan_untie(folder / "tied.gguf").execute(folder / "untied.gguf")
        assert (folder / "untied.gguf").read_bytes() == whole


def test_an_answer_that_is_already_there(tmp_path: Path) -> None:
    """Nothing changes, and nothing is refused."""
    tied, untied = write(tmp_path, gguf([EMBED])), write(tmp_path, gguf([EMBED, COPY]), "untied.gguf")
    assert api.plan_retie(tied).plan.changes_nothing
    assert api.plan_untie(untied).plan.changes_nothing


def test_a_directory_and_in_place(tmp_path: Path) -> None:
    """The other files come along; in place, the file has its new content."""
    path = write(tmp_path / "m", gguf([EMBED, COPY]))
    (tmp_path / "m" / "README.md").write_text("card")
    api.plan_retie(tmp_path / "m").execute(tmp_path / "out")
    assert (tmp_path / "out" / "README.md").read_text() == "card"
    assert (tmp_path / "out" / "model.gguf").read_bytes() == gguf([EMBED])
    api.plan_retie(path).execute(path, in_place=True)
    assert path.read_bytes() == gguf([EMBED])


SCALARS = st.one_of(st.integers(0, 2**32 - 1), st.text(max_size=20), st.lists(st.text(max_size=9), max_size=5))
KEYS = st.dictionaries(st.text("abc.é", min_size=1, max_size=12).filter(lambda key: "alignment" not in key), SCALARS)
SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)


@given(
    entries=KEYS,
    shapes=st.lists(SHAPES, max_size=6),
    position=st.integers(0, 6),
    alignment=st.sampled_from([8, 32, 64]),
)
def test_every_other_byte_stays(
    entries: dict[str, Any], shapes: list[tuple[int, ...]], position: int, alignment: int, tmp_path_factory: Any
) -> None:
    """Any metadata, alignment and order of tensors: the package reads the same entries, names and values."""
    random = np.random.default_rng(position)
    tensors: list[Tensor] = [
        (f"t.{number}", shape, F32, random.standard_normal(shape, dtype="<f4").tobytes())
        for number, shape in enumerate(shapes)
    ]
    tensors.insert(min(position, len(tensors)), EMBED)
    tensors.append(COPY)
    metadata = {"general.architecture": "llama", "general.alignment": alignment, **entries}
    folder = tmp_path_factory.mktemp("gguf")
    path = write(folder, gguf(tensors, metadata, alignment=alignment))
    api.plan_retie(path).execute(folder / "out.gguf")
    before, after = gguf_package.GGUFReader(path), gguf_package.GGUFReader(folder / "out.gguf")
    assert [field.name for field in before.fields.values()][3:] == [field.name for field in after.fields.values()][3:]
    for name, field in before.fields.items():
        if not name.startswith("GGUF.tensor_count"):
            assert [part.tobytes() for part in field.parts] == [part.tobytes() for part in after.fields[name].parts]
    assert [tensor.name for tensor in after.tensors] == [name for name, *_ in tensors if name != HEAD]
    stored = {tensor.name: tensor for tensor in before.tensors}
    for tensor in after.tensors:
        assert tensor.data.tobytes() == stored[tensor.name].data.tobytes()
        assert (tensor.data_offset - after.data_offset) % alignment == 0


def test_refusals(tmp_path: Path) -> None:
    """Other values, another type of the same values, a split file, an option, an architecture: nothing is written."""
    differing = write(tmp_path, gguf([EMBED, (HEAD, (8, 32), F32, values(1))]), "other.gguf")
    assert refusal(api.plan_retie, differing).code == "retie.not-equal"
    types = write(tmp_path, gguf([(EMBEDDING, (8, 32), Q4_0, bytes(144)), (HEAD, (8, 32), F32, bytes(1024))]), "t.gguf")
    assert refusal(api.plan_retie, types).code == "retie.not-equal"
    equal = write(tmp_path, gguf([EMBED, COPY]), "equal.gguf")
    for options in ({"survivor": "embed", "force": True}, {"bias": "zero"}):
        assert refusal(api.plan_retie, equal, **options).code == "gguf.option", options
    assert refusal(api.plan_retie, equal, fold_norm=True).code == "retie.fold"
    assert refusal(api.plan_untie, equal, keep_flag=True).code == "gguf.option"
    write(tmp_path / "split", gguf([EMBED]), "m-00001-of-00002.gguf")
    write(tmp_path / "split", gguf([COPY]), "m-00002-of-00002.gguf")
    assert refusal(api.plan_retie, tmp_path / "split").code == "gguf.split"


@pytest.mark.parametrize(
    ("architecture", "rule", "retie", "untie"),
    [("llama", "ties", "", ""), ("gptneox", "needs", "refused", ""), ("gemma", "embedding", "", "refused"),
     ("a new one", None, "refused", "refused")],
)  # fmt: skip
def test_the_architecture_decides(architecture: str, rule: str | None, retie: str, untie: str, tmp_path: Path) -> None:
    """llama.cpp needs, ignores or takes the tensor; what is not known is not written."""
    assert head_rule(architecture) == rule
    metadata = {"general.architecture": architecture}
    untied, tied = write(tmp_path, gguf([EMBED, COPY], metadata), "both.gguf"), write(tmp_path, gguf([EMBED], metadata))
    for plan, path, refused in ((api.plan_retie, untied, retie), (api.plan_untie, tied, untie)):
        if refused:
            assert refusal(plan, path).code == "gguf.architecture"
        else:
            assert not plan(path).plan.changes_nothing


@pytest.mark.parametrize(
    ("architecture", "tensors", "outcome", "words"),
    [
        ("llama", [EMBED], "tied", "token_embd.weight for both"),
        ("llama", [EMBED, COPY], "untied", "two parameters"),
        ("gptneox", [EMBED], "error", "needs output.weight"),
        ("gemma", [EMBED, COPY], "error", "does not use output.weight"),
        ("a new one", [EMBED], "unknown", "has not read what llama.cpp asks"),
    ],
)
def test_predictions(architecture: str, tensors: list[Tensor], outcome: str, words: str, tmp_path: Path) -> None:
    """What libllama does with the file, by the table of its source."""
    path = write(tmp_path, gguf(tensors, {"general.architecture": architecture}))
    (prediction,) = api.inspect(path, consumers="llama.cpp").consumers
    assert str(prediction.outcome) == outcome and words in prediction.detail


LOGITS = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from run_llama_cpp import Library
library = Library()
tables = [library.logits(Path(path), [3, 9, 27]) for path in sys.argv[2:]]
print(all((table == tables[0]).all() for table in tables))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", [F32, Q4_0])
def test_llama_cpp_computes_the_same_logits(kind: int, tmp_path: Path) -> None:
    """The file with two equal tables, the tied one and the one untied again, in libllama."""
    python = os.environ.get("TIECONV_LLAMA_CPP", "")
    if not python:
        pytest.skip("TIECONV_LLAMA_CPP is not set: the Python of `python -m tests.oracles environment llama.cpp`")
    path = tmp_path / "model.gguf"
    model(path, kind)
    api.plan_retie(path).execute(tmp_path / "tied.gguf")
    api.plan_untie(tmp_path / "tied.gguf").execute(tmp_path / "untied.gguf")
    paths = [str(tmp_path / name) for name in ("model.gguf", "tied.gguf", "untied.gguf")]
    done = subprocess.run([python, "-c", LOGITS, str(ORACLES), *paths], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"]


def model(path: Path, kind: int, rows: int = 320, width: int = 64, inner: int = 96, layers: int = 2) -> None:
    """A Llama whose output.weight repeats its embedding."""
    random = np.random.default_rng(0)
    writer = gguf_package.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(rows)
    writer.add_tokenizer_model("no_vocab")
    table = (random.standard_normal((rows, width)) * 0.1).astype("f4")
    of_kind = gguf_package.GGMLQuantizationType[TYPES[kind][0]]
    for name in (EMBEDDING, HEAD):
        writer.add_tensor(name, gguf_package.quants.quantize(table, of_kind), raw_dtype=of_kind)
    shapes = {"output_norm": (width,)}
    for layer in range(layers):
        block = {
            "attn_norm": (width,), "ffn_norm": (width,), "attn_q": (width, width), "attn_k": (width // 2, width),
            "attn_v": (width // 2, width), "attn_output": (width, width), "ffn_gate": (inner, width),
            "ffn_up": (inner, width), "ffn_down": (width, inner),
        }  # fmt: skip
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in block.items()}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", (random.standard_normal(shape) * 0.1).astype("f4"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
