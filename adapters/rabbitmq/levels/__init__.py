"""Routes without a store: the queues in which messages wait."""
