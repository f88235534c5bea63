"""Topics: planned, compared with the broker's, created."""
