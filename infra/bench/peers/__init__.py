"""Other frameworks on the same workload; each module runs in an environment of its own, below `.local/peers`."""
