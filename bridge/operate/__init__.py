"""What operators do, and the documents that it returns: one `Operator` for the commands and the API."""
