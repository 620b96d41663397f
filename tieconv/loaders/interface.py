"""The type of a consumer: one loader with a range of its versions. Its prediction follows from a `Loaded`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from tieconv.architectures.effective_flag import odd_size
from tieconv.checkpoint.family import Role
from tieconv.checkpoint.finding import Outcome, Prediction
from tieconv.checkpoint.inspection import Inspection, State, lists_float_head
from tieconv.checkpoint.quantised_matrix import (
    EMBEDDING,
    HEAD,
    DeclaredQuantisation,
    PairState,
    QuantisedMatrix,
    QuantisedTables,
    Verdict as Choice,
)
from tieconv.checkpoint.relation.proved import Cast
from tieconv.checkpoint.tie_group import Member
from tieconv.checkpoint.value_type import record
from tieconv.loaders import evidence, release_tables
from tieconv.loaders.loaded import Absence, Cause, Loaded, Refusal, stopped
from tieconv.loaders.release_tables import ABSENT, FLOAT, MLX, QUANTISED, Cell, Tables, quantised_cells
from tieconv.text import in_words, listed, shown


# Derive the prediction from a `Loaded`: its outcome, its tensors, and the reason in one sentence.
@record
class Verdict:
    """The prediction for one loader; the fields are those of `Prediction`."""

    outcome: Outcome
    detail: str
    tensors: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


def verdict(inspection: Inspection, loaded: Loaded) -> Verdict:
    """Return what ``loaded`` does with the head, the embedding and the names tied to them."""
    if loaded.refusals:
        refusal = loaded.refusals[0]
        failure = Outcome.UNKNOWN if refusal.cause is Cause.UNKNOWN else Outcome.ERROR
        return Verdict(failure, refusal.sentence, refusal.tensors)
    read = evidence.without_tensors(inspection, loaded.unread)
    answer = _of_parameters(read, loaded) if loaded.undecided is None else _of_alternatives(read, loaded)
    # ``answer`` with the stored names that the loader does not know.
    names = sorted(loaded.unread)
    if not names or answer.outcome in (Outcome.ERROR, Outcome.UNKNOWN):
        return answer
    words = [
        member
        for group in evidence.groups(inspection)
        if group.role is not Role.OUTPUT_BIAS
        for member in group.members
    ]
    differ = any(member.name in names and not evidence.same(member) for member in words)
    ungrouped = {inspection.family.input_embedding, inspection.family.output_head} - {member.name for member in words}
    loses = differ or any(evidence.in_file(inspection, name) in names for name in ungrouped if name)
    outcome = Outcome.DISCARDED if loses and answer.outcome is not Outcome.RANDOM else answer.outcome
    unread = f"{loaded.loader} does not know the {'name' if len(names) == 1 else 'names'} {in_words(names)}"
    dropped = tuple(name for name in names if name in evidence.class_bias(inspection))
    return Verdict(outcome, f"{answer.detail}; {unread}", (*answer.tensors, *names), (*answer.dropped, *dropped))


def _of_alternatives(inspection: Inspection, loaded: Loaded) -> Verdict:
    """Return the answer if it does not depend on the tensors that were not compared, else unknown."""
    answers = [_of_parameters(inspection, alternative) for alternative in loaded.alternatives]
    if len({(answer.outcome, answer.dropped) for answer in answers}) == 1:
        return answers[0]
    first, second = loaded.undecided or ("", "")
    states = {member.name: member.state for tie in inspection.ties for member in tie.members}
    if State.CAST in (states.get(first), states.get(second)):
        sentence = f"{shown(second)} and {shown(first)} are equal only in the narrower of their dtypes"
        return Verdict(Outcome.UNKNOWN, f"{sentence}, and tieconv does not know the dtype at loading")
    return Verdict(Outcome.UNKNOWN, f"tieconv did not compare {shown(second)} with {shown(first)}")


def _of_parameters(inspection: Inspection, loaded: Loaded) -> Verdict:
    pair = evidence.head_pair(inspection)
    if pair is None:
        return Verdict(Outcome.UNKNOWN, "the architecture table does not name both the embedding and the head")
    words = (group for group in evidence.groups(inspection) if group.role is Role.WORD_EMBEDDING)
    tables = {pair.head, pair.embedding, *(member.name for group in words for member in group.members)}
    names = [name for name in loaded.parameters if name in tables]
    unset = [name for name in names if name in loaded.unset] or _unset_biases(inspection, loaded)
    if unset:
        reason = f"a tied model reads only {shown(loaded.parameters[unset[0]].parameter)}, which is not stored"
        return Verdict(Outcome.ERROR, f"the loader leaves {in_words(unset)} without values: {reason}", tuple(unset))
    dropped = dropped_biases(inspection, loaded)
    outcome, detail, tensors = _of_tables(inspection, loaded, pair, names)
    unused = f"; the loader does not use {in_words(dropped)}" if dropped else ""
    empty = [name for name in loaded.unset if name not in tables]
    if empty:
        keep = "keeps" if len(empty) == 1 else "keep"
        unused += f"; {in_words(empty)} {_are(empty)} not stored and {keep} uninitialised memory"
    return Verdict(outcome, detail + unused, tuple(tensors), dropped)


def _of_tables(
    inspection: Inspection, loaded: Loaded, pair: evidence.Pair, names: Sequence[str]
) -> tuple[Outcome, str, Sequence[str]]:
    """Return outcome, reason and tensors for ``names``, those of the word embeddings and of the ``pair``."""
    random = [name for name in names if loaded.parameters[name].absence is Absence.RANDOM]
    if random:
        start = "starts" if len(random) == 1 else "start"
        return Outcome.RANDOM, f"{in_words(random)} {_are(random)} not stored and {start} with random numbers", random
    left = [name for name in names if loaded.parameters[name].absence is Absence.MEMORY]
    left = [name for name in left if loaded.parameters[name].parameter == name]
    if left:
        keep = "keeps" if len(left) == 1 else "keep"
        return Outcome.RANDOM, f"{in_words(left)} {_are(left)} not stored and {keep} uninitialised memory", left
    lost = list(_lost(inspection, loaded, names))
    if lost:
        return Outcome.DISCARDED, _replaced(loaded, lost), lost
    outcome, detail = Outcome.UNTIED, f"{in_words((pair.head, pair.embedding))} are two parameters"
    if loaded.tied(pair.head, pair.embedding):
        values = f"with the values of {shown(loaded.holder(pair.head))}"
        outcome, detail = Outcome.TIED, f"{in_words((pair.head, pair.embedding))} are one parameter, {values}"
    return outcome, f"{detail}; {loaded.remark}" if loaded.remark else detail, (pair.head, pair.embedding)


def _replaced(loaded: Loaded, lost: Sequence[str]) -> str:
    if set(lost) <= set(loaded.in_order):
        return f"the loader reads {in_words(loaded.in_order)} into one parameter and keeps the last one that it reads"
    return f"the loader replaces {in_words(lost)} by {shown(loaded.source(lost[0]))} without an error"


def _lost(inspection: Inspection, loaded: Loaded, names: Sequence[str]) -> Iterator[str]:
    """Yield the stored names that get the values of another tensor, unless both are proved equal."""
    members = {member.name: member for group in evidence.groups(inspection) for member in group.members}
    for name in names:
        source = loaded.source(name)
        if name not in inspection.checkpoint.tensors or source in (None, name):
            continue
        if source not in members or name not in members or _differs(members[source], members[name]):
            yield name


def _differs(base: Member, member: Member) -> bool:
    """Whether a member's values are lost where it gets those of ``base``."""
    if evidence.same(base) and evidence.same(member):
        return False
    if isinstance(member.relation, Cast):
        return member.relation.exact == member.name
    return True


