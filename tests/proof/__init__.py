"""The fault matrix on real servers: `make prove`. `rows` says which tests prove which promise."""
