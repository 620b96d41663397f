"""Write graphs beside OUT, verify what was written, and rename it: completely or not at all."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from tieconv.checkpoint.graph_plan import SessionProof
from tieconv.checkpoint.model_files import Checkpoint, FileState, Layout, Listing
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.weight_file import ByteRange, WeightFile
from tieconv.checkpoint.write_plan import Gathered, LinkFile, Plan, Promises
from tieconv.errors import DestinationError, RefusedError, TieconvError, VerificationError
from tieconv.execute import publish as swap
from tieconv.execute import tree
from tieconv.execute.copy import Like, Tick, copy_range, first_like, inherit_directory, notes, write_full
from tieconv.execute.publish import Interrupts, check_unchanged, checked, interrupts, owning, standing
from tieconv.execute.publish import exchange_in_place as exchange
from tieconv.execute.staging import Staging
from tieconv.execute.target import Target, check_place, destination, is_staging, stale
from tieconv.execute.tree import free_bytes, no_space, writing
from tieconv.execute.verify import first_difference, first_unlike_blocks
from tieconv.execute.write import ByteMeter, Progress, Record, Syncer, Writer, blocks, created
from tieconv.formats.onnx import SUFFIX, data_files, graph_names
from tieconv.onnx.write.data_placement import DATA, Source, Store, WrittenFile
from tieconv.sources.local import locate, open_files
from tieconv.text import ANOTHER_OUT, NEW_OUT, Hint, shell_word, shown

Prove = Callable[[Path], tuple[SessionProof, ...]]
Recheck = Callable[[], None]
"""Raises `StalePlanError` if what was proved about the source is no longer true."""
Written = tuple[tuple[SessionProof, ...], tuple[str, ...]]
"""The proofs of the written graphs, and notes about file attributes that could not be kept."""


def write(
    target: GraphTarget, store: Store, prove: Prove, progress: Progress | None = None, recheck: Recheck | None = None
) -> Written:
    """Write the store, verify it with ``prove(staged root)`` and ``recheck()``, and rename it.

    If anything fails, raises a `TieconvError` and leaves OUT unchanged. A lone graph's data is renamed before the
    graph, so a graph never lacks its data.
    """
    final = target.final
    with interrupts() as signals:
        checked(final, lambda: check(target, store))
        meter = ByteMeter(target.bytes_needed(store) * (2 if target.target.verify == "full" else 1), progress)
        return owning(
            final, signals, lambda staging: _Job(target, store, final, staging, meter.tick, recheck).run(prove, signals)
        )


@dataclass
class _Job:
    target: GraphTarget
    store: Store
    final: Path
    staging: Staging
    tick: Tick
    recheck: Recheck | None = None
    before: dict[str, FileState] = field(default_factory=dict)
    record: Record = field(default_factory=Record)
    replaced: os.stat_result | None = None

    def run(self, prove: Prove, signals: Interrupts) -> Written:
        new = self.staging.new
        self.replaced = os.lstat(self.final) if os.path.lexists(self.final) else None
        if self._swaps and not swap.can_exchange(self.staging.held):
            raise swap.cannot_exchange(self.final)
        os.mkdir(new)
        syncer = Syncer()
        try:
            writer = self._write(syncer)
            with open_files(new) as written, open_files(self.target.listing.root) as sources:
                for file in self.store.files if self.target.target.verify == "full" else self.store.graphs.values():
                    for offset, content in file.pieces:
                        at = difference(written.descriptor(file.name), offset, content, sources.descriptor, self.tick)
                        if at is not None:
                            problem = f"written {shown(file.name)} differs from its source at byte {at:,}"
                            hint = "nothing was changed; the disk, the memory or tieconv is at fault: report this"
                            raise VerificationError(problem, hint, "verify.bytes")
            proofs = prove(new)
            check_names(self.target, self.store, new, self.before)
            syncer.finish()
        finally:
            syncer.stop()
        for directory in tree.directories(new):
            # Give a directory that replaces another the mode and owner of the old one.
            name = directory.relative_to(self.staging.new)
            if self._replaces and not self.target.is_file and (self.final / name).is_dir():
                lost = inherit_directory(directory, Like(self.final / name, True))
                if lost:
                    self.record.lost[f"{name}/"] = lost
            tree.sync_directory(directory)
        self._look_again(writer)
        with signals.shielded(), writing(self.final.name, self.staging.held, 0):
            self.staging.check()
            self._publish()
        return proofs, notes(self.record.lost)

    def _write(self, syncer: Syncer) -> Writer:
        root = Path(self.target.listing.root)
        writer = Writer(root, self.staging.new, syncer, self.tick, self._like, self.record)
        for file in self.store.files:
            with open_files(self.target.listing.root) as sources, self._created(file.name, syncer) as made:
                write_pieces(file, made, sources.descriptor, self.tick)
        for name in self.target.companions(self.store):
            writer.companion(name)
        if self._swaps:
            # All other files of the directory, including ``.git``, except written and removed ones.
            written = {name for name, _ in tree.walk(self.staging.new)}
            self.before = tree.states(self.final)
            tree.link(self.final, self.staging.new, {*written, *self.store.removed})
        return writer

    @property
    def _swaps(self) -> bool:
        """Whether the model's directory itself is exchanged."""
        return self.target.target.in_place and not self.target.is_file

    @property
    def _replaces(self) -> bool:
        """Whether OUT exists and passes its mode to what replaces it."""
        return self.target.target.in_place or (self.target.target.overwrite and self.replaced is not None)

    def _created(self, name: str, syncer: Syncer) -> AbstractContextManager[int]:
        return created(self.staging.new, name, self._like(name), syncer, self.record)

    def _like(self, name: str) -> Like:
        """Return the file whose mode and owner a written file gets: one of OUT, or else of the source."""
        listing = self.target.listing
        alike = listing.named or (name if name in listing.entries else next(iter(self.store.graphs)))
        source, replaced = Path(listing.root, alike), self.final if self.target.is_file else self.final / name
        if self.target.target.in_place:
            return Like(source, True)
        return first_like(replaced if self._replaces else None, source) or Like(source, False)

    def _look_again(self, writer: Writer) -> None:
        """Raise if a source file, or OUT, changed during the write."""
        root = Path(self.target.listing.root)
        relinked = tree.relinked(self.staging.new)
        for name, state in {**self.target.states, **writer.record.sources}.items():
            if not state.is_still(tree.file_state_at(root / name), relinked):
                raise stale(name)
        if self.before:
            check_unchanged(self.final, self.before)
        if self.recheck is not None:
            self.recheck()
        check_place(self.target.plan, self.target.target)
        check_beside(self.target, self.store)

    def _publish(self) -> None:
        if self._swaps:
            with standing(self.final):
                assert self.replaced is not None
                exchange(self.staging.new, self.final, self.replaced, self.before)
        elif not self.target.is_file:
            if self.target.target.overwrite and self.replaced is not None:
                self.staging.set_aside(self.replaced)
                swap.publish_directory(self.staging.new, self.final, self.staging.old, self.replaced)
            else:
                swap.publish_new(self.staging.new, self.final)
        else:
            new, in_place = self.staging.new, self.target.target.in_place
            published: list[Path] = []
            try:
                for file in self.store.data:
                    self.staging.set_data(os.lstat(new / file.name))
                    path = self.final.parent / file.name
                    (swap.publish_file if in_place and os.path.lexists(path) else swap.publish_new)(
                        new / file.name, path
                    )
                    published.append(path)
                replaces = in_place or (self.target.target.overwrite and self.final.exists())
                (swap.publish_file if replaces else swap.publish_new)(new / self.final.name, self.final)
            except BaseException:
                for path in published:
                    path.unlink()
                raise
            for name in self.store.removed if in_place else ():
                (self.final.parent / name).unlink(missing_ok=True)