def _unset_biases(inspection: Inspection, loaded: Loaded) -> list[str]:
    """Return both names of a head bias if one is stored and neither gets values."""
    pair = evidence.bias_group(inspection)
    names = [member.name for member in pair.members] if pair is not None else []
    half = pair is not None and any(member.stored for member in pair.members)
    return names if half and all(name in loaded.unset for name in names) else []


def dropped_biases(inspection: Inspection, loaded: Loaded) -> tuple[str, ...]:
    """Return the stored head biases with non-zero values that no logit gets."""
    names = [evidence.in_file(inspection, name) for name in inspection.family.output_biases]
    if not any(name in loaded.parameters for name in names):
        return tuple(name for name in evidence.class_bias(inspection) if loaded.source(name) != name)
    pair = evidence.bias_group(inspection)
    if pair is None:
        return ()
    used = loaded.holder(names[-1])
    stored = [member for member in pair.members if member.stored]
    if used is not None and all(evidence.same(member) for member in stored):
        return ()
    unused = (member.name for member in stored if member.name != used)
    return tuple(name for name in unused if used is not None or not evidence.is_zero(inspection, name))


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


# Predict what a loader does with a quantised embedding or head, from the cells that were measured.


def _listed_answer(inspection: Inspection, loader: tuple[str, str]) -> Verdict | None:
    """Return the answer for a float pair whose head the config lists; ``None`` for a loader that reads only names."""
    declared = inspection.quantisation
    if declared is None or loader[0] in _READ_NAMES:
        return None
    scheme, head = _declared_scheme(declared), declared.head
    shape = QuantisedMatrix(HEAD, "", scheme, head.bits, None, head.symmetric, None, (), head)
    pair = (_stored(inspection, EMBEDDING, None), _stored(inspection, HEAD, None))
    cell = next((cell for cell in quantised_cells().get(loader, ()) if _fits(cell, inspection, shape, pair)), None)
    if cell is None:
        says = "the config says that the head is quantised, and tieconv has no measurement of a float head there"
        return Verdict(Outcome.UNKNOWN, says, ())
    return None if cell.outcome is None else Verdict(cell.outcome, cell.says, ())


