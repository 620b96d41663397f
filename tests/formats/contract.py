"""What every format must do. The test of a format inherits `FormatContract` and says how to store a model."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tieconv.checkpoint.model_files import Checkpoint, FileState, Listing
from tieconv.checkpoint.weight_file import TensorRecord
from tieconv.errors import UnreadableError
from tieconv.formats.directory import Format
from tieconv.sources.local import FileSet, locate, open_files

CONFIG = b'{"model_type": "llama"}\n'
HEADER_SLACK = 4096
"""Bytes that a reader may take beside the headers themselves, to tell what kind of file it has."""


@dataclass(frozen=True)
class Stored:
    """A tensor as the test stores it and as the format must give it back."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True)
class Malformed:
    """One way to spoil a model directory, and the code of the refusal."""

    name: str
    spoil: Callable[[Path], object]
    code: str


class Counting:
    """`Files` that note what was read. It passes on everything else."""

    def __init__(self, files: FileSet) -> None:
        self._files = files
        self.reads: list[tuple[str, int]] = []

    def pread(self, name: str, size: int, offset: int) -> bytes:
        data = self._files.pread(name, size, offset)
        self.reads.append((name, len(data)))
        return data

    def state(self, name: str) -> FileState:
        return self._files.state(name)


class FormatContract:
    """Inherit, set ``format`` and the methods of the first part; pytest runs the tests of the second."""

    format: Format
    header_bytes = 0
    """Bytes of headers that `store` writes at most, for the models of this contract."""

    def store(self, home: Path, tensors: Mapping[str, Stored]) -> None:
        """Write a model of these tensors into the directory ``home``."""
        raise NotImplementedError

    def examples(self) -> Mapping[str, Stored]:
        """Tensors of every dtype and of odd shapes that the format can hold."""
        raise NotImplementedError

    def malformed(self) -> Sequence[Malformed]:
        """Ways to spoil the model that `store` wrote."""
        raise NotImplementedError

    def weight_file(self) -> str:
        """The name of the (first) weight file that `store` writes."""
        raise NotImplementedError

    # -- the contract

    @pytest.fixture
    def home(self, tmp_path: Path) -> Path:
        home = tmp_path / "model"
        home.mkdir()
        self.store(home, self.examples())
        (home / "config.json").write_bytes(CONFIG)
        return home

    def read(self, source: Path) -> Checkpoint:
        listing = locate(str(source))
        assert self.format.claims(listing)
        with open_files(Path(listing.root)) as files:
            return self.format.read(listing, files)

    def test_it_has_a_name(self) -> None:
        assert self.format.name.islower() and self.format.name.isalnum()

    def test_claims_its_own(self, home: Path) -> None:
        assert self.format.claims(locate(str(home)))
        assert self.format.claims(locate(str(home / self.weight_file())))

    def test_claims_nothing_else(self, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("x")
        assert not self.format.claims(locate(str(tmp_path)))
        assert not self.format.claims(locate(str(tmp_path / "notes.txt")))

    def test_claims_by_names_alone(self, home: Path) -> None:
        """A claim opens nothing: the files of the listing need not exist."""
        listing = Listing("x", "/nowhere", None, {self.weight_file(): 1}, ())
        assert self.format.claims(listing)

    def test_names_dtypes_and_shapes(self, home: Path) -> None:
        checkpoint = self.read(home)
        records = {name: (record.dtype, record.shape, record.nbytes) for name, record in checkpoint.tensors.items()}
        stored = {name: (each.dtype, each.shape, len(each.data)) for name, each in self.examples().items()}
        assert records == stored
        assert checkpoint.format == self.format.name

    def test_bytes(self, home: Path) -> None:
        """The range of each record holds the tensor's bytes."""
        checkpoint = self.read(home)
        with open_files(home) as files:
            for name, each in self.examples().items():
                assert self._bytes(files, checkpoint.tensors[name]) == each.data

    def _bytes(self, files: FileSet, record: TensorRecord) -> bytes:
        buffer = bytearray(record.nbytes)
        files.read_into(record.range, 0, memoryview(buffer))
        return bytes(buffer)

    def test_records_stand_in_the_order_of_their_bytes(self, home: Path) -> None:
        for file in self.read(home).files:
            starts = [record.range.start for record in file.tensors]
            assert starts == sorted(starts)
            assert all(record.range.file == file.name for record in file.tensors)
            assert file.size == os.path.getsize(home / file.name)

    def test_companions(self, home: Path) -> None:
        """Everything else that lies there comes along, wherever it lies; the config is a document."""
        (home / "tokenizer").mkdir()
        (home / "tokenizer" / "vocab.txt").write_text("abc")
        (home / "README.md").write_text("card")
        checkpoint = self.read(home)
        assert checkpoint.companions == {"README.md": 4, "tokenizer/vocab.txt": 3}
        assert checkpoint.config is not None and checkpoint.config.text == CONFIG.decode()
        assert checkpoint.cautions == ()

    def test_a_lone_file_has_no_companions(self, home: Path) -> None:
        (home / "README.md").write_text("card")
        checkpoint = self.read(home / self.weight_file())
        assert checkpoint.companions == {}
        assert checkpoint.root == str(home)

    def test_special_files_are_listed(self, home: Path) -> None:
        os.mkfifo(home / "pipe")
        assert self.read(home).special == ("pipe",)

    def test_states(self, home: Path) -> None:
        """What was read is known by device, inode, size and time, so that a stale plan fails."""
        checkpoint = self.read(home)
        assert set(checkpoint.states) >= {file.name for file in checkpoint.files} | {"config.json"}
        for name, state in checkpoint.states.items():
            status = os.stat(home / name)
            assert state == FileState(
                status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
            )

    def test_same_input_same_checkpoint(self, home: Path) -> None:
        assert self.read(home) == self.read(home)

    def test_reading_changes_nothing(self, home: Path) -> None:
        before = self._snapshot(home)
        self.read(home)
        assert self._snapshot(home) == before

    def test_malformed(self, tmp_path: Path) -> None:
        """Each fault is refused by its code, with a hint, and without a change."""
        faults = self.malformed()
        assert len(faults) >= 5
        for fault in faults:
            home = tmp_path / fault.name
            home.mkdir()
            self.store(home, self.examples())
            fault.spoil(home)
            before = self._snapshot(home)
            with pytest.raises(UnreadableError) as caught:
                self.read(home)
            assert caught.value.code == fault.code, fault.name
            assert caught.value.hint and "\n" not in caught.value.message
            assert self._snapshot(home) == before

    def test_no_tensor_is_read(self, tmp_path: Path) -> None:
        """Headers are read, and nothing of the tensors' bytes beyond what tells the kind of file."""
        size = 1 << 20
        self.store(tmp_path, {f"t{i}": Stored("F32", (size // 4,), bytes(size)) for i in range(4)})
        listing = locate(str(tmp_path))
        with open_files(tmp_path) as files:
            counting = Counting(files)
            self.format.read(listing, counting)
            assert files.bytes_read == 0
        assert sum(amount for _, amount in counting.reads) <= self.header_bytes + HEADER_SLACK

    def _snapshot(self, home: Path) -> dict[str, tuple[object, ...]]:
        by_name: dict[str, tuple[object, ...]] = {}
        for path in sorted(home.rglob("*")):
            status = path.lstat()
            content = path.read_bytes() if path.is_file() else b""
            by_name[str(path)] = (status.st_ino, status.st_mode, status.st_mtime_ns, content)
        return by_name
