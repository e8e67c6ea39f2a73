"""How long tests wait."""

from __future__ import annotations

import os

PATIENCE = float(os.environ.get("SPECCHAT_TEST_PATIENCE", "1"))
"""Times as long as on the machines that specchat is written on. Every limit in seconds that a slow
machine may reach is a multiple of this."""
