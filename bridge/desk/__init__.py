"""The nouns of the operator's side: what stores and brokers tell, and the protocol ``Desk``. Adapters know them."""
