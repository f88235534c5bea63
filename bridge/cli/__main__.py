"""``python -m bridge.cli`` is ``postdate``."""

from bridge.cli import main

main()
