"""What one process runs: its loops, its share of the work, its workers and its supervisor."""
