"""What operators do with waiting messages: list, show, cancel, reschedule, deliver, retry, send."""