def write_pieces(file: WrittenFile, made: int, source: Callable[[str], int], tick: Tick) -> None:
    """Write the contents of ``file`` to the descriptor ``made``. ``source`` opens the files of byte ranges."""
    os.ftruncate(made, file.size)
    for offset, content in file.pieces:
        if isinstance(content, ByteRange):
            copy_range(source(content.file), content.start, made, offset, content.size, tick)
            continue
        for done, block in _blocks(content, source):
            write_full(made, memoryview(block), offset + done)
            tick(len(block))


def _blocks(content: Gathered | bytes, source: Callable[[str], int]) -> Iterable[tuple[int, bytes | bytearray]]:
    """Return (offset, bytes) of a content that is not a byte range, such as a matrix that is stored transposed."""
    return [(0, content)] if isinstance(content, bytes) else blocks(source(content.range.file), content)


# Decide where graphs are written and which files are copied, and raise every refusal before writing.


@record
class GraphTarget:
    """What is written, and where."""

    listing: Listing
    states: dict[str, FileState]
    target: Target

    @property
    def is_file(self) -> bool:
        return self.listing.named is not None

    @property
    def final(self) -> Path:
        """OUT as an absolute path whose parent has no symlinks."""
        return destination(self.plan, self.target)

    @property
    def plan(self) -> Plan:
        """The plan in the form that the checks of OUT read."""
        named = self.listing.named
        files = (WeightFile(named, self.listing.entries[named], 0, (), None),) if named else ()
        layout = Layout.FILE if named else Layout.SINGLE
        links = tuple(LinkFile(name, size) for name, size in self.listing.entries.items() if not named)
        checkpoint = Checkpoint(self.listing.source, self.listing.root, layout, "onnx", files)
        # A symlink among the files that are replaced in place would leave its target unchanged.
        replaced = graph_names(self.listing) if self.target.in_place and not named else ()
        return Plan("", checkpoint, {}, (), (), (), links, replaced, Promises(None, ()), "")

    def companions(self, store: Store) -> list[str]:
        """Return files that are copied unchanged; in place only data that graphs read.

        That data is copied, because a file may have only one name.
        """
        if self.is_file:
            return []
        anew = {*store.graphs, *store.removed, *(file.name for file in store.data)}
        names = self.states if self.target.in_place else self.listing.entries
        return [name for name in names if name not in anew and not is_staging(name)]

    def bytes_needed(self, store: Store) -> int:
        """Return the bytes of all files of OUT, including copied ones."""
        return store.bytes_written + sum(self.listing.entries[name] for name in self.companions(store))


