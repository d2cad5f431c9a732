"""Text to token ids and back: the model's own tokenizer and chat template."""
