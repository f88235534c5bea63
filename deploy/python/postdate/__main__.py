"""The console command `postdate`, also `python -m postdate`."""

import sys
from typing import NoReturn

from postdate import HOME


def main() -> NoReturn:
    """Run postdate's command line with postdate's own `bridge`, and exit."""
    # First of all places: neither another package called "bridge" nor a folder in the current directory may be found.
    sys.path.insert(0, str(HOME))
    from bridge.cli import main as run  # found from here on only

    run()


if __name__ == "__main__":
    main()
