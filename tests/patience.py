"""How long tests wait, and how often they try."""

from __future__ import annotations

import os

PATIENCE = float(os.environ.get("SPECCHAT_TEST_PATIENCE", "1"))
"""Times as long as on the machines that specchat is written on. Most limits in seconds are
multiples of this."""
ROUNDS = int(os.environ.get("SPECCHAT_TEST_ROUNDS", "1"))
"""Times as many random tries in the longest slow tests, which are those of every night."""
