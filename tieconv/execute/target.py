"""Where an execution writes, and the paths derived from it."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import unicodedata
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Literal

from tieconv.checkpoint.model_files import TRAINING, Layout
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.write_plan import Plan
from tieconv.errors import DestinationError, RefusedError, StalePlanError, TieconvError
from tieconv.execute import tree
from tieconv.execute.copy import can_clone
from tieconv.execute.file_layout import bytes_in_place_of_shared
from tieconv.execute.tree import free_bytes, no_space, writing
from tieconv.formats import GGUF_SUFFIX, GRAPH_SUFFIX
from tieconv.formats.safetensors import SUFFIX
from tieconv.formats.torch import SUFFIXES, is_trainer_state
from tieconv.sources.local import closing, file_state, in_hub_cache, in_hub_store, open_regular
from tieconv.text import ANOTHER_OUT, ELSEWHERE, NEW_OUT, Hint, count, in_words, listed, option, shown

_STAGING = re.compile(r"\.[^/]+\.tieconv-staging(/|$)")
_STAGING_BELOW = re.compile(r"/\.[^/]+\.tieconv-staging(/|$)")
_LONGEST_NAME = 200
"""Bytes of the longest OUT name that leaves room for the staging directory's name (a name has at most 255)."""


@record
class Target:
    """OUT and how to write it.

    With ``in_place`` the write replaces the model itself and ignores ``path``. ``hardlink`` shares unchanged files with
    the source as hard links. ``verify="structure"`` skips the byte comparison of ranges that the kernel copied or
    shared. ``resume`` takes over the finished files of a killed run. It leaves them if a signal or the system stops
    this one.
    """

    path: Path
    in_place: bool = False
    overwrite: bool = False
    hardlink: bool = False
    verify: Literal["full", "structure"] = "full"
    resume: bool = False


def is_file(plan: Plan) -> bool:
    """Return whether OUT is one weight file rather than a directory."""
    return plan.checkpoint.layout is Layout.FILE


def has_graphs(plan: Plan) -> bool:
    """Return whether the plan writes ONNX graphs. onnx refuses graph data that has a second hard link."""
    return plan.checkpoint.format == "onnx"


def source_root(plan: Plan) -> Path:
    """Return the directory that the plan's file names are relative to."""
    return Path(plan.checkpoint.root)


def source_path(plan: Plan) -> Path:
    """Return the model itself: its directory, or the lone weight file."""
    root = Path(os.path.realpath(plan.checkpoint.root))
    return root / plan.checkpoint.files[0].name if is_file(plan) else root


def destination(plan: Plan, target: Target) -> Path:
    """Return OUT, absolute and with no symlink in its parent. Raises `DestinationError` for a path without a name."""
    if target.in_place:
        return source_path(plan)
    parent, name = os.path.split(os.path.abspath(target.path))
    if not name:
        problem = f"{shown(target.path)} is not a name for a new model"
        raise DestinationError(problem, Hint("give ", option("out"), " a path"), "out.name")
    return Path(os.path.realpath(parent)) / name


def changed_names(plan: Plan) -> tuple[str, ...]:
    """Return the files that the plan writes anew."""
    return (*(output.name for output in plan.weights), *(output.name for output in plan.texts))


def linked_names(plan: Plan) -> tuple[str, ...]:
    """Return the unchanged files of the output, without what a killed run left in the model."""
    return tuple(link.name for link in plan.links if not is_staging(link.name))


def bytes_copied(plan: Plan, target: Target) -> int:
    """Return the bytes of the unchanged files that are copied rather than linked."""
    linked = target.hardlink or (target.in_place and not has_graphs(plan))
    return 0 if linked else plan.bytes_linked


def replaces_directory(plan: Plan, target: Target) -> bool:
    """Return whether the write replaces an old directory with a new one.

    A shell whose working directory is the old one needs ``cd .`` to see the new one.
    """
    if is_file(plan):
        return False
    if target.in_place:
        # The data of a graph may have one name only, so the directory is not linked for a single file.
        return len(changed_names(plan)) > (0 if has_graphs(plan) else 1) or bool(plan.removed)
    return target.overwrite and os.path.isdir(destination(plan, target))