_COMPRESSED = "compressed-tensors"

_READ_NAMES = frozenset({"llama.cpp", "safetensors"})
"""Loaders that know a quantised matrix by the names of its parts, not by the config."""

_SCHEMES = {"auto-round": "AutoRound", "gptq": "GPTQ v1", "awq": "AWQ", "fp8": "FP8 with weight_scale_inv"}


def _declared_scheme(declared: DeclaredQuantisation) -> str:
    if declared.method == "bitsandbytes":
        return f"bitsandbytes {declared.head.bits} bit"
    layout = declared.head.layout
    if declared.method == "compressed-tensors" and layout.endswith("fp4-pack-quantized"):
        layout = layout.removesuffix("-quantized")
    return _SCHEMES.get(declared.method, f"{declared.method} {layout}")


def _cell(inspection: Inspection, tables: QuantisedTables, loader: tuple[str, str]) -> Cell | None:
    head, embedding = tables.of(HEAD), tables.of(EMBEDDING)
    matrix = head or embedding
    if matrix is None or not tables.method or (head and embedding and head.scheme != embedding.scheme):
        return None
    if matrix.scheme.startswith(_COMPRESSED) is not (tables.method == _COMPRESSED):
        return None  # the parts look alike, and another program reads them
    pair = (_stored(inspection, EMBEDDING, embedding), _stored(inspection, HEAD, head))
    declared = inspection.quantisation
    listed_head = declared is not None and declared.head.verdict is Choice.QUANTISED
    cells = (cell for cell in quantised_cells().get(loader, ()) if cell.head_listed in (None, listed_head))
    return next((cell for cell in cells if _fits(cell, inspection, matrix, pair)), None)


def _fits(cell: Cell, inspection: Inspection, matrix: QuantisedMatrix, pair: Tables) -> bool:
    return (
        matrix.scheme in cell.schemes
        and cell.tied in (None, inspection.config.effective)
        and (not cell.tables or pair in cell.tables)
        and cell.named in (None, _is_named(matrix))
        and cell.left_out in (None, matrix.config.verdict is Choice.LEFT_OUT)
        and cell.symmetric in (None, matrix.symmetric)
        and (not cell.bits or matrix.bits in cell.bits)
        and (not cell.classes or inspection.family.architecture in cell.classes)
    )


