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
    """Compare the models A and B tensor by tensor. Different names, ties and shards of equal values do not count.

    Exits with 0 if both models compute the same. Then every loader gives every parameter the same bytes, and no
    config value differs that can change the outputs. Exits with 1 if they differ, and with 2 if a model cannot be read.
    """
    comparison = diff(a, b, embed=embed, head=head)
    if as_json:
        document(str(comparison))
    else:
        from tieconv.reporters.text.diff_text import render

        show(render(comparison, paint, width()))
    sys.exit(0 if comparison.same_function else 1)