def check(target: GraphTarget, store: Store) -> None:
    """Raise every refusal that is known before writing."""
    if target.target.hardlink:
        problem = f"--hardlink does not support ONNX graphs: {shown(target.listing.source)}"
        raise RefusedError(problem, NEW_OUT, "onnx.option")
    if not target.is_file and target.listing.special:
        problem = f"tieconv cannot copy {shown(target.listing.special[0])}: it is not a regular file of this model"
        raise RefusedError(problem, "move it out of the model directory", "out.special")
    final = target.final
    with writing(final.name, final.parent, 0):
        if target.is_file and final.suffix.lower() != SUFFIX:
            problem = f"{shown(target.target.path)} must end in .onnx"
            raise DestinationError(problem, f"use {shown(final.name)}.onnx", "out.suffix")
        check_place(target.plan, target.target)
        check_beside(target, store)
        if target.target.in_place:
            for name in store.removed:
                if name.lower().endswith(_OF_OTHERS):
                    raise RefusedError(
                        f"--in-place does not remove {shown(name)}, because it may hold more than the graph's data",
                        NEW_OUT,
                        "in-place.data",
                    )
            for graph, read in _readers(target.listing, set(store.graphs)) if store.removed else ():
                shared = sorted(read & set(store.removed))
                if shared:
                    raise RefusedError(
                        f"--in-place cannot replace one graph, because {shown(graph)} reads {shown(shared[0])} too",
                        f"give the directory, so that all graphs change: {shell_word(target.listing.root)}",
                        "in-place.shared-data",
                    )
        if (needed := target.bytes_needed(store)) > (free := free_bytes(final.parent)):
            raise no_space(final.name, needed, free)


