"""Other frameworks on the same workload. Each of these modules runs in an environment of its own, below `.local/peers`."""
