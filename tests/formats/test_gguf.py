"""GGUF: read strictly, agreed with the gguf package, tied by llama.cpp's rule, and rewritten byte for byte."""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import tieconv as api
from fixtures.gguf_bytes import ARCHITECTURE as TIES, F32, Q4_0, Q4_K, Tensor, entry, gguf, info, text
from tests.lazy import gguf as gguf_package
from tests.refusals import failure_of
from tests.schemas import validate
from tieconv.checkpoint.inspection import State
from tieconv.errors import RefusedError, TieconvError, UnreadableError
from tieconv.formats import gguf as reader
from tieconv.formats.gguf import TYPES
from tieconv.loaders.llama_cpp import head_rule

ROOT = Path(__file__).parents[2]


def table(seed: int = 0) -> bytes:
    return np.random.default_rng(seed).standard_normal((8, 32), dtype="<f4").tobytes()


EMBED: Tensor = ("token_embd.weight", (8, 32), F32, table())
HEAD: Tensor = ("output.weight", (8, 32), F32, table(1))
BIAS: Tensor = ("output.bias", (8,), F32, bytes(32))


def write(folder: Path, data: bytes, name: str = "model.gguf") -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    path = folder / name
    path.write_bytes(data)
    return path


def code(path: Path) -> str:
    error = failure_of(api.inspect, TieconvError, path)
    assert error.message and "\n" not in error.message
    return error.code


def test_types_are_those_of_the_package() -> None:
    """Every ggml type that the package sizes is known under its name, with its block."""
    sizes = gguf_package.constants.GGML_QUANT_SIZES
    assert {kind.value: (kind.name, *size) for kind, size in sizes.items()} == TYPES


def test_versions_are_those_of_the_package() -> None:
    from gguf.gguf_reader import READER_SUPPORTED_VERSIONS

    assert set(reader.VERSIONS) == set(READER_SUPPORTED_VERSIONS)


