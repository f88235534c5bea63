"""Routes without a store: their messages wait in level queues."""
