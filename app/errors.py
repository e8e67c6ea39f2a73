"""The error every room raises for what the user can put right."""

from __future__ import annotations


class UserError(Exception):
    """Something the user gave, or the state of this machine, does not work.

    `problem` says what is wrong (capitalised, without a full stop), `advice` what to do about it
    (lower case, without a full stop). As text, both are one sentence.
    """

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(problem, advice)
        self.problem = problem
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.problem}: {self.advice}."
