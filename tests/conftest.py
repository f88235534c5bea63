"""Fixtures of all tests; the servers' fixtures are in tests/devstack/fixtures.py."""

import signal

from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.devstack.fixtures"]

# A machine that is busy with something else must not fail a test: slowness is measured, not asserted.
settings.register_profile("postdate", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("postdate")

# A run in the background of a script inherits "ignore SIGINT", and so would every process that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
