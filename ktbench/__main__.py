"""`python -m ktbench`."""

import sys

from ktbench.cli import main

if __name__ == "__main__":
    sys.exit(main())
