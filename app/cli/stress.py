"""`specchat doctor --stress`: checks the options before any process starts."""

from __future__ import annotations

from argparse import Namespace
from typing import TextIO

from app.chat.model_pairs import resolve_pair
from app.cli.arguments import STRESS_LENGTH, STRESS_RUNS
from app.cli.parsing import parse_prompt_length
from app.cli.settings import requested_pair, user_settings
from app.cli.stress_runs import Stress
from app.cli.stress_runs import stress as stressed
from app.paths import logs_path


def stress(options: Namespace, out: TextIO) -> int:
    tokens = parse_prompt_length(STRESS_LENGTH if options.length is None else options.length)
    runs = STRESS_RUNS if options.runs is None else options.runs
    target, draft = requested_pair(options.target, options.draft, user_settings())
    resolve_pair(target, draft)  # raises for models that are not installed
    return stressed(Stress(runs, tokens, target, draft), logs_path(), out)
