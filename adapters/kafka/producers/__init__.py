"""Producers that go on naming the real topic. Each file stands alone: copied, it needs nothing of postdate."""
