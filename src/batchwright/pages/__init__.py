"""Pages to look at: a profile, a plan or a pilot as one HTML file that needs nothing else."""
