"""Producers that keep naming the real topic. Each file stands alone: a copy needs nothing else of postdate."""
