"""How fast batchwright is beside other ways to run the same rows: `python -m benchmarks.throughput`."""
