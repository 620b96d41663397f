"""Carry out a plan in five steps: own the staging directory, write, verify, check the sources again, rename."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path

from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.model_files import FileState
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.write_plan import OutputWeights, Plan
from tieconv.errors import VerificationError
from tieconv.execute import publish, target as targets, tree
from tieconv.execute.copy import Like, first_like, inherit_directory, notes
from tieconv.execute.file_layout import file_layout
from tieconv.execute.staging import Staging, resumable, sweep
from tieconv.execute.verify import Verifier, blame_source, check_dropped, check_promises, check_source_sums
from tieconv.execute.write import ByteMeter, Progress, Record, Syncer, Writer, is_finished
from tieconv.sources.user_files import new_file

Prove = Callable[[Path], None]
"""Raises a `TieconvError` if the staged model is not what was promised. It gets the path of the model."""


def clear(plan: Plan, target: targets.Target) -> None:
    """Remove the leftovers of a killed run, except what `execute` can resume if the target says so."""
    final = targets.destination(plan, target)
    if not (target.resume and resumable(final)):
        sweep(final)


def execute(
    plan: Plan, target: targets.Target, *, reinspect: Callable[[Path], Inspection], progress: Progress | None = None
) -> tuple[str, ...]:
    """Write what ``plan`` promises to ``target``, as `carry_out` does.

    ``reinspect(path)`` inspects the staged model before the rename.
    """
    return carry_out(plan, target, lambda staged: check_promises(plan.promises, staged, reinspect), progress)


def carry_out(
    plan: Plan,
    target: targets.Target,
    prove: Prove,
    progress: Progress | None = None,
    recheck: Callable[[], None] = lambda: None,
) -> tuple[str, ...]:
    """Write what ``plan`` promises to ``target``: everything, durable and verified, or nothing.

    ``prove`` checks the staged model, and ``recheck`` the source again before the rename. ``progress(done, total)``
    receives bytes. Returns notes about files and attributes of replaced files that tieconv did not keep.

    Raises `RefusedError`, `DestinationError` or `StalePlanError` before it writes anything. Raises `WriteFailedError`
    if the system stops the write, and `VerificationError` if the bytes read back differ from the plan. SIGINT ends it
    with `KeyboardInterrupt`, SIGTERM and SIGHUP with `SystemExit`.
    """
    final = targets.destination(plan, target)
    with publish.interrupts() as signals:
        if target.resume and resumable(final):
            targets.check_target(plan, target)
        else:
            publish.checked(final, lambda: targets.check_target(plan, target))
        if target.in_place and plan.changes_nothing:
            sweep(final)
            return ()
        swaps, removed = targets.replaces_directory(plan, target), targets.removal_notes(plan, target)
        meter = ByteMeter.of(plan, target, progress)
        job = _Job(plan, target, final, prove, recheck, meter, targets.source_root(plan), swaps)
        written = publish.owning(final, signals, lambda staging: job.run(staging, signals), resume=target.resume)
        return (*removed, *written)


@record
class _Job:
    """One execution. ``final`` is OUT as `destination` returns it; ``swaps`` says that a new directory replaces it."""

    plan: Plan
    target: targets.Target
    final: Path
    prove: Prove
    recheck: Callable[[], None]
    meter: ByteMeter
    root: Path
    swaps: bool

    def run(self, staging: Staging, signals: publish.Interrupts) -> tuple[str, ...]:
        targets.check_place(self.plan, self.target)
        with tree.writing(self.final.name, self.final.parent, 0):
            replaced = os.lstat(self.final) if self.swaps else None
            if self.swaps and self.target.in_place and not publish.can_exchange(staging.held):
                raise publish.cannot_exchange(self.final)
            files = {self._staged_name(weights): weights for weights in self.plan.weights}
            finished = staging.make_new(files, lambda name, path: is_finished(path, file_layout(files[name])))
        syncer = Syncer()
        try:
            writer = Writer(self.root, staging.new, syncer, self.meter.tick, self._like)
            before = self._write(staging, writer, finished)
            full, record = self.target.verify == "full", writer.record
            verifier = Verifier(self.root, staging.new, record, full, self.meter.tick if full else lambda _count: None)
            verifier.names(self._expected(before))
            check_source_sums(self.plan, self.root, full=full)
            try:
                for weights in self.plan.weights:
                    self._prove_weights(weights, verifier, writer)
            except VerificationError:
                blame_source(self.plan, self.root)
                raise
            for text in self.plan.texts:
                verifier.text(text)
            for companion in record.companions:
                verifier.companion(companion)
            self.prove(self._inspectable(staging))
            with tree.writing(self.final.name, staging.held, self.plan.bytes_written):
                syncer.finish()
        finally:
            syncer.stop()
        with tree.writing(self.final.name, staging.held, 0):
            self._finish_directories(staging, writer.record)
        self._look_again(staging, writer.record, before)
        with signals.shielded(), tree.writing(self.final.name, staging.held, 0):
            staging.check()
            self._publish(staging, replaced, before)
        return (*notes(writer.record.lost), *writer.record.resumed(len(self.plan.weights)))

    def _write(self, staging: Staging, writer: Writer, finished: Collection[str]) -> Mapping[str, FileState]:
        """Write all files. Return the states of the directory that a new one replaces in place, else nothing."""
        for weights in self.plan.weights:
            name = self._staged_name(weights)
            (writer.keep if name in finished else writer.weights)(weights, name)
        for text in self.plan.texts:
            writer.text(text)
        if self.target.in_place and self.swaps:
            # The whole directory, ``.git`` included, without the files that change or go.
            copied = targets.linked_names(self.plan) if targets.has_graphs(self.plan) else ()
            for name in copied:
                writer.companion(name)
            before = tree.states(self.final)
            with tree.writing(self.final.name, staging.held, 0):
                tree.link(self.final, staging.new, {*targets.changed_names(self.plan), *self.plan.removed, *copied})
            return before
        bring = writer.companion
        if self.target.in_place:
            bring = writer.share
        elif self.target.hardlink:
            bring = writer.hardlink
        for name in targets.linked_names(self.plan):
            bring(name)
        return {}

    def _staged_name(self, weights: OutputWeights) -> str:
        return self.final.name if targets.is_file(self.plan) and weights is self.plan.weights[0] else weights.name

    def _like(self, name: str) -> Like | None:
        """Return the file that an output replaces, or else the file that it is made from."""
        whole = not targets.is_file(self.plan)
        replaced = self.final / name if whole else self.final
        replaces = self.target.overwrite or self.target.in_place
        return first_like(replaced if replaces else None, self.root / name if whole else targets.source_path(self.plan))

    def _prove_weights(self, weights: OutputWeights, verifier: Verifier, writer: Writer) -> None:
        name = self._staged_name(weights)
        if name in writer.record.reused:
            with suppress(VerificationError):
                return verifier.weights(weights, name)
            writer.replace(weights, name)
        return verifier.weights(weights, name)

    def _expected(self, before: Mapping[str, FileState]) -> set[str]:
        if targets.is_file(self.plan):
            return {self._file_name(), *targets.beside(self.plan)}
        if before:
            existing = {name for name, state in before.items() if not tree.is_directory(state)}
            return (existing - set(self.plan.removed)) | set(targets.changed_names(self.plan))
        return {*targets.changed_names(self.plan), *targets.linked_names(self.plan)}

    def _file_name(self) -> str:
        return self.final.name if self.plan.weights else self.plan.links[0].name

    def _inspectable(self, staging: Staging) -> Path:
        """Return the path to inspect; a lone file needs beside it the config that the plan used."""
        if not targets.is_file(self.plan):
            return staging.new
        config = self.plan.checkpoint.config
        if config is not None:
            path = staging.new / config.name
            with tree.writing(config.name, staging.held, len(config.text)), new_file(path) as file:
                file.write(config.text.encode())
        return staging.new / self._file_name()

    def _finish_directories(self, staging: Staging, record: Record) -> None:
        """Give each directory the mode and owner of the one that it replaces, and make it durable."""
        if targets.is_file(self.plan):
            return
        for directory in tree.directories(staging.new):
            name = directory.relative_to(staging.new)
            replaces = self.swaps and (self.final / name).is_dir()
            like = first_like(self.final / name if replaces else None, self.root / name)
            if like is not None and (lost := inherit_directory(directory, like)):
                record.lost[f"{name}/"] = lost
            tree.sync_directory(directory)
        tree.sync_directory(staging.held)

    def _look_again(self, staging: Staging, record: Record, before: Mapping[str, FileState]) -> None:
        """Check that no source file and no replaced file changed during the write."""
        relinked = tree.relinked(staging.new)
        targets.check_fresh(self.plan, relinked)
        for name, state in record.sources.items():
            if not state.is_still(tree.file_state_at(self.root / name), relinked):
                raise targets.stale(name)
        staged = {weights.name: self._staged_name(weights) for weights in self.plan.weights}
        check_dropped(self.plan, self.root, staging.new, staged)
        if before:
            publish.check_unchanged(self.final, before)
        self.recheck()
        targets.check_place(self.plan, self.target)

    def _publish(self, staging: Staging, replaced: os.stat_result | None, before: Mapping[str, FileState]) -> None:
        if replaced is not None:
            with publish.standing(self.final):
                if self.target.in_place:
                    publish.exchange_in_place(staging.new, self.final, replaced, before)
                else:
                    staging.set_aside(replaced)
                    publish.publish_directory(staging.new, self.final, staging.old, replaced)
        elif targets.is_file(self.plan):
            self._publish_file(staging)
        elif self.target.in_place:
            for name in targets.changed_names(self.plan):
                publish.publish_file(staging.new / name, self.final / name)
        else:
            publish.publish_new(staging.new, self.final)

    def _publish_file(self, staging: Staging) -> None:
        """Rename a lone file. The data of a graph is renamed before it, so a graph never lacks its data."""
        named: list[Path] = []
        try:
            for name in targets.beside(self.plan):
                staging.set_data(os.lstat(staging.new / name))
                path = self.final.parent / name
                again = self.target.in_place and os.path.lexists(path)
                (publish.publish_file if again else publish.publish_new)(staging.new / name, path)
                named.append(path)
            replaces = self.target.in_place or (self.target.overwrite and self.final.exists())
            staged = staging.new / self._file_name()
            (publish.publish_file if replaces else publish.publish_new)(staged, self.final)
        except BaseException:
            for path in named:
                path.unlink()
            raise
        for name in self.plan.removed if self.target.in_place else ():
            (self.final.parent / name).unlink(missing_ok=True)
