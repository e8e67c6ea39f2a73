"""Fits the guard's word weights: a logistic regression over the words of a question.

`python assets/guard/train.py` reads the .tsv files beside it (ours: `every` or `place`, a tab, a
question) and the suites' trained wordings, and writes app/estimate/guard.json. It needs only numpy,
takes seconds, and prints the accuracy in five-fold cross-validation. None of the held-out wordings
in `benchmarks/quality/wordings.toml` and in the .tsv files of tests/estimate may be among the
questions.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.estimate.guard import features
from benchmarks.quality.suites import JUDGED, SUITES, UNSAFE
from benchmarks.quality.words import Keys

HERE = Path(__file__).resolve().parent
WEIGHTS = HERE.parent.parent / "app" / "estimate" / "guard.json"
SMALLEST = 0.02  # smaller weights are not written to the file
SEED = 0
FROM_EACH = 30


def read(path: Path) -> list[tuple[bool, str]]:
    """Each question, and whether it needs every token."""
    lines = path.read_text(encoding="utf-8").splitlines()
    pairs = [line.split("\t", 1) for line in lines if line]
    return [(label == "every", question) for label, question in pairs]


def from_suites() -> list[tuple[bool, str]]:
    """Questions of the suites that the guard is judged by, in their trained wordings."""
    found = []
    for name in sorted(JUDGED):
        suite = SUITES[name]
        if not suite.cases:  # its questions come from real texts
            continue
        for number in range(FROM_EACH):
            rng = random.Random(f"guard/{name}/{number}")
            task = suite.cases[number % len(suite.cases)].maker(rng, Keys(rng), False)
            found.append((name in UNSAFE, task.question))
    return found


def fit(
    questions: list[tuple[bool, str]], penalty: float, steps: int = 1500
) -> tuple[dict[str, float], float]:
    """Weights by feature and the bias, by gradient descent with momentum and an L2 penalty."""
    bags = [features(question) for _, question in questions]
    counts: dict[str, int] = {}
    for bag in bags:
        for name in bag:
            counts[name] = counts.get(name, 0) + 1
    names = sorted(name for name, times in counts.items() if times > 1)
    index = {name: i for i, name in enumerate(names)}
    places = [(row, index[name]) for row, bag in enumerate(bags) for name in bag if name in index]
    rows, columns = np.array(places).T
    values = np.array([1 / max(len(bag), 1) ** 0.5 for bag in bags])[rows]
    y = np.array([float(label) for label, _ in questions])
    w, bias = np.zeros(len(names)), 0.0
    speed, bias_speed = np.zeros(len(names)), 0.0
    for _ in range(steps):
        logits = np.bincount(rows, values * w[columns], len(y)) + bias
        error = 1 / (1 + np.exp(-logits)) - y
        slopes = np.bincount(columns, values * error[rows], len(w)) / len(y)
        speed = 0.9 * speed - 2.0 * (slopes + penalty * w)
        bias_speed = 0.9 * bias_speed - 2.0 * error.mean()
        w, bias = w + speed, bias + bias_speed
    return dict(zip(names, w.tolist(), strict=True)), float(bias)


def scores(
    model: tuple[dict[str, float], float], questions: list[tuple[bool, str]]
) -> NDArray[np.float64]:
    """The logit of each question."""
    weights, bias = model
    out = []
    for _, question in questions:
        bag = features(question)
        out.append(bias + sum(weights.get(n, 0.0) for n in bag) / max(len(bag), 1) ** 0.5)
    return np.array(out)


def main() -> None:
    """Chooses the penalty by cross-validation, fits on everything and writes the file."""
    questions = [q for path in sorted(HERE.glob("*.tsv")) for q in read(path)] + from_suites()
    random.Random(SEED).shuffle(questions)
    best = (-1.0, 0.0)
    for penalty in (3e-6, 1e-5, 3e-5, 1e-4):
        right = 0
        for fold in range(5):
            validation = questions[fold::5]
            training = [q for i, q in enumerate(questions) if i % 5 != fold]
            predicted = scores(fit(training, penalty), validation) > 0
            right += int((predicted == np.array([label for label, _ in validation])).sum())
        accuracy = right / len(questions)
        print(f"penalty {penalty:g}: {accuracy:.3f} right in cross-validation")
        best = max(best, (accuracy, penalty))
    weights, bias = fit(questions, best[1])
    rounded = {name: round(w, 3) for name, w in weights.items() if abs(w) >= SMALLEST}
    WEIGHTS.write_text(
        json.dumps({"bias": round(bias, 3), "weights": rounded}, ensure_ascii=False, indent=0)
        + "\n",
        encoding="utf-8",
    )
    print(f"{len(questions)} questions, {len(rounded)} weights, penalty {best[1]:g}")


if __name__ == "__main__":
    main()