def is_staging(name: str) -> bool:
    """Return whether the relative path ``name`` is in a staging directory."""
    return _STAGING.match(name) is not None or _STAGING_BELOW.search(name) is not None


def staging_path(final: Path) -> Path:
    """Return the staging directory of ``final``: its sibling, or inside ``final`` if that is a mount point."""
    name = final.name
    if len(os.fsencode(name)) > _LONGEST_NAME:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()[:32]
    inside = os.path.isdir(final) and not final.is_symlink() and _apart(final)
    return (final if inside else final.parent) / f".{name}.tieconv-staging"


def _apart(directory: Path) -> bool:
    """Return whether the system cannot rename from the parent of ``directory`` into it."""
    try:
        return os.path.ismount(directory) or not os.access(directory.parent, os.W_OK | os.X_OK)
    except FileNotFoundError:  # another process removed it meanwhile; the write then reports that
        return False


# Check that OUT may be written: it is not the model, and what is there may be overwritten.


_WEIGHTS = (SUFFIX, *SUFFIXES, GGUF_SUFFIX)
_NAMED = 3
"""Files of OUT that a message names."""
_MOST_OF_CONFIG = 1 << 20
_ONLY_BESIDE = frozenset({"export"})
"""Commands without --in-place."""
_INDEXES = tuple(f"{suffix}.index.json" for suffix in _WEIGHTS)


def check_apart(plan: Plan, target: Target, final: Path) -> None:
    """Check that OUT is not the source, not inside it and not around it, whatever links lead there."""
    source = source_path(plan)
    if _same(final, source):
        hint = Hint(ANOTHER_OUT, *(() if plan.command in _ONLY_BESIDE else (", or use ", option(in_place=True))))
        raise DestinationError(f"OUT is the model itself: {shown(target.path)}", hint, "out.is-source")
    if not is_file(plan) and any(_same(parent, source) for parent in final.parents):
        problem = f"{shown(target.path)} is inside the model {shown(source)}"
        raise DestinationError(problem, Hint("give a path outside the model with ", option("out")), "out.inside-source")
    if any(_same(parent, final) for parent in source.parents):
        problem = f"{shown(target.path)} contains the model {shown(source)}"
        raise DestinationError(problem, ANOTHER_OUT, "out.around-source")


def _same(first: Path, second: Path) -> bool:
    try:
        return os.path.samefile(first, second)
    except OSError:
        return first == second


_REMOTE = ("hf:/", "s3:/", "gs:/", "az:/")
"""The first characters of a remote address after `Path` has joined its slashes."""


def check_out(plan: Plan, target: Target, final: Path) -> None:
    """Check that OUT is free, or holds a model that may be overwritten."""
    if str(target.path).startswith(_REMOTE):
        problem = f"{shown(target.path)} is not a local path, and this command writes only local models"
        raise DestinationError(problem, "write to a local directory, then copy or push it", "out.remote")
    if in_hub_store(final):
        problem = f"{shown(target.path)} is in the Hub cache, so other programs would take it for the published model"
        raise DestinationError(problem, ANOTHER_OUT, "out.hub-cache")
    if is_file(plan) and plan.weights and final.suffix not in file_suffixes(plan):
        suffix = Path(plan.weights[0].name).suffix
        problem = f"{shown(target.path)} does not end in {suffix}, the suffix of the file to write"
        raise DestinationError(problem, f"name the output {shown(final.name)}{suffix}", "out.suffix")
    if not os.path.lexists(final):
        return
    if final.is_symlink():
        problem = f"{shown(target.path)} is a symlink"
        raise DestinationError(problem, "give the path that the symlink points to", "out.link")
    if not target.overwrite:
        problem = f"{shown(target.path)} exists"
        raise DestinationError(problem, Hint(ANOTHER_OUT, ", or ", option(overwrite=True)), "out.exists")
    why_not = _not_a_file(final, file_suffixes(plan)) if is_file(plan) else _not_a_model(final)
    if why_not:
        problem = f"{shown(target.path)} {why_not}, so tieconv does not overwrite it"
        raise DestinationError(problem, ANOTHER_OUT, "out.not-a-model")
    if not is_file(plan) and (more := _more(plan, final)):
        problem = f"{shown(target.path)} also holds {more}, which the new model would not replace"
        raise DestinationError(problem, Hint("move other files out of it, or ", ANOTHER_OUT), "out.more-files")