def _is_named(matrix: QuantisedMatrix) -> bool:
    """Return whether the config says that this module is quantised, by its name."""
    entry = matrix.config.entry
    return matrix.config.verdict is Choice.QUANTISED and entry.rpartition(": ")[2] not in ("", "Linear", "Embedding")


def _stored(inspection: Inspection, role: str, matrix: QuantisedMatrix | None) -> str:
    if matrix is not None:
        return QUANTISED
    family = inspection.family
    name = family.input_embedding if role == EMBEDDING else family.output_head
    return FLOAT if name and evidence.in_file(inspection, name) in inspection.checkpoint.tensors else ABSENT


# Say what a prediction rests on: the releases that the tests ran, or the source alone.

Version = tuple[int, ...]
READ = "read"
"""The basis of a prediction that follows the source; no test runs the loader."""


@record
class Asked:
    """The releases that the user named: a sign such as ``>=``, and the version after it. ``==5`` includes every 5.y."""

    sign: str
    version: Version

    def includes(self, release: str) -> bool:
        """Return whether a release is one of them. ``>5.23`` and ``<5.23`` both leave out every 5.23.y."""
        start = self._start(release)
        if start == self.version:
            return self.sign not in ("<", ">")
        return self.sign.startswith("<" if start < self.version else ">")

    def is_above(self, release: str) -> bool:
        """Return whether a release that is not one of them is older than they are."""
        start = self._start(release)
        return start < self.version or (start == self.version and self.sign == ">")

    def _start(self, release: str) -> Version:
        return _number(release)[: len(self.version)]


def basis(ran: Sequence[str], every: Collection[str], asked: Asked | None) -> str:
    """Return ``read``, ``ran 0.32.2``, or where the releases ``asked`` lie beside those that ran.

    ``ran`` are the releases that tests ran for the prediction, and ``every`` those of the loader.
    """
    if not ran:
        return READ
    if asked is not None and not any(map(asked.includes, every if asked.sign in ("==", "") else ran)):
        lower = [version for version in every if asked.is_above(version)]
        upper = [version for version in every if version not in lower]
        if lower and upper:
            return f"between {max(lower, key=_number)} and {min(upper, key=_number)}, which ran"
        if lower:
            return f"newer than {max(lower, key=_number)}, which ran"
        return f"older than {min(upper, key=_number)}, which ran"
    between = ", not the releases between them" if len(ran) > 1 else ""
    return f"ran {listed(ran)}{between}"


def _number(version: str) -> Version:
    return tuple(int(part) for part in version.split("."))


# The type of a consumer: one loader with a range of its versions.


