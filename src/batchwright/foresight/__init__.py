"""What can be known before the run is over: checks, profile, plan, pilot, sweep, promise."""
