"""The contract of the stores on somebody else's saver, whose faults are known: this is how we know that it can fail."""
