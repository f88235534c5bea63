"""AMQP properties and header tables as the bytes that came."""
