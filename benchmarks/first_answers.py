"""Asks a small model 20 questions about the sample, the GNU GPL, as a new user would.

    HF_HUB_CACHE=.cache/real python -m benchmarks.first_answers --target local/smollm2-135m-instruct

An answer is right if it has one of the expected expressions and does not loop. That decides which
model F6 offers; the results stand in docs/models.md.
"""

from __future__ import annotations

import argparse
import re
import sys

from app.chat.engine_session import EngineSession
from app.chat.model_pairs import resolve_pair
from app.chat.sample import sample
from app.protocol.commands import Ask, CachePolicy
from app.protocol.events import Finished
from app.protocol.options import AUTO_KEEP, BackgroundPolicy, Mode, Sampling
from app.protocol.prompt import Message, Role
from app.protocol.stats import FinishReason

TOKENS = 120
QUESTIONS = (
    ("Who published this licence?", "free software foundation|fsf"),
    ("Which version of the GPL is this?", r"version (3|three)|gpl ?v?-?3|\b3\b"),
    ("In which year was it published?", "2007"),
    ("What does the word free refer to in free software?", "freedom|libert"),
    ("Besides copyright in the usual sense, what does copyright mean here?", "semiconductor|masks"),
    ("For how many years must a written offer of the source be valid?", "three|3 year"),
    ("May I take money for copies of the program?", "any price|yes|charge|you may|you can"),
    ("How many days do I have to stop a first violation after I was told?", r"\b30\b|thirty"),
    ("After how many days is my licence back for good if nobody complains?", r"\b60\b|sixty"),
    ("What must the interface of a modified program display?", "legal notices"),
    ("What is a consumer product?", "household|personal property|tangible|dwelling"),
    ("Can I combine it with a work under the Affero licence?", "affero|yes|permission"),
    ("Do I have to accept the licence to run the program?", r"\bnot\b|\bno\b|n't"),
    ("What warranty do I get?", "no warranty|as is|without warranty|not provide|no warrant"),
    ("Who pays for repairs if the program is defective?", r"\byou\b|user|licensee"),
    ("What if a court's conditions contradict the licence?", "not convey|may not|cannot|refrain"),
    ("When was the WIPO copyright treaty adopted?", "1996"),
    ("Who is a contributor?", "copyright holder|authori[sz]e"),
    ("What happens to my rights if I sue somebody over patents in it?", "terminat|may not|lose"),
    ("Which clause should I use to say that later versions also apply?", "any later version"),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_answers", description=__doc__)
    parser.add_argument("--target", required=True, help="the model that answers")
    options = parser.parse_args()
    right = loops = 0
    with EngineSession(upkeep=CachePolicy(BackgroundPolicy.OFF)) as session:
        session.load(resolve_pair(options.target))
        for question, expected in QUESTIONS:
            message = Message(Role.USER, question, (sample(),))
            ask = Ask((message,), Mode.SPARSE, AUTO_KEEP, Sampling(TOKENS, temperature=0.0))
            *_, finished = session.run(ask)
            assert isinstance(finished, Finished)
            looped = finished.finish_reason is FinishReason.REPEATED
            found = re.search(expected, finished.text, re.IGNORECASE) is not None
            right += found and not looped
            loops += looped
            mark = "loops" if looped else "right" if found else "wrong"
            sys.stdout.write(f"{mark}  {question}\n       {' '.join(finished.text.split())}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{options.target}: {right} of {len(QUESTIONS)} right, {loops} loops\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
