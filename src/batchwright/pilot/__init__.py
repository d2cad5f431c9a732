"""A small part of the job on the real engine, and what it says of the whole."""
