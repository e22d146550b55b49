"""Scripts that measure accuracy, speed and load, and write docs/benchmarks.md."""
