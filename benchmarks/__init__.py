"""Scripts that measure accuracy, speed and load."""
