"""``postdate demo``: six messages on their way, from a producer to a consumer, live in the terminal."""
