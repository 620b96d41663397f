"""Record what the commands answer about many models, and compare two recordings.

    python -m tests.recorded record BEFORE.json --models DIR [-j N] [--only TEXT]
    python -m tests.recorded compare BEFORE.json AFTER.json [--allow FILE] [--only TEXT]

The first recording builds the models in DIR; later ones read the same bytes. A recording depends on the command line
alone, so it stays comparable when modules move. `--only` takes the models whose name contains TEXT.
"""
