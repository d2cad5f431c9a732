"""A row to a draft: what it asks, checked, rendered and tokenised; or why it is rejected."""
