"""The local cloud: the emulator, its gaps closed, and what deploys to it."""
