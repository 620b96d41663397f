"""Write graphs beside OUT, verify what was written, and rename it: completely or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from tieconv.checkpoint.files.model_files import FileState
from tieconv.checkpoint.files.weight_file import ByteRange
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.write_plan.graph import SessionProof
from tieconv.execute import tree
from tieconv.execute.contents.attributes import Like, first_like, inherit_directory, notes
from tieconv.execute.contents.copy import Tick, copy_range, write_full
from tieconv.execute.contents.sync import Syncer
from tieconv.execute.contents.write import Writer, created
from tieconv.execute.contents.write_record import Record
from tieconv.execute.publish import swap
from tieconv.execute.publish.exchange import check_unchanged, exchange, standing
from tieconv.execute.publish.interrupts import Interrupts, interrupts
from tieconv.execute.publish.owned import checked, owning
from tieconv.execute.refusals import check_place, stale
from tieconv.execute.staging import Staging
from tieconv.execute.system_errors import writing
from tieconv.onnx.write.data_placement import DataFile, Store
from tieconv.onnx.write.in_place import publish
from tieconv.onnx.write.target import GraphTarget, check, check_beside
from tieconv.onnx.write.transposed_write import write_turned
from tieconv.onnx.write.verify import check_bytes, check_names
from tieconv.sources.local.files import open_files

Prove = Callable[[Path], tuple[SessionProof, ...]]
Recheck = Callable[[], None]
"""Raises `StalePlanError` if what was proved about the source is no longer true."""
Progress = Callable[[int, int], None]


def write(
    target: GraphTarget,
    store: Store,
    prove: Prove,
    progress: Progress | None = None,
    recheck: Recheck | None = None,
) -> Written:
    """Write the store, verify it with ``prove(staged root)`` and ``recheck()``, and rename it.

    If anything fails, raises a `TieconvError` and leaves OUT unchanged. A lone graph's data is renamed before the
    graph, so a graph never lacks its data.
    """
    final = target.final
    with interrupts() as signals:
        checked(final, lambda: check(target, store))
        ticker = _ticker(target, store, progress)
        return owning(
            final, signals, lambda staging: _Job(target, store, final, staging, ticker, recheck).run(prove, signals)
        )


def _ticker(target: GraphTarget, store: Store, progress: Progress | None) -> Tick:
    total = target.bytes_needed(store) * (2 if target.target.verify == "full" else 1)
    done = 0

    def tick(count: int) -> None:
        nonlocal done
        done = min(done + count, total)
        if progress is not None:
            progress(done, total)

    return tick


@record
class Written:
    """The proofs of the written graphs, and notes about file attributes that could not be kept."""

    proofs: tuple[SessionProof, ...]
    notes: tuple[str, ...]


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
            check_bytes(self.target, self.store, new, self.tick)
            proofs = prove(new)
            check_names(self.target, self.store, new, self.before)
            syncer.finish()
        finally:
            syncer.stop()
        for directory in tree.directories(new):
            self._like_the_old(directory)
            tree.sync_directory(directory)
        self._look_again(writer)
        with signals.shielded(), writing(self.final.name, self.staging.held, 0):
            self.staging.check()
            self._publish()
        return Written(proofs, notes(self.record.lost))

    def _write(self, syncer: Syncer) -> Writer:
        root = Path(self.target.listing.root)
        writer = Writer(root, self.staging.new, syncer, self.tick, self._like, self.record)
        for name, data in self.store.graphs.items():
            with self._created(name, syncer) as descriptor:
                write_full(descriptor, data, 0)
                self.tick(len(data))
        for file in self.store.data:
            self._write_data(file, syncer)
        for name in self.target.companions(self.store):
            writer.companion(name)
        if self._swaps:
            self._link_everything_else()
        return writer

    @property
    def _swaps(self) -> bool:
        """Whether the model's directory itself is exchanged."""
        return self.target.in_place and not self.target.is_file

    @property
    def _replaces(self) -> bool:
        """Whether OUT exists and passes its mode to what replaces it."""
        return self.target.in_place or (self.target.target.overwrite and self.replaced is not None)

    def _link_everything_else(self) -> None:
        """Link all other files of the directory, including ``.git``, except written and removed ones."""
        written = {name for name, _ in tree.walk(self.staging.new)}
        self.before = tree.states(self.final)
        tree.link(self.final, self.staging.new, {*written, *self.store.removed})

    def _like_the_old(self, directory: Path) -> None:
        """Give a directory that replaces another the mode and owner of the old one."""
        name = directory.relative_to(self.staging.new)
        if self._replaces and not self.target.is_file and (self.final / name).is_dir():
            lost = inherit_directory(directory, Like(self.final / name, True))
            if lost:
                self.record.add_lost(f"{name}/", lost)

    def _write_data(self, file: DataFile, syncer: Syncer) -> None:
        with open_files(self.target.listing.root) as sources, self._created(file.name, syncer) as made:
            os.ftruncate(made, file.size)
            for offset, content in file.pieces:
                if isinstance(content, ByteRange):
                    source = sources.descriptor(content.file)
                    copy_range(source, content.start, made, offset, content.size, self.tick)
                else:
                    write_turned(sources.descriptor(content.range.file), made, offset, content, self.tick)

    def _created(self, name: str, syncer: Syncer) -> AbstractContextManager[int]:
        return created(self.staging.new, name, self._like(name), syncer, self.record)

    def _like(self, name: str) -> Like:
        """Return the file whose mode and owner a written file gets: one of OUT, or else of the source."""
        listing = self.target.listing
        alike = listing.named or (name if name in listing.entries else next(iter(self.store.graphs)))
        source, replaced = Path(listing.root, alike), self.final if self.target.is_file else self.final / name
        if self.target.in_place:
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
        elif self.target.in_place:
            names = [file.name for file in self.store.data]
            publish(self.staging.new, self.final, names, self.store.removed)
        else:
            self._publish_file()

    def _publish_file(self) -> None:
        """Rename the data first and the graph last. If the graph cannot be renamed, remove the data."""
        published: list[Path] = []
        try:
            for file in self.store.data:
                self.staging.set_data(os.lstat(self.staging.new / file.name))
                swap.publish_new(self.staging.new / file.name, self.final.parent / file.name)
                published.append(self.final.parent / file.name)
            replaces = self.target.target.overwrite and self.final.exists()
            (swap.publish_file if replaces else swap.publish_new)(self.staging.new / self.final.name, self.final)
        except BaseException:
            for path in published:
                path.unlink()
            raise
