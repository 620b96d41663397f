"""Run `tieconv`, also as `python -m tieconv`."""

import os
import sys
from contextlib import suppress

if __name__ == "__main__" and not sys.flags.safe_path and sys.path and sys.path[0] in ("", os.getcwd()):
    # -m puts the current directory first on the path, and a checkpoint there may have a json.py. Python itself looks
    # there before this line runs. `python -P -m tieconv` and the `tieconv` program do not.
    del sys.path[0]

from tieconv.cli import main


def run() -> None:
    """Run the program. After Ctrl-C it leaves at once: Python needs a second to take torch and a large model down."""
    try:
        main(prog_name="tieconv")
    except SystemExit as stop:
        if stop.code == 130 and "torch" in sys.modules:
            from tieconv.api import remove_temporary

            remove_temporary(every_thread=True)
            with suppress(OSError):
                sys.stdout.flush()
            os._exit(130)
        raise


if __name__ == "__main__":
    run()
