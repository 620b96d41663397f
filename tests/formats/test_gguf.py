"""GGUF: read strictly from the header, agreed with the gguf package, tied by llama.cpp's rule."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest

import tieconv as api
from fixtures.gguf_bytes import F32, Q4_0, Q4_K, Tensor, entry, gguf, info, text
from tests.schemas import validate
from tieconv.checkpoint.inspection import State
from tieconv.errors import RefusedError, TieconvError, UnreadableError
from tieconv.formats import gguf as reader
from tieconv.formats.gguf import TYPES

gguf_package = pytest.importorskip("gguf")
ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "tieconv/reporters/schemas/inspect.schema.json").read_text())


def table(seed: int = 0) -> bytes:
    return np.random.default_rng(seed).standard_normal((8, 32), dtype="<f4").tobytes()


EMBED: Tensor = ("token_embd.weight", (8, 32), F32, table())
HEAD: Tensor = ("output.weight", (8, 32), F32, table(1))
BIAS: Tensor = ("output.bias", (8,), F32, bytes(32))


def write(folder: Path, data: bytes, name: str = "model.gguf") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_bytes(data)
    return path


def code(path: Path) -> str:
    with pytest.raises(TieconvError) as caught:
        api.inspect(path)
    assert caught.value.message and "\n" not in caught.value.message
    return caught.value.code


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
    assert {
        name: (record.dtype, record.shape, record.range.start) for name, record in checkpoint.tensors.items()
    } == expected
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
    assert inspection.config.model_type == "llama"
    assert [finding.rule for finding in inspection.findings] == rules
    validate(inspection.to_dict(), SCHEMA)


def test_quantised_tables_are_compared_by_their_bytes(tmp_path: Path) -> None:
    """Block types keep their names, rows come first, and equality is that of bytes."""
    data = bytes(range(18)) * 8
    same = api.inspect(write(tmp_path, gguf([(EMBED[0], (8, 32), Q4_0, data), (HEAD[0], (8, 32), Q4_0, data)])))
    assert same.head.input_embedding is not None
    assert (same.head.input_embedding.dtype, same.head.input_embedding.shape) == ("Q4_0", (8, 32))
    assert same.word_tie is not None and same.word_tie.members[1].state is State.IDENTICAL
    changed_data = bytes([1, *data[1:]])
    differ = api.inspect(
        write(tmp_path, gguf([(EMBED[0], (8, 32), Q4_0, data), (HEAD[0], (8, 32), Q4_0, changed_data)]))
    )
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
    with pytest.raises(RefusedError) as caught:
        plan(path=write(tmp_path, gguf([EMBED])), **options)
    assert caught.value.code == "format.read-only" and "convert" in caught.value.hint


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
