"""Topics: planned, compared with the cluster's, created."""
