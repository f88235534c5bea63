"""Fixtures of all tests; the servers' fixtures are in tests/devstack/fixtures.py."""

pytest_plugins = ["tests.devstack.fixtures"]
