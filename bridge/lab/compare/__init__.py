"""``postdate compare``: the ways to wait on one's own broker, measured side by side with the same workload."""
