"""Instruments that run a bridge of their own: demo, bench, compare."""
