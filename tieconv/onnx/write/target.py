"""Decide where graphs are written and which files are copied, and raise every refusal before writing."""

from __future__ import annotations

import os
from pathlib import Path

from tieconv.checkpoint.files.model_files import Checkpoint, FileState, Layout, Listing
from tieconv.checkpoint.files.weight_file import WeightFile
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.write_plan.operation import LinkFile
from tieconv.checkpoint.write_plan.plan import Plan, Promises
from tieconv.errors import DestinationError, RefusedError
from tieconv.execute.refusals import check_place
from tieconv.execute.system_errors import free_bytes, no_space, writing
from tieconv.execute.target import Target, destination, is_staging
from tieconv.onnx.graph.model import SUFFIX, graph_names
from tieconv.onnx.write.data_placement import Store
from tieconv.onnx.write.in_place import check_removal
from tieconv.text import shown


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
        return Plan("", checkpoint, {}, (), (), (), links, self._replaced, Promises(None, ()), "")

    @property
    def _replaced(self) -> tuple[str, ...]:
        """Files of a directory that are replaced in place. A symlink among them would leave its target unchanged."""
        return graph_names(self.listing) if self.in_place and not self.is_file else ()

    @property
    def in_place(self) -> bool:
        return self.target.in_place

    def companions(self, store: Store) -> list[str]:
        """Return files that are copied unchanged; in place only data that graphs read.

        That data is copied, because a file may have only one name.
        """
        if self.is_file:
            return []
        anew = {*store.graphs, *store.removed, *(file.name for file in store.data)}
        names = self.states if self.in_place else self.listing.entries
        return [name for name in names if name not in anew and not is_staging(name)]

    def bytes_needed(self, store: Store) -> int:
        """Return the bytes of all files of OUT, including copied ones."""
        return store.bytes_written + sum(self.listing.entries[name] for name in self.companions(store))


def check(target: GraphTarget, store: Store) -> None:
    """Raise every refusal that is known before writing."""
    if target.target.hardlink:
        raise RefusedError(
            f"--hardlink does not support ONNX graphs: {shown(target.listing.source)}",
            "write a new model with -o OUT",
            "onnx.option",
        )
    if not target.is_file and target.listing.special:
        raise RefusedError(
            f"tieconv cannot copy {shown(target.listing.special[0])}: it is not a regular file of this model",
            "move it out of the model directory",
            "out.special",
        )
    final = target.final
    with writing(final.name, final.parent, 0):
        if target.is_file and final.suffix.lower() != SUFFIX:
            raise DestinationError(
                f"{shown(target.target.path)} must end in .onnx",
                f"use {shown(final.name)}.onnx",
                "out.suffix",
            )
        check_place(target.plan, target.target)
        check_beside(target, store)
        if target.in_place:
            check_removal(target.listing, store.removed, store.graphs)
        if (needed := target.bytes_needed(store)) > (free := free_bytes(final.parent)):
            raise no_space(final.name, needed, free)


def check_beside(target: GraphTarget, store: Store) -> None:
    """Raise `DestinationError` if a file exists where a lone graph's data will be written."""
    if not target.is_file:
        return
    for file in store.data:
        path = target.final.parent / file.name
        # In place the name contains a hash of the source, so an existing file is from a killed run.
        if os.path.lexists(path) and not (target.in_place and path.is_file() and not path.is_symlink()):
            raise DestinationError(
                f"{shown(target.final.parent / file.name)} already exists, but the graph's data needs this name",
                "give another -o",
                "out.exists",
            )
