"""When a message is due and where it may go. Pure."""
