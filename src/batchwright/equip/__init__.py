"""What a job runs on: its engine, adapters and tokenizer, and whether they go together."""
