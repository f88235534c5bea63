"""Simulated runs of the real stages: one seed is one run. See ``__main__`` for how to run them."""
