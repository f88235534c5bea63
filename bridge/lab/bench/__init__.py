"""``postdate bench``: how fast, how late, how much memory; the same questions of any broker."""