def test_agrees_with_the_package(tmp_path: Path) -> None:
    """A file of the package's own writer: names, shapes, types and places are what its reader finds."""
    path = tmp_path / "model.gguf"
    writer = gguf_package.GGUFWriter(path, "qwen3")
    writer.add_array("tokenizer.ggml.tokens", ["a", "bb", ""] * 100)
    writer.add_array("tokenizer.ggml.scores", [0.5] * 300)
    writer.add_string("tokenizer.chat_template", "x" * 10_000)
    writer.add_bool("flag", True)
    writer.add_float64("real", 1.5)
    writer.add_tensor("token_embd.weight", np.ones((8, 4), "<f4"))
    kind = gguf_package.GGMLQuantizationType.Q4_K
    writer.add_tensor("output.weight", np.zeros((8, 144), "u1"), raw_dtype=kind)
    writer.add_tensor("blk.0.attn_norm.weight", np.zeros(5, "<f2"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    checkpoint = api.inspect(path).checkpoint
    expected = {
        tensor.name: (tensor.tensor_type.name, tuple(map(int, reversed(tensor.shape))), int(tensor.data_offset))
        for tensor in gguf_package.GGUFReader(path).tensors
    }
    stored = checkpoint.tensors.items()
    assert {name: (record.dtype, record.shape, record.range.start) for name, record in stored} == expected
    assert checkpoint.files[0].metadata is not None
    assert checkpoint.files[0].metadata["general.architecture"] == "qwen3"
    assert "tokenizer.chat_template" not in checkpoint.files[0].metadata


def test_handmade_file_is_read_by_the_package(tmp_path: Path) -> None:
    """The files that these tests break are whole ones to begin with."""
    path = write(tmp_path, gguf([EMBED, HEAD]))
    assert [tensor.name for tensor in gguf_package.GGUFReader(path).tensors] == [EMBED[0], HEAD[0]]


# --- what ties -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tensors", "tied", "state", "rules"),
    [
        ([EMBED], True, State.ABSENT, []),
        ([EMBED, HEAD], False, State.DISTINCT, []),
        ([EMBED, (HEAD[0], *EMBED[1:])], False, State.IDENTICAL, ["TIE004"]),
    ],
    ids=["absent", "own", "equal"],
)
def test_tied_exactly_where_the_head_is_absent(
    tensors: list[Tensor], tied: bool, state: State, rules: list[str], tmp_path: Path
) -> None:
    """llama.cpp reads no flag; the file is consistent either way, and an equal copy is a note."""
    inspection = api.inspect(write(tmp_path, gguf(tensors)))
    tie = inspection.word_tie
    assert tie is not None
    assert (tie.declared, tie.consistent, tie.members[1].state) == (tied, True, state)
    assert inspection.config.effective is tied
    assert inspection.config.model_type == TIES
    assert [finding.rule for finding in inspection.findings] == rules
    validate(inspection.to_dict(), "inspect")


def test_quantised_tables_are_compared_by_their_bytes(tmp_path: Path) -> None:
    """Block types keep their names, rows come first, and equality is that of bytes."""
    data = bytes(range(18)) * 8
    table = (EMBED[0], (8, 32), Q4_0, data)
    same = api.inspect(write(tmp_path, gguf([table, (HEAD[0], *table[1:])])))
    assert same.head.input_embedding is not None
    assert (same.head.input_embedding.dtype, same.head.input_embedding.shape) == ("Q4_0", (8, 32))
    assert same.word_tie is not None and same.word_tie.members[1].state is State.IDENTICAL
    differ = api.inspect(write(tmp_path, gguf([table, (HEAD[0], (8, 32), Q4_0, bytes([1, *data[1:]]))])))
    assert differ.word_tie is not None and differ.word_tie.members[1].state is State.DISTINCT
    mixed = api.inspect(write(tmp_path, gguf([(EMBED[0], (8, 256), Q4_K, bytes(8 * 144)), HEAD])))
    assert mixed.word_tie is not None and mixed.word_tie.members[1].state is State.DISTINCT


def test_bias_and_projector(tmp_path: Path) -> None:
    """output.bias is the head bias; a file without token embedding ties nothing."""
    biased = api.inspect(write(tmp_path, gguf([EMBED, HEAD, BIAS]))).head.output_bias
    assert biased is not None and (biased.name, str(biased.state)) == ("output.bias", "zero")
    projector = api.inspect(write(tmp_path, gguf([("mm.0.weight", (8, 32), F32, table())]), "mmproj-model.gguf"))
    assert (projector.ties, projector.findings) == ((), ())


# --- files -----------------------------------------------------------------------------------------------


def split(folder: Path, total: int = 2) -> Path:
    first = write(folder, gguf([EMBED], {"general.architecture": "llama"}), f"m-00001-of-0000{total}.gguf")
    write(folder, gguf([HEAD], {"split.no": 1}), f"m-00002-of-0000{total}.gguf")
    return first


def test_parts_are_read_together(tmp_path: Path) -> None:
    """By any part, or by the directory."""
    first = split(tmp_path / "m")
    for path in (first, first.with_name("m-00002-of-00002.gguf"), first.parent):
        inspection = api.inspect(path)
        assert set(inspection.checkpoint.tensors) == {EMBED[0], HEAD[0]}
        assert inspection.config.effective is False


def test_a_first_part_without_tensors(tmp_path: Path) -> None:
    """`llama-gguf-split --no-tensor-first-split` writes one. The metadata is in it, also the types and lengths."""
    entries = {"general.architecture": TIES, "count": 3, "scale": 0.5, "on": True, "names": ["a", "b"]}
    first = write(tmp_path, gguf([], entries), "m-00001-of-00002.gguf")
    write(tmp_path, gguf([EMBED], {"split.no": 1}), "m-00002-of-00002.gguf")
    result = api.inspect(first)
    assert (result.config.verdict, result.findings) == ("tied", ())
    header = result.checkpoint.files[0].gguf
    assert header is not None and header.lengths == {"names": 2}
    assert list(header.types.values()) == ["str", "u32", "f32", "bool", "array"]


def test_missing_part_and_repeated_tensor(tmp_path: Path) -> None:
    assert code(split(tmp_path / "three", total=3)) == "gguf.absent-part"
    folder = tmp_path / "twice"
    write(folder, gguf([EMBED]), "m-00001-of-00002.gguf")
    write(folder, gguf([EMBED]), "m-00002-of-00002.gguf")
    assert [finding.rule for finding in api.inspect(folder).findings] == ["IDX003"]


def test_directory_of_several_models_is_not_guessed(tmp_path: Path) -> None:
    """A projector beside a model is no second model; another quantisation of it is."""
    folder = tmp_path / "m"
    write(folder, gguf([EMBED]), "model-Q8_0.gguf")
    write(folder, gguf([BIAS]), "mmproj-model-f16.gguf")
    assert api.inspect(folder).checkpoint.files[0].name == "model-Q8_0.gguf"
    write(folder, gguf([EMBED]), "model-Q4_0.gguf")
    assert code(folder) == "layout.ambiguous"


@pytest.mark.parametrize("plan", [api.plan_dedup, api.plan_bias])
def test_other_verbs_refuse_it(plan, tmp_path: Path) -> None:
    """A refusal with the next step."""
    options = {"action": "zero"} if plan is api.plan_bias else {}
    error = failure_of(plan, RefusedError, path=write(tmp_path, gguf([EMBED])), **options)
    assert error.code == "format.read-only" and "convert" in error.hint


# --- malformed files -------------------------------------------------------------------------------------

WHOLE = gguf([EMBED, HEAD])


def raw(tensors: list[bytes], entries: list[bytes], data: bytes = b"", counts: tuple[int, int] | None = None) -> bytes:
    """A file from the bytes of its entries, whatever they say."""
    number, keys = counts or (len(tensors), len(entries))
    head = b"GGUF" + struct.pack("<IQQ", 3, number, keys) + b"".join(entries) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + data


def nested(levels: int) -> bytes:
    """An entry whose number is in arrays of one array each."""
    return text("k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * levels + struct.pack("<IQI", 4, 1, 7)


ARCHITECTURE = entry("general.architecture", "llama")
HOSTILE = {
    "version 1": (b"GGUF" + struct.pack("<I", 1) + WHOLE[8:], "gguf.version"),
    "version 4": (b"GGUF" + struct.pack("<I", 4) + WHOLE[8:], "gguf.version"),
    "big-endian": (b"GGUF" + struct.pack(">I", 3) + WHOLE[8:], "gguf.big-endian"),
    "older kind": (b"tjgg" + WHOLE[4:], "gguf.magic"),
    "pointer": (b"version https://git-lfs.github.com/spec/v1\n", "git.lfs-pointer"),
    "empty": (b"", "gguf.too-small"),
    "header cut off": (WHOLE[:60], "gguf.truncated-header"),
    "data cut off": (WHOLE[:-40], "gguf.truncated"),
    "tensor count": (raw([], [ARCHITECTURE], counts=(1 << 60, 1)), "gguf.count"),
    "key count": (raw([], [ARCHITECTURE], counts=(0, 1 << 60)), "gguf.count"),
    "name length": (raw([struct.pack("<Q", 1 << 60) + bytes(99)], [ARCHITECTURE]), "gguf.name-length"),
    "string length": (raw([], [text("k") + struct.pack("<IQ", 8, 1 << 60)]), "gguf.truncated-header"),
    "array length": (raw([], [text("k") + struct.pack("<IIQ", 9, 8, 1 << 60)]), "gguf.count"),
    "number array length": (raw([], [text("k") + struct.pack("<IIQ", 9, 4, 1 << 60)]), "gguf.truncated-header"),
    "nested arrays": (raw([], [nested(5)]), "gguf.value-type"),
    "value type": (raw([], [text("k") + struct.pack("<II", 99, 0)]), "gguf.value-type"),
    "repeated key": (raw([], [ARCHITECTURE, ARCHITECTURE]), "gguf.repeated-key"),
    "repeated tensor": (raw([info(EMBED, 0), info(EMBED, 1024)], [ARCHITECTURE], bytes(2048)), "gguf.repeated-tensor"),
    "overlap": (raw([info(EMBED, 0), info(HEAD, 512)], [ARCHITECTURE], bytes(2048)), "gguf.overlap"),
    "offset": (raw([info(EMBED, 7)], [ARCHITECTURE], bytes(2048)), "gguf.offset"),
    "far offset": (raw([info(EMBED, 1 << 40)], [ARCHITECTURE]), "gguf.truncated"),
    "overflow": (raw([info(("t", (1 << 40, 1 << 40), F32, b""), 0)], [ARCHITECTURE]), "gguf.overflow"),
    "just an overflow": (raw([info(("t", (1 << 61,), F32, b""), 0)], [ARCHITECTURE]), "gguf.overflow"),
    "almost an overflow": (raw([info(("t", (1 << 60,), F32, b""), 0)], [ARCHITECTURE]), "gguf.truncated"),
    "offset overflow": (raw([info(EMBED, 1 << 63)], [ARCHITECTURE]), "gguf.overflow"),
    "rank": (raw([info(("t", (1,) * 9, F32, b""), 0)], [ARCHITECTURE], bytes(64)), "gguf.rank"),
    "unknown type": (raw([info(("t", (1,), 5, b""), 0)], [ARCHITECTURE], bytes(64)), "gguf.type"),
    "half a block": (raw([info(("t", (8, 33), Q4_0, b""), 0)], [ARCHITECTURE], bytes(999)), "gguf.block"),
    "alignment": (raw([info(EMBED, 0)], [entry("general.alignment", 12)], bytes(1024)), "gguf.alignment"),
    "no UTF-8": (raw([struct.pack("<Q", 1) + b"\xff" + bytes(40)], [ARCHITECTURE]), "gguf.not-utf8"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_malformed(case: str, tmp_path: Path) -> None:
    """One sentence and a stable code, whatever a number in the file claims."""
    data, expected = HOSTILE[case]
    assert code(write(tmp_path, data)) == expected


def test_four_arrays_in_an_array_are_read(tmp_path: Path) -> None:
    api.inspect(write(tmp_path, raw([info(EMBED, 0)], [ARCHITECTURE, nested(4)], bytes(1024))))


def test_unknown_version_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="GGUF version 4"):
        api.inspect(write(tmp_path, HOSTILE["version 4"][0]))


def test_every_cut_is_refused(tmp_path: Path) -> None:
    """No prefix of a file passes for the file, and none is an unexpected failure."""
    for length in range(0, len(WHOLE) - 1, 7):
        assert code(write(tmp_path, WHOLE[:length])).startswith("gguf.")


def test_header_alone_is_read(tmp_path: Path) -> None:
    """A file of a terabyte, all of it a hole, is inspected from its first bytes."""
    path = write(tmp_path, gguf([("token_embd.weight", (1 << 20, 1 << 18), F32, b"")]))
    os.truncate(path, (1 << 40) + 4096)
    assert api.inspect(path).bytes_stored == 1 << 40


ORACLES = Path(__file__).parents[1] / "oracles"


COPY: Tensor = (HEAD[0], *EMBED[1:])
NORM: Tensor = ("output_norm.weight", (3,), F32, table(2)[:12])


def test_retie_and_untie_are_inverse(tmp_path: Path) -> None:
    """The tied file is, byte for byte, the one that was never untied; a type of blocks is copied as it is."""
    for number, (kind, data) in enumerate(((F32, table()), (Q4_0, bytes(range(18)) * 8))):
        stored = ((8, 32), kind, data)
        whole = gguf([(EMBED[0], *stored), (HEAD[0], *stored), NORM])
        tied = gguf([(EMBED[0], *stored), NORM])
        folder = tmp_path / str(number)
        outcome = api.plan_retie(write(folder, whole)).execute(folder / "tied.gguf")
        assert outcome.verified and (folder / "tied.gguf").read_bytes() == tied
        api.plan_untie(folder / "tied.gguf").execute(folder / "untied.gguf")
        assert (folder / "untied.gguf").read_bytes() == whole


def test_an_answer_that_is_already_there(tmp_path: Path) -> None:
    """Nothing changes, and nothing is refused."""
    assert api.plan_retie(write(tmp_path, gguf([EMBED]))).plan.changes_nothing
    assert api.plan_untie(write(tmp_path, gguf([EMBED, COPY]))).plan.changes_nothing


def test_a_directory_and_in_place(tmp_path: Path) -> None:
    """The other files come along; in place, the file has its new content."""
    path = write(tmp_path / "m", gguf([EMBED, COPY]))
    (tmp_path / "m" / "README.md").write_text("card")
    api.plan_retie(tmp_path / "m").execute(tmp_path / "out")
    assert (tmp_path / "out" / "README.md").read_text() == "card"
    assert (tmp_path / "out" / "model.gguf").read_bytes() == gguf([EMBED])
    api.plan_retie(path).execute(in_place=True)
    assert path.read_bytes() == gguf([EMBED])


def test_printed_commands_write_a_file_of_the_format(tmp_path: Path) -> None:
    """A file is written to OUT.gguf, because tieconv refuses another suffix; a directory to OUT."""
    path = write(tmp_path / "m", gguf([EMBED, COPY]))
    for source, out in ((path, "OUT.gguf"), (tmp_path / "m", "OUT")):
        (finding,) = api.inspect(source).findings
        assert finding.remedy is not None
        assert finding.remedy.command == f"tieconv retie {source} -o {out}"


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
    assert [tensor.name for tensor in after.tensors] == [name for name, *_ in tensors if name != HEAD[0]]
    stored = {tensor.name: tensor for tensor in before.tensors}
    for tensor in after.tensors:
        assert tensor.data.tobytes() == stored[tensor.name].data.tobytes()
        assert (tensor.data_offset - after.data_offset) % alignment == 0


def test_refusals(tmp_path: Path) -> None:
    """Other values, another type of the same values, a split file, an option, an architecture: nothing is written."""
    differing = write(tmp_path, gguf([EMBED, HEAD]), "other.gguf")
    assert failure_of(api.plan_retie, RefusedError, differing).code == "retie.not-equal"
    quantised = (EMBED[0], (8, 32), Q4_0, bytes(144))
    types = write(tmp_path, gguf([quantised, (HEAD[0], (8, 32), F32, bytes(1024))]), "t.gguf")
    assert failure_of(api.plan_retie, RefusedError, types).code == "retie.not-equal"
    equal = write(tmp_path, gguf([EMBED, COPY]), "equal.gguf")
    for options in ({"survivor": "embed", "force": True}, {"bias": "zero"}):
        assert failure_of(api.plan_retie, RefusedError, equal, **options).code == "gguf.option", options
    assert failure_of(api.plan_retie, RefusedError, equal, fold_norm=True).code == "retie.fold"
    assert failure_of(api.plan_untie, RefusedError, equal, keep_flag=True).code == "gguf.option"
    write(tmp_path / "split", gguf([EMBED]), "m-00001-of-00002.gguf")
    write(tmp_path / "split", gguf([COPY]), "m-00002-of-00002.gguf")
    assert failure_of(api.plan_retie, RefusedError, tmp_path / "split").code == "gguf.split"


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
            assert failure_of(plan, RefusedError, path).code == "gguf.architecture"
        else:
            assert not plan(path).plan.changes_nothing


@pytest.mark.parametrize(
    ("architecture", "tensors", "outcome", "words"),
    [
        (TIES, [EMBED], "tied", "token_embd.weight for both"),
        (TIES, [EMBED, COPY], "untied", "two parameters"),
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
    for name in (EMBED[0], HEAD[0]):
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
