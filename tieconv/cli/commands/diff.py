"""`tieconv diff`."""

from __future__ import annotations

import sys

import click

from tieconv.api.comparison import diff
from tieconv.cli.options import MODEL_PATH, common_options, json_option, name_options
from tieconv.cli.screen import paint, width
from tieconv.cli.streams import document, show


@click.command("diff")
@click.argument("a", type=MODEL_PATH)
@click.argument("b", type=MODEL_PATH)
@name_options
@json_option
@common_options
def command(a: str, b: str, embed: str | None, head: str | None, as_json: bool) -> None:
    """What differs between the models A and B, tensor by tensor, ties and layout seen through.

    Exits 0 where both compute the same by construction (every parameter equal in every loader, proved over all
    bytes, and no config value that may change what is computed), 1 where they do not, 2 where one cannot be read.
    """
    comparison = diff(a, b, embed=embed, head=head)
    if as_json:
        document(str(comparison))
    else:
        from tieconv.reporters.text.diff_text import render

        show(render(comparison, paint, width()))
    sys.exit(0 if comparison.same_function else 1)