def file_suffixes(plan: Plan) -> tuple[str, ...]:
    """Return the suffixes that a lone file of the plan's format may have."""
    written = plan.weights[0].format if plan.weights else plan.checkpoint.format
    if written == "onnx":
        return (GRAPH_SUFFIX, GRAPH_SUFFIX.upper())
    if written == "gguf":
        return (GGUF_SUFFIX,)
    return SUFFIXES if written == "torch" else (SUFFIX,)


def _not_a_file(final: Path, suffixes: tuple[str, ...]) -> str:
    if not stat.S_ISREG(os.lstat(final).st_mode):
        return "is not a regular file"
    return "" if final.suffix in suffixes else f"does not end in {suffixes[0]}"


def _not_a_model(final: Path) -> str:
    if not final.is_dir():
        return "is not a directory"
    if os.path.ismount(final):
        return "is a mount point"
    names = os.listdir(final)
    if ".git" in names:
        return "contains a Git repository"
    graphs = os.listdir(final / "onnx") if (final / "onnx").is_dir() else []  # as transformers.js loads them
    model = any(name.endswith((*_WEIGHTS, *_INDEXES, GRAPH_SUFFIX)) for name in (*names, *graphs))
    return "" if model or not names else "does not contain a model"


_OF_MODEL = re.compile(
    r"(?!.*optim)(onnx/)?((pytorch_|adapter_|lit_)?model|consolidated)[^/]*"
    r"\.(safetensors|bin|pt|pth|th|ckpt|gguf|onnx|onnx_data(_\d+)?|onnx\.data|index\.json)"
    r"|(onnx/)?(encoder|decoder|embed_tokens)[^/]*\.(onnx|onnx_data(_\d+)?|onnx\.data)"
    r"|(?!optim)[^/]+(-\d{5}-of-\d{5}\.(safetensors|bin|pt|pth|th|ckpt|gguf)|\.(safetensors|bin)\.index\.json)"
    r"|tf_model\.h5|flax_model\.msgpack|rust_model\.ot|\d_[A-Z]\w+/(config\.json|model\.safetensors|pytorch_model\.bin)"
    r"|(dict|bpe|entity_vocab)\.(txt|codes|json)|additional_chat_templates/[^/]+\.jinja"
    r"|(configuration|model_index|encoder)\.json|recipe\.yaml|\w+_licen[cs]e|\.gitignore"
    r"|([^/]*_)?config\.json|(config_sentence_transformers|modules|normalizer|params|export|parity)\.json|parity\.html"
    r"|(tokenizer|vocab|merges|added_tokens|special_tokens|chat_template|tekken|spiece|spm|sentencepiece)[^/]*"
    r"\.(json|txt|model(\.v\d)?|jinja|bpe)|[^/]+\.(tiktoken|spm)"
    r"|(readme|licen[cs]e|notice|use_policy)[^/]*|\.gitattributes|\.DS_Store|\.cache/huggingface/.*",
    re.IGNORECASE,
)
"""Files that belong to a model by their names. The training state is not among them."""
_MODULE_NAMES = ("config.json", "tokenizer_config.json", "processor_config.json", "preprocessor_config.json")
"""Files whose `auto_map` names the model's own code."""


def _not_written_again(plan: Plan, final: Path) -> Iterator[str]:
    """Yield the files of the directory OUT that the new model has no file for."""
    written = {*changed_names(plan), *linked_names(plan)}
    for name, status in tree.walk(final):
        if not (stat.S_ISDIR(status.st_mode) or name in written or is_staging(name)):
            yield name


