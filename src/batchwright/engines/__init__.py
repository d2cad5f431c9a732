"""How tokens are made: the engines, the process they live in, and the feeder."""
