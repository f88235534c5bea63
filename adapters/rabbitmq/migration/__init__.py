"""Moving exchanges of the delayed-message plugin to postdate."""
