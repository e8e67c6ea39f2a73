"""The error for problems that the user can fix."""

from __future__ import annotations


class UserError(Exception):
    """A problem with the user's input, or with the state of this machine.

    `problem` says what is wrong (capitalised, without a full stop), `advice` what to do about it
    (lower case, without a full stop). As text, both are one sentence.
    """

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(problem, advice)
        self.problem = problem
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.problem}: {self.advice}."
