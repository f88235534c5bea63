"""The HTTP process: the API, the page, metrics and health, over the stores and what the bridge processes report."""
