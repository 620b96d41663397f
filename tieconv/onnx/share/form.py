"""Choose the form of a head: the first that keeps every bit of what a session computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.write_plan.graph import RUNTIMES, HeadForm
from tieconv.onnx.share.apply import rounding
from tieconv.onnx.share.find import Member
from tieconv.onnx.share.surviving_copy import Choice, Setting, choose, reads_of, target_of, to_rewrite


@record
class FormChoice:
    """The copy that stays and the form of the heads.

    ``choice`` is ``None`` if all copies stay; ``why`` gives the reason. ``avoided`` says what an earlier form would
    round differently.
    """

    choice: Choice | None
    setting: Setting
    why: str = ""
    avoided: str = ""


def choose_form(members: Sequence[Member], setting: Setting, form: HeadForm | None) -> FormChoice:
    """Choose ``form`` whatever it rounds, or with ``None`` the first form that changes no bit."""
    why = avoided = ""
    for candidate in HeadForm if form is None else (form,):
        now = replace(setting, form=candidate)
        choice, why = choose(members, now)
        if choice is None:
            continue
        beside = _changed_bits(members, choice, now) if form is None else ""
        if not beside:
            return FormChoice(choice, now, avoided=avoided)
        avoided = avoided or beside
        why = f"{RUNTIMES} may round differently next to {beside} in every form; --head-form gemm stores it once"
    return FormChoice(None, setting, why)


def _changed_bits(members: Sequence[Member], choice: Choice, setting: Setting) -> str:
    """Return what a session may round differently in this form; empty if it keeps every bit."""
    reads = to_rewrite(reads_of(members), choice, setting.form)
    return rounding(members, reads, target_of(choice, setting))
