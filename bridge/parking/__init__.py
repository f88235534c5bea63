"""What the store keeps of a message, and under which id. Pure."""