def check_beside(target: GraphTarget, store: Store) -> None:
    """Raise `DestinationError` if a file exists where a lone graph's data will be written."""
    if not target.is_file:
        return
    for file in store.data:
        path = target.final.parent / file.name
        # In place the name contains a hash of the source, so an existing file is from a killed run.
        if os.path.lexists(path) and not (target.target.in_place and path.is_file() and not path.is_symlink()):
            problem = f"{shown(target.final.parent / file.name)} already exists, but the graph's data needs this name"
            raise DestinationError(problem, ANOTHER_OUT, "out.exists")


# Verify that the graphs and data files in a staging directory are as planned, byte by byte.


def difference(
    written: int, offset: int, content: Source | bytes, source: Callable[[str], int], tick: Tick
) -> int | None:
    """Return the first offset at which the file ``written`` differs from the content at ``offset``, or ``None``."""
    if isinstance(content, ByteRange):
        span = [(offset, offset + content.size)]
        return first_difference(source(content.file), written, span, content.start - offset, tick)
    return first_unlike_blocks(_blocks(content, source), written, offset, tick)


def check_names(target: GraphTarget, store: Store, new: Path, before: Mapping[str, FileState]) -> None:
    """Check that ``new`` has exactly the planned files, and the remaining files of ``before``."""
    written = {name for name, status in tree.walk(new) if not stat.S_ISDIR(status.st_mode)}
    planned = {*store.graphs, *(file.name for file in store.data)}
    planned |= set(target.companions(store))
    remaining = {name for name, state in before.items() if not tree.is_directory(state)}
    planned |= remaining - set(store.removed)
    if written != planned:
        problem = f"written {shown(sorted(written ^ planned)[0])} was not planned, or is missing"
        raise VerificationError(problem, "nothing was changed; report this", "verify.names")


# Replace graphs in place: check the conditions, and change names in a safe order.

_OF_OTHERS = (".safetensors", ".gguf", ".bin", ".pt", ".pth", ".json", SUFFIX)
"""Extensions of files that may hold more than a graph's data."""


def data_name(graph: str, command: str, states: dict[str, FileState]) -> str:
    """Return the name of a lone graph's new data file, which includes a hash of its source.

    It differs from the old name, because the old graph needs its data until the new graph has its name. A run after a
    killed run computes the same name.
    """
    known = sorted((name, state.device, state.inode, state.size, state.mtime_ns) for name, state in states.items())
    made_from = repr((command, known)).encode()
    return f"{graph}.{hashlib.sha256(made_from).hexdigest()[:12]}{DATA}"


def old_data(spans: Iterable[ByteRange], used: Iterable[str]) -> tuple[str, ...]:
    """Return the data files that no tensor uses any more."""
    return tuple(sorted({span.file for span in spans} - set(used)))


def _readers(listing: Listing, written: set[str]) -> Iterator[tuple[str, set[str]]]:
    """Yield every other graph below the directory, and the files that it reads."""
    around = locate(listing.root)
    others = [name for name in around.entries if name.lower().endswith(SUFFIX) and name not in written]
    with open_files(listing.root) as files:
        for name in others:
            try:
                yield name, data_files(listing.root, files, name)
            except TieconvError as error:
                problem = f"tieconv cannot read {shown(name)}, which may use the same data: {error.message}"
                hint = Hint("move it out of the directory, or ", NEW_OUT)
                raise RefusedError(problem, hint, "in-place.other-graph") from error
