"""Settings for all tests."""

from __future__ import annotations

from hypothesis import settings

# These machines are noisy: how long an example takes says nothing.
settings.register_profile("specchat", deadline=None)
settings.load_profile("specchat")
