"""What holds for all tests."""

from hypothesis import settings

# How long one example takes says something about the machine, not about the code.
settings.register_profile("default", deadline=None)
settings.load_profile("default")
