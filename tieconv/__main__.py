"""`python -m tieconv`."""

from tieconv.cli import main

if __name__ == "__main__":
    main(prog_name="tieconv")
