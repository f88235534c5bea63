"""Settings in, a running process out. The only floor that imports ``adapters``."""
