"""Routes without a store: the topics in which records wait."""
