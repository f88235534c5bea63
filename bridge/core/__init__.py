"""What a message is, how it moves, and what the stages need of the world. Imports nothing of postdate."""
