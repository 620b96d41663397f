"""Run `python -m tieconv`."""

import os
import sys

if not sys.flags.safe_path and sys.path and sys.path[0] in ("", os.getcwd()):
    # -m puts the current directory first on the path, and a checkpoint there may have a json.py. Python itself looks
    # there before this line runs. `python -P -m tieconv` and the `tieconv` program do not.
    del sys.path[0]

from tieconv.cli import main

if __name__ == "__main__":
    main(prog_name="tieconv")