def _more(plan: Plan, final: Path) -> str:
    """Return the files of OUT, in words, that the write would delete and that are not of a model."""
    modules = ""
    for name in _MODULE_NAMES:
        with suppress(TieconvError, OSError), closing(open_regular(final / name, final)) as descriptor:
            modules += os.read(descriptor, _MOST_OF_CONFIG).decode(errors="replace")
    strange = []
    for name in _not_written_again(plan, final):
        is_module = name.endswith(".py") and re.search(rf'["-]{re.escape(name[:-3])}\.\w+"', modules) is not None
        if is_trainer_state(name) or not (_OF_MODEL.fullmatch(name) or is_module):
            strange.append(name)
        if len(strange) > _NAMED:  # OUT may be a large directory by mistake
            break
    return in_words([*strange[:_NAMED], "more"] if len(strange) > _NAMED else strange)


def removal_notes(plan: Plan, target: Target) -> tuple[str, ...]:
    """Return a note of the files that OUT loses because the new model lacks them. Empty if it loses none."""
    final = destination(plan, target)
    if not target.overwrite or is_file(plan) or not final.is_dir():
        return ()
    with writing(final.name, final.parent, 0):  # another program may change OUT
        names = [*_not_written_again(plan, final)]
    text = f"{shown(target.path)} is replaced and loses {count(len(names), 'file')} that the new model lacks"
    return (f"{text}: {listed(names, _NAMED)}",) if names else ()


# Refuse a target before anything is written.


def check_target(plan: Plan, target: Target) -> None:
    """Raise what would stop `execute` before its first byte.

    Raises `RefusedError`, `DestinationError`, `StalePlanError`, or `WriteFailedError` if space is short.
    """
    check_contents(plan)
    final = destination(plan, target)
    with writing(final.name, final.parent, 0):
        check_place(plan, target)
        check_fresh(plan)
        # Blocks that the file system can share need no space.
        shares = _can_share(plan, final.parent)
        needed = bytes_in_place_of_shared(plan) if shares else plan.bytes_written + bytes_copied(plan, target)
        free = free_bytes(final.parent) + (tree.allocated(staging_path(final)) if target.resume else 0)
        if needed > free:
            raise no_space(final.name, needed, free)


def check_far_target(plan: Plan, target: Target) -> None:
    """Check the target of a model that is not fetched yet: as `check_target`, but not its files and the space."""
    check_contents(plan)
    final = destination(plan, target)
    with writing(final.name, final.parent, 0):
        check_place(plan, target)


def check_contents(plan: Plan) -> None:
    """Check that every file of the plan can be written, wherever OUT is. Raises `RefusedError`."""
    check_names(plan)
    if plan.checkpoint.special:
        first = next(iter(plan.checkpoint.special))
        problem = f"{shown(first)} is not a regular file, so tieconv cannot copy it"
        raise RefusedError(problem, "move it out of the model directory", "out.special")


def check_place(plan: Plan, target: Target) -> None:
    """Check whether OUT may be written; runs again once the staging directory is owned."""
    final = destination(plan, target)
    if target.in_place:
        for reason, code in _in_place_faults(plan, target, final):
            raise RefusedError(reason, NEW_OUT, code)
    else:
        check_apart(plan, target, final)
        check_out(plan, target, final)
    for name in beside(plan):
        path = final.parent / name
        # In place the name contains a hash of the source, so an existing file is from a killed run.
        if os.path.lexists(path) and not (target.in_place and path.is_file() and not path.is_symlink()):
            problem = f"{shown(path)} already exists, but the graph's data needs this name"
            raise DestinationError(problem, ANOTHER_OUT, "out.exists")
    parent = final.parent
    if not parent.is_dir():
        raise DestinationError(f"{shown(parent)} is not a directory", f"mkdir -p {shown(parent)}", "out.no-parent")
    swaps = replaces_directory(plan, target)
    within = target.in_place and not is_file(plan) and not swaps
    # A rename needs write permission on the directory itself: its ".." entry changes.
    for directory in (final,) if within else (parent, final) if swaps else (parent,):
        if not os.access(directory, os.W_OK | os.X_OK):
            raise DestinationError(f"you have no permission to write to {shown(directory)}", ELSEWHERE, "out.read-only")


