"""AMQP properties, header tables and frames as bytes."""
