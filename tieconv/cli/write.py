"""The commands that write a model. Each makes a plan, prints it, and applies it if the user gave a target."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
from click.core import ParameterSource

from tieconv.api import Outcome, plans
from tieconv.api.evidence import is_graph
from tieconv.checkpoint.value_type import record
from tieconv.cli import options as shared, screen
from tieconv.errors import WriteFailedError
from tieconv.text import parse_size, shown, size

if TYPE_CHECKING:
    from tieconv.api import GraphOutcome, PlannedGraphs, PlannedWrite, WriteOptions

_AGAIN = "run the same command again to go on"
_AFTER = 10
"""Lines that may follow a plan, such as what was fetched and written."""


@record
class WriteArguments:
    """The options of `write_options`: where and how to write."""

    output: str | None
    in_place: bool
    overwrite: bool
    dry_run: bool
    drop_other_formats: bool
    hardlink: bool
    verify: Literal["full", "structure"]
    resume: bool = False

    def __post_init__(self) -> None:
        if self.output is not None and self.in_place:
            raise click.UsageError("-o OUT and --in-place cannot be used together")
        for name, value in (("--overwrite", self.overwrite), ("--resume", self.resume)):
            if value and self.output is None:
                raise click.UsageError(f"{name} needs -o OUT")

    @property
    def options(self) -> WriteOptions:
        """Options of `PlannedWrite.execute`. In an object store the default of ``--verify`` compares less than full."""
        options: WriteOptions = {"in_place": self.in_place, "overwrite": self.overwrite, "hardlink": self.hardlink}
        if self.resume:
            options["resume"] = True
        source = click.get_current_context().get_parameter_source("verify")
        return options if source is ParameterSource.DEFAULT else {**options, "verify": self.verify}

    @property
    def fetches(self) -> bool:
        """Whether the planner fetches a remote model: only if the plan is applied to a local output."""
        return self.writes and not (self.output or "").startswith(("s3://", "gs://", "az://"))

    @property
    def writes(self) -> bool:
        return not self.dry_run and (self.output is not None or self.in_place)


def plan_command(plan: Callable[..., PlannedWrite | PlannedGraphs]) -> Callable[..., None]:
    """Make a command of a function that returns a plan.

    The function gets what Click parsed, with two options that every planner takes for those of `write_options`.
    """

    @wraps(plan)
    def command(as_json: bool, **options: Any) -> None:
        names = WriteArguments.__dataclass_fields__
        arguments = WriteArguments(**{name: options.pop(name) for name in names if name in options})
        planned = plan(**options, drop_other_formats=arguments.drop_other_formats, fetch=arguments.fetches)
        finish(planned, arguments, as_json=as_json)

    return shared.json_option(shared.common_options(command))


def named_command(plan: Callable[..., PlannedWrite | PlannedGraphs]) -> Callable[..., None]:
    """Make a `plan_command` with the options that name embedding and head."""
    return shared.name_options(plan_command(plan))


def finish(planned: PlannedWrite | PlannedGraphs, arguments: WriteArguments, *, as_json: bool) -> None:
    """Print the plan, and apply it if the user gave a target."""
    from tieconv.reporters.text.plan_text import render_proofs

    output = arguments.output
    stands_inside = arguments.writes and _stands_inside(planned, arguments)
    if arguments.writes:
        planned.clear(output, in_place=arguments.in_place, resume=arguments.resume)
    if output is not None or arguments.in_place:  # the errors of a write come before the plan, and in a dry run too
        planned.check(output, **arguments.options)
    outcome = planned.outcome(output, overwrite=arguments.overwrite)
    plan = outcome.plan  # `PlannedGraphs.plan` lays out every graph again
    if not as_json:
        (screen.say if arguments.writes else screen.echo)(_text(outcome, arguments))
    if arguments.writes:
        outcome = _execute(planned, arguments, plan.command)
        if not as_json:
            say_notes(plan.notes, outcome.plan.notes)
            if not isinstance(outcome, Outcome) and (proofs := render_proofs(outcome, screen.paint, screen.width())):
                screen.echo(proofs)
    if as_json:
        screen.document(str(outcome))
    if (fetched := getattr(planned, "fetched", None)) is not None:
        screen.say(screen.fetched_line(fetched))
    screen.say(_closing(outcome, arguments))
    if stands_inside:
        screen.say("the current directory was replaced; run `cd .` to enter the new one")


def say_notes(known: tuple[str, ...], notes: tuple[str, ...]) -> None:
    """Print the notes of the write that the plan did not have."""
    planned = frozenset(known)  # dedup has a note for each copy, of which a model may have 200,000
    for note in notes:
        if note not in planned:
            screen.say(f"note: {note}")


def _text(outcome: Outcome | GraphOutcome, arguments: WriteArguments) -> str:
    """Return the plan as text: for stderr before a write, for stdout if the plan is the result."""
    from tieconv.reporters.text.plan_text import render

    stream = sys.stderr if arguments.writes else sys.stdout
    links, replaces = arguments.hardlink, arguments.in_place
    text = render(outcome, screen.painter(stream), screen.width(stream), hardlink=links, in_place=replaces)
    return screen.shortened(text, screen.MAX_LINES - _AFTER) if isinstance(outcome, Outcome) else text


def _stands_inside(planned: PlannedWrite | PlannedGraphs, arguments: WriteArguments) -> bool:
    """Return whether the write replaces the working directory or one of its parents."""
    if not planned.replaces_directory(arguments.output, in_place=arguments.in_place):
        return False
    model = Path(click.get_current_context().params["model"])
    source = model if model.is_dir() else model.parent  # MODEL may be the index of a directory
    return Path.cwd().is_relative_to((source if arguments.in_place else Path(str(arguments.output))).resolve())


def _execute(planned: PlannedWrite | PlannedGraphs, arguments: WriteArguments, verb: str) -> Outcome | GraphOutcome:
    with screen.timed("write and verify"), screen.byte_progress(verb) as progress:
        try:
            return planned.execute(arguments.output, progress=progress, **arguments.options)
        except (KeyboardInterrupt, SystemExit):
            if arguments.resume:
                screen.say(f"the finished weight files are kept: {_AGAIN}")
            raise
        except WriteFailedError as error:
            if not arguments.resume:
                raise
            raise WriteFailedError(error.message, f"{error.command_hint}; then {_AGAIN}", error.code) from error


def _closing(outcome: Outcome | GraphOutcome, arguments: WriteArguments) -> str:
    if not outcome.executed:
        targets = "-o OUT or --in-place" if isinstance(outcome, Outcome) else "-o OUT"
        return "nothing was written" if arguments.dry_run else f"nothing was written: give {targets}"
    where, written = shown(outcome.output), f"{size(outcome.plan.bytes_written)} new"
    compared = "every byte compared" if arguments.verify == "full" else "structure verified"
    if not isinstance(outcome, Outcome):
        return f"wrote {where}: {written}, {compared}{_proved(outcome)}"
    if outcome.plan.changes_nothing and arguments.in_place:
        return f"{where} already is as requested: nothing was written"
    if (remote := outcome.remote) is not None:
        everything = arguments.options.get("verify") == "full" or remote.method == "upload"
        compared = "every byte compared" if everything else "uploaded bytes compared"
        written = f"{size(remote.bytes_uploaded)} uploaded"
        if remote.method != "upload":
            written += f", {size(remote.bytes_copied)} copied by the server"
    return f"wrote {where}: {written}, {compared}"


def _proved(outcome: GraphOutcome) -> str:
    """Return what sessions of ONNX Runtime showed of the written graphs."""
    proved, runs = [proof.proved for proof in outcome.proofs], [proof.runs for proof in outcome.proofs]
    if not all(proved):
        return ", not proved in a session"
    whole = all(run is not None and run.equal and not run.not_run for run in runs)
    session = ", proved in a session" if whole else ", copies counted in a session, not all cases run"
    return session if proved else ""


def _refuse_for_graphs(**options: object) -> None:
    for name, value in options.items():
        if value:
            raise click.UsageError(f"--{name.replace('_', '-')} cannot be used with an ONNX graph")


# Tie, untie, and set the flag.

bias_option = shared.choice_option(
    "--bias", "keep", "zero", "strip", help="zero: add an all-zero head bias. strip: remove an all-zero head bias."
)


@click.command("retie")
@shared.write_options
@bias_option
@click.option(
    "survivor",
    "--from",
    "--survivor",
    type=click.Choice(["embed", "head", "mean"]),
    help="Which values --force and --max-kl keep.",
)
@click.option("--force", is_flag=True, help="Tie tensors that differ. Changes the model's outputs. Needs --from.")
@click.option(
    "--max-kl",
    type=click.FloatRange(min=0),
    metavar="X",
    help="Tie tensors that differ if the output distribution provably changes by at most X nats per token (KL "
    "divergence). Needs --from.",
)
@shared.path_option("--text", help="With --max-kl: measure on this text instead (needs torch).")
@click.option(
    "--fold-norm",
    is_flag=True,
    help="Move factors that were folded into the head back into the last norm. Refuses if a value would be rounded.",
)
@named_command
def retie_command(model: str, **options: Any) -> PlannedWrite:
    """Tie the head: drop the redundant copy and set the config to tied.

    Refuses when the tensors are not byte-identical. Then choose the values to keep with --from, and give --force or
    --max-kl. Or try --fold-norm, which keeps every output bit.
    """
    survivor, max_kl = options["survivor"], options["max_kl"]
    if (options["force"] or max_kl is not None) != (survivor is not None):
        raise click.UsageError("--from embed|head|mean needs --force or --max-kl, and each of these needs --from")
    if options["force"] and max_kl is not None:
        raise click.UsageError("--force and --max-kl cannot be used together")
    if options["fold_norm"] and survivor is not None:
        raise click.UsageError("--fold-norm keeps the embedding, so --from cannot be used with it")
    if max_kl is not None and not max_kl < float("inf"):  # NaN too
        raise click.UsageError("--max-kl needs a finite number of nats; use --force for no limit")
    if options["text"] is not None and max_kl is None:
        raise click.UsageError("--text needs --max-kl")
    return plans.plan_retie(model, **options)


@click.command("untie", short_help="Untie the head: store it, and every other tied name, as a separate tensor.")
@shared.write_options
@click.option("--keep-flag", is_flag=True, help="Store the copies, but leave the config tied.")
@bias_option
@named_command
def untie_command(model: str, **options: Any) -> PlannedWrite | PlannedGraphs:
    """Untie the head: store it, and every other tied name, as a separate tensor. The outputs stay the same.

    In an ONNX graph the head gets a separate matrix of shape [H, V] and a MatMul node. Refuses when the tie flag also
    scales the forward pass and the weights cannot absorb the factor exactly.
    """
    if is_graph(model):
        from tieconv.api.graphs import plan_graph_untie

        bias, others = options.pop("bias") != "keep", {name: options[name] for name in ("embed", "head", "keep_flag")}
        _refuse_for_graphs(**others, bias=bias, drop_other_formats=options["drop_other_formats"])
        return plan_graph_untie(model)
    return plans.plan_untie(model, **options)


@click.command("set-tie", short_help="Write tie_word_embeddings in the config. No tensor changes.")
@click.argument("flag", type=click.Choice(["true", "false", "auto"]))
@shared.write_options
@click.option(
    "--force", is_flag=True, help="Write the flag even if loaders then discard a tensor or fill one with random values."
)
@named_command
def set_tie_command(flag: str, model: str, **options: Any) -> PlannedWrite:
    """Write tie_word_embeddings at every level of the config that a loader reads. No tensor changes.

    auto writes true if one tensor serves all names, and false if each name has a separate tensor.
    Refuses when a loader would then discard a stored tensor or fill an absent one with random values. Also refuses
    when the flag changes the forward pass.
    """
    return plans.plan_set_tie(flag, model, **options)


# Store tensors once, in another format, or in another index.


@click.command("dedup", short_help="Store byte-identical tensors once. Copies that a loader needs stay.")
@click.option(
    "--head-form",
    type=click.Choice(["gemm", "fused", "transpose"]),
    help="How the head of an ONNX graph reads the embedding: Gemm, FusedMatMul or Transpose. "
    "With Transpose a session stores a second copy. Default: the first form that keeps every bit.",
)
@shared.write_options
@named_command
def dedup_command(model: str, head_form: str | None, **options: Any) -> PlannedWrite | PlannedGraphs:
    """Store byte-identical tensors once. Copies that a loader needs stay.

    In safetensors, dedup drops a name if the architecture ties it and the config says tied. Other duplicates stay,
    and the plan says which loader needs them. The config does not change.

    In ONNX graphs, dedup compares the bytes of all initializers. It also finds transposed copies and exact casts. It
    rewrites their nodes to read the copy that stays.
    """
    if is_graph(model):
        from tieconv.api.graphs import plan_graph_dedup

        _refuse_for_graphs(**{name: options[name] for name in ("embed", "head", "drop_other_formats")})
        return plan_graph_dedup(model, head_form=head_form)
    if head_form:
        raise click.UsageError("--head-form needs an ONNX graph")
    return plans.plan_dedup(model, **options)


def _size(_context: click.Context, _parameter: click.Parameter, value: str) -> int:
    try:
        return parse_size(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command("convert", short_help="Convert the model to another format or shard size.")
@click.option(
    "--to", type=click.Choice(["safetensors", "torch"]), required=True, help="Format to write. torch: .bin files."
)
@click.option(
    "--max-shard-size",
    default="5GB",
    show_default=True,
    metavar="SIZE",
    callback=_size,
    help="Largest size of a file's tensors, such as 500MB or 2GiB. A larger tensor gets a separate file.",
)
@click.option(
    "--resume", is_flag=True, help="Take over the finished files of a killed run. Keep them if this run is stopped."
)
@shared.write_options
@named_command
def convert_command(model: str, to: str, **options: Any) -> PlannedWrite:
    """Convert the model to another format or shard size. Tied tensors stay tied.

    Names that share storage become one tensor if every loader restores the other names, otherwise separate tensors.
    """
    return plans.plan_convert(to, model, **options)


@click.command("reindex")
@shared.write_options
@click.option("--prune", is_flag=True, help="Remove the weight files that the index does not list.")
@click.option(
    "--add-format", is_flag=True, help="Add the metadata entry format: pt to safetensors files without a format."
)
@click.option(
    "--strip-prefix",
    is_flag=True,
    help="Remove the prefix of a training wrapper, such as module. or _orig_mod., from every tensor name.",
)
@plan_command
def reindex_command(model: str, **options: Any) -> PlannedWrite:
    """Rebuild the shard index from the headers of the shards.

    Works on safetensors and torch shards. Use it when the index is missing, cannot be read, lists tensors that are not
    stored, or has wrong totals. Other entries of the index stay. Refuses when a shard is missing,
    or when two shards store different bytes for one tensor.

    --add-format also works on a model of one file. transformers 4 refuses a safetensors file whose
    metadata entry "format" is missing or not pt, tf, flax or mlx. --add-format sets it to pt. Tensors and other
    metadata do not change.

    --strip-prefix also works on a model of one file. It renames the tensors in the weights and the index. Their bytes
    do not change. It knows the prefixes of DistributedDataParallel, FullyShardedDataParallel, torch.compile,
    activation checkpointing and PEFT.
    """
    if options["strip_prefix"] and (options["prune"] or options["add_format"]):
        raise click.UsageError("--strip-prefix cannot be used with --prune or --add-format; run reindex twice")
    return plans.plan_reindex(model, **options)


# Change the vocabulary size, or the head bias alone.


def _rows(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    if value not in ("rows", "config") and not (value.isascii() and value.isdecimal() and int(value[:12]) > 0):
        raise click.BadParameter("give rows, config or a number of rows")
    return value


@click.command("resize", short_help="Make config, embedding, head and head bias agree on the vocabulary size.")
@click.option(
    "--to",
    required=True,
    metavar="rows|config|N",
    callback=_rows,
    help="rows: set vocab_size to the rows of the embedding. config: resize the tensors. N: set both to N.",
)
@shared.choice_option("--fill", "zeros", "mean", help="Values of new rows. mean: the mean of the stored rows.")
@shared.write_options
@named_command
def resize_command(model: str, **options: Any) -> PlannedWrite:
    """Make config, embedding, head and head bias agree on the vocabulary size.

    `--to rows` changes only config.json, and a tied head or a bias with another number of rows than the embedding. The
    others add rows at the end of each tensor, or remove unused rows. A row is unused if no token of the tokenizer and
    no id in a config needs it. Refuses to remove rows when the tokenizer cannot be read. Refuses if another tensor has
    an axis of the old vocabulary.
    """
    return plans.plan_resize(model, **options)


@click.group("bias", cls=shared.WholeGroup, short_help="Add, remove, unify or resize the head bias.")
def bias_command() -> None:
    """Change the head bias. The tie does not change.

    A tied model stores the bias under its canonical name, an untied model under each name.
    """


@bias_command.command("zero")
@shared.write_options
@named_command
def bias_zero(model: str, **options: Any) -> PlannedWrite:
    """Add an all-zero head bias. A bias that is stored already stays."""
    return plans.plan_bias("zero", model, **options)


@bias_command.command("strip")
@shared.write_options
@named_command
def bias_strip(model: str, **options: Any) -> PlannedWrite:
    """Remove an all-zero head bias. Refuses if a value is not zero."""
    return plans.plan_bias("strip", model, **options)


@bias_command.command("unify")
@shared.write_options
@click.option(
    "survivor",
    "--from",
    type=click.Choice(["bias", "decoder"]),
    help="Which values to keep if the copies differ. bias: the outer name. decoder: the name beside the head's weight.",
)
@named_command
def bias_unify(model: str, **options: Any) -> PlannedWrite:
    """Give both names of a head bias the same values, and store the names that transformers 4 and 5 need.

    Refuses when two copies differ, unless --from says which values to keep.
    """
    return plans.plan_bias("unify", model, **options)


@bias_command.command("resize")
@shared.write_options
@click.option(
    "--rows", type=click.IntRange(min=1), metavar="N", help="Length of the bias. Default: the rows of the head."
)
@named_command
def bias_resize(model: str, **options: Any) -> PlannedWrite:
    """Make the head bias as long as the head: append zeros, or cut off zeros at the end."""
    return plans.plan_bias("resize", model, **options)
