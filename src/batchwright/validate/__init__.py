"""Every row in, or out with a reason: prompts, ids, sampling fields, batch envelopes."""