@record
class Consumer:
    """A loader that behaves alike from version ``since`` to below ``before`` (``None``: up to the newest).

    ``load`` is pure. ``cited`` is its source. ``ran`` are the releases that the tests ran for it, ``every`` those of
    the loader. ``asked`` are the releases that the user named, if any. ``own_rows`` says that ``load`` compares the
    rows of the tables with the config, because it drops some tables.
    """

    name: str
    version: str
    since: Version
    cited: str
    load: Callable[[Inspection], Loaded]
    before: Version | None = None
    own_rows: bool = False
    ran: tuple[str, ...] = ()
    every: tuple[str, ...] = ()
    asked: Asked | None = None

    def predict(self, inspection: Inspection) -> Prediction:
        """Return what this loader does with the model."""
        loaded = self.load(inspection)
        # These two fill the class that transformers builds, and so were measured with it.
        if inspection.family.since and not loaded.refusals and self.name not in ("transformers", "safetensors"):
            loaded = stopped(loaded.loader, evidence.unmeasured(inspection, self.name))
        if not loaded.refusals:
            refusal = None if self.own_rows else evidence.wrong_rows(inspection)
            size, problem = odd_size(inspection)
            if problem:  # transformers 4.57 takes true for 1 layer, and not for other sizes
                takes_any = isinstance(size, bool) and self.name == "transformers" and self.version.startswith("4.")
                refusal = Refusal(Cause.UNKNOWN if takes_any else Cause.CONFIG, problem)
            if self.name == "transformers":
                refusal = refusal or evidence.without_padding(inspection, self.version)
                refusal = refusal or evidence.wrong_sizes(inspection)
            if refusal is not None:
                loaded = stopped(loaded.loader, refusal)
        reads = self.name == "mlx-lm" or not inspection.family.mlx_names
        quantised = self._of_quantised(inspection, loaded) if reads else None
        answer = quantised or verdict(inspection, loaded)
        since = inspection.family.since if self.name == "transformers" else ""
        ran = (since,) if since and answer.outcome is not Outcome.ERROR else self.ran
        rests_on = basis(ran, (*(self.every or self.ran), *ran), self.asked)
        run = release_tables.names("transformers-5", "quantised") if quantised is not None and self.ran else ()
        if run and inspection.family.architecture not in run:
            rests_on += f" with {min(run)}, not with this class"
        if self.version == "4.48" and answer.outcome is Outcome.DISCARDED:
            rests_on += " in its default float32"  # it keeps the other table if it does not convert the type
        return Prediction(
            name=self.name,
            version=self.version,
            outcome=answer.outcome,
            detail=answer.detail,
            measured=bool(self.ran),
            basis=rests_on,
            cited=self.cited,
            tensors=answer.tensors,
            dropped=answer.dropped,
        )

    def _of_quantised(self, inspection: Inspection, loaded: Loaded) -> Verdict | None:
        """Return the answer about quantised tables, ``None`` if the model has none and its config describes none."""
        described = inspection.checkpoint.format in ("safetensors", "torch") and inspection.quantisation is not None
        if inspection.quantised_tables is None and not described:
            return None

        # If the loader fails before it reads the tables, that reason stays the answer.
        loader = (self.name, self.version)
        if any(refusal.cause is not Cause.UNKNOWN for refusal in loaded.refusals[:1]):
            return None
        tables = inspection.quantised_tables
        if tables is None:
            return _listed_answer(inspection, loader) if lists_float_head(inspection) else None
        names = tuple(part.name for matrix in tables.matrices for part in matrix.parts)
        broken = next((fault for matrix in tables.matrices for fault in matrix.faults), None)
        if broken is not None:
            return Verdict(Outcome.UNKNOWN, f"a quantised matrix is broken: {broken.reason}", broken.tensors)
        if loader == MLX and all(matrix.scheme.startswith("MLX") for matrix in tables.matrices):
            equal = tables.relation is not None and tables.relation.state is PairState.EQUAL
            # mlx-lm reads its own codes: a module is quantised if its scales are stored. Helium stores a separate head
            # beside the tied embedding, and does not use it. Nothing is lost if it is ``equal``.
            if loaded.refusals:
                return Verdict(Outcome.UNKNOWN, loaded.refusals[0].sentence, names)
            if loaded.discarded and equal:
                return Verdict(Outcome.TIED, "the stored head equals the embedding, which serves both", names)
            if loaded.discarded:
                return Verdict(Outcome.DISCARDED, "mlx-lm drops the stored head without a message", names)
            if len({parameter.parameter for parameter in loaded.parameters.values()}) == 1:
                return Verdict(Outcome.TIED, "one quantised matrix serves both", names)
            return Verdict(Outcome.UNTIED, "each table is loaded as it is stored", names)
        cell = _cell(inspection, tables, loader)
        if cell is None:
            tables_named = in_words(matrix.name for matrix in tables.matrices)
            are = "is" if len(tables.matrices) == 1 else "are"
            return Verdict(
                Outcome.UNKNOWN, f"{tables_named} {are} quantised, and tieconv has no measurement of that", names
            )
        return None if cell.outcome is None else Verdict(cell.outcome, cell.says, names)