def beside(plan: Plan) -> tuple[str, ...]:
    """Return the files of a lone file's plan that are written beside it: the data of a graph."""
    return tuple(output.name for output in plan.weights[1:]) if is_file(plan) else ()


def check_names(plan: Plan) -> None:
    """Check that output names are relative, stay inside OUT and differ on every file system."""
    names = (*changed_names(plan), *linked_names(plan))
    lone = len(names) == len(plan.weights) + len(plan.links) == 1
    if is_file(plan) and not (lone or has_graphs(plan)):
        problem = f"{shown(plan.checkpoint.source)} is one file, but the change affects {len(names)} files"
        raise RefusedError(problem, "give the model directory instead of the file", "out.one-file")
    seen: dict[str, str] = {}
    for name in names:
        parts = PurePosixPath(name)
        if parts.is_absolute() or ".." in parts.parts or not parts.parts or str(parts) != name or "\0" in name:
            raise RefusedError(f"{shown(name)} is not a file name inside a model", "", "out.unsafe-name")
        twin = seen.setdefault(unicodedata.normalize("NFC", name).casefold(), name)
        if twin is not name:
            problem = f"{shown(twin)} and {shown(name)} are the same name on a file system that ignores case"
            raise RefusedError(problem, "rename one of them", "out.case-collision")


def _in_place_faults(plan: Plan, target: Target, final: Path) -> Iterator[tuple[str, str]]:
    """Yield why the model cannot be written in place, and the code of that reason."""
    root = source_root(plan)
    if any(caution.code == TRAINING for caution in plan.checkpoint.cautions):
        training = f"{shown(plan.checkpoint.source)} is a training checkpoint"
        yield f"{training}: a write in place would lose its other contents", "out.training"
    if in_hub_cache(root) or in_hub_store(final):
        cached = f"{shown(root)} is a snapshot in the Hub cache"
        yield f"{cached}, and other snapshots share its files", "in-place.hub-cache"
    if is_file(plan) and plan.weights and final.suffix not in file_suffixes(plan):
        yield f"{shown(final.name)} would have a suffix of another format", "in-place.format"
    weights = [file.name for file in plan.checkpoint.files]
    for name in (*weights, *changed_names(plan), *plan.removed):
        if os.path.islink(root / name):
            yield f"{shown(name)} is a symlink, so --in-place would leave its target unchanged", "in-place.link"
    if replaces_directory(plan, target) and os.path.ismount(final):
        yield f"{shown(final)} is a mount point, so tieconv cannot replace it in one step", "in-place.mount"


def check_fresh(plan: Plan, relinked: Collection[tuple[int, int]] = ()) -> None:
    """Raise `StalePlanError` if a file changed after the plan was made.

    ``relinked`` are the (device, inode) of files that got another name since.
    """
    root = source_root(plan)
    for name, state in plan.fingerprint.items():
        try:
            descriptor = open_regular(root / name, root)
        except TieconvError as error:
            raise stale(name) from error
        try:
            if not state.is_still(file_state(descriptor), {*relinked, *tree.UNLINKED}):
                raise stale(name)
        finally:
            os.close(descriptor)


def stale(name: str) -> StalePlanError:
    """Return the error for a source file that changed."""
    return StalePlanError(f"{shown(name)} changed after the plan was made", "run the command again", "plan.stale")


def _can_share(plan: Plan, directory: Path) -> bool:
    root = source_root(plan)
    for name in (file.name for file in plan.checkpoint.files):
        with closing(open_regular(root / name, root)) as descriptor:
            if os.fstat(descriptor).st_size:
                return can_clone(descriptor, directory)
    return False
