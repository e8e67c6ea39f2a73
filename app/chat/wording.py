"""Sentences for the engine's codes: failures, the reasons why a prompt was read sparsely or in
full, and notices. The screen, the commands, the server and exports take all sentences from here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from string import Formatter
from typing import Any, NamedTuple

from app.protocol.events import (
    CommandFailed,
    EngineWarning,
    Event,
    Failed,
    FellBackToDense,
    Finished,
    GpuLost,
    HostsLost,
    LoadingAlone,
    MemoryFreed,
    PairLost,
    Planned,
    PressureChanged,
    SnapshotFailed,
    SnapshotRestored,
    Unloaded,
)
from app.protocol.generation_config import BOUNDS, FILE_NAME
from app.protocol.memory import PressureLevel, format_bytes
from app.protocol.prompt import TemplateRule
from app.protocol.reasons import (
    Data,
    Failure,
    FailureKind,
    Reason,
    ReasonCode,
    failure_from_plain,
)
from app.protocol.stats import Statistics
from app.util import formatting

# ---------------------------------------------------------------------------- failures


class Words(NamedTuple):
    """What went wrong (capitalised, without a full stop), and what to do about it (lower case,
    without a full stop)."""

    problem: str
    advice: str

    @property
    def sentence(self) -> str:
        return f"{self.problem}: {self.advice}."

    @property
    def sentences(self) -> tuple[str, str]:
        """The problem and the advice as two sentences."""
        return _with_full_stop(self.problem), _with_full_stop(capitalised(self.advice))

    @property
    def text(self) -> str:
        return " ".join(self.sentences)


def capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def _with_full_stop(text: str) -> str:
    """`text` with a full stop, unless it already ends like a sentence."""
    return text if not text or text[-1] in ".!?…" else text + "."


def failure(failed: Failure) -> Words:
    """Words for a failure. Never raises: if its data are incomplete, the code is shown instead."""
    problem, advice = FAILURES[failed.kind]
    return Words(_say(problem, failed.kind, failed.data), _say(advice, failed.kind, failed.data))


def problem(failed: Failure) -> str:
    return failure(failed).problem


def reason(why: Reason) -> str:
    """A whole sentence. Never raises."""
    return _say(REASONS[why.code], why.code, why.data)


def reasons(all_of_them: Iterable[Reason]) -> str:
    """One sentence after another."""
    return " ".join(map(reason, all_of_them))


class _Formatter(Formatter):
    """As `str.format`, with formats for `bytes`, `seconds` and `percent`."""

    def format_field(self, value: Any, format_spec: str) -> str:
        match format_spec:
            case "bytes":
                return format_bytes(value)
            case "seconds":
                return formatting.seconds(value)
            case "percent":
                return f"{value:.0%}"
            case _:
                return str(super().format_field(value, format_spec))


_FORMATTER = _Formatter()
_Wording = str | Callable[[Data], str]
"""A format string whose names are keys of the data, or a function that makes a text of the data."""


def _say(wording: _Wording, code: str, data: Data) -> str:
    try:
        return wording(data) if callable(wording) else _FORMATTER.vformat(wording, (), data)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError):
        return code.replace("_", " ").capitalize()


def cause(data: Data) -> str:
    """The cause of a failure (see `cause_of` in the engine) as a clause: an error's text, or words
    for a known failure."""
    if (plain := data.get("failure")) is None:
        return str(data["error"])
    known = failure_from_plain(plain)
    return _CLAUSES.get(known.kind) or problem(known)


_CLAUSES = {
    FailureKind.OUT_OF_MEMORY: "memory ran out",
    FailureKind.GPU_LOST: "the system stopped its work on the GPU",
}


def _shortage(data: Data) -> str:
    """`Reading 12,000 tokens needs about 8 GB, but only 5 GB is free`."""
    needed, free = format_bytes(data["needed"]), format_bytes(data["free"])
    if "loading" in data:
        what = f"Loading {data['loading']}"
    elif "scoring" in data:
        what = f"Scoring {data['scoring']:,} tokens"
    else:
        what = f"Reading {data['reading']:,} tokens"
    return f"{what} needs about {needed}, but only {free} is free"


def _shortage_advice(data: Data) -> str:
    if "sparse" not in data:
        return _CLOSE if "loading" in data else _READ_LESS
    options = []
    if "keep" in data:
        how = "read less" if data["sparse"] else "read it sparsely"
        options.append(f"{how} (keep {data['keep']}% or less)")
    if "full_tokens" in data:
        options.append(f"attach less (up to {data['full_tokens']:,} tokens can be read in full)")
    return ", or ".join([*options, _CLOSE])


def _too_long(data: Data) -> str:
    about = "about " if data["estimated"] else ""
    return (
        f"The question and conversation have {about}{data['tokens']:,} tokens, but"
        f" {data['model']} takes at most {data['context']:,}"
    )


def _machine_lost(data: Data) -> str:
    who = data["machine"] or "This machine's part of the model"
    return f"{who} stopped responding ({cause(data)})"


def _shard_failed(data: Data) -> str:
    where = "On this machine: " if data["machine"] is None else f"On {data['machine']}: "
    return where + cause(data)


def _shard_advice(data: Data) -> str:
    plain = data.get("failure")
    if plain is None or (known := failure_from_plain(plain)).kind in _CLAUSES:
        return "check that the machines reach each other, and try again"
    return failure(known).advice


def _not_alone(data: Data) -> str:
    lost = problem(failure_from_plain(data["lost"]))
    return f"{lost}, and {data['model']} does not load on this machine alone ({cause(data)})"


_CLOSE = "close other programs, or choose a smaller model"
_READ_LESS = f"read less (Ctrl+G or `--keep`), {_CLOSE}"
_CHOOSE_ANOTHER = "choose another model"
_DOWNLOAD = "download this model again, or choose another"
_INSIDE = "Something went wrong inside specchat"

FAILURES: dict[FailureKind, tuple[_Wording, _Wording]] = {
    FailureKind.INTERNAL: (
        lambda data: f"{_INSIDE} ({data['error']})" if data.get("error") else _INSIDE,
        "try again",
    ),
    FailureKind.OUT_OF_MEMORY: (
        "The machine ran out of memory",
        lambda data: _CLOSE if data.get("loading") else _READ_LESS,
    ),
    FailureKind.GPU_LOST: (
        "The system stopped specchat's work on the GPU ({system})",
        "ask again when specchat has restarted",
    ),
    FailureKind.MLX_MISSING: (
        "MLX cannot be loaded ({error})",
        "run `specchat doctor` to see what is missing",
    ),
    FailureKind.SERVER_STOPPED: (
        "The server was stopped",
        "start it again (F5 or `specchat serve`), then ask again",
    ),
    FailureKind.NEVER_ANSWERED: ("specchat quit before it answered", "ask again"),
    FailureKind.NO_MODEL: ("No model is loaded", "load one (in the app: Ctrl+L)"),
    FailureKind.NOT_ENOUGH_MEMORY: (_shortage, _shortage_advice),
    FailureKind.MEMORY_EXHAUSTED: (
        "Memory was nearly used up, so reading was stopped",
        _READ_LESS,
    ),
    FailureKind.PROMPT_TOO_LONG: (
        _too_long,
        "start a new conversation, or choose a model with a longer context",
    ),
    FailureKind.UNKNOWN_TOKENS_BIASED: (
        "`logit_bias` names tokens that the model does not have",
        "use token ids from 0 to {highest:,}",
    ),
    FailureKind.TEMPLATE_FAILED: ("This model's chat template failed ({error})", _CHOOSE_ANOTHER),
    FailureKind.TEMPLATE_DROPS_MESSAGES: (
        "This model's chat template leaves out, repeats or reorders messages",
        _CHOOSE_ANOTHER,
    ),
    FailureKind.TOKENIZER_UNUSABLE: (
        "This model has no usable tokenizer.json",
        _CHOOSE_ANOTHER,
    ),
    FailureKind.TOKENIZER_FAILED: ("This model's tokenizer failed ({error})", _CHOOSE_ANOTHER),
    FailureKind.TOKENIZER_DROPS_TEXT: (
        "This model's tokenizer drops {letters:,} letters of the text",
        _CHOOSE_ANOTHER,
    ),
    FailureKind.TOKENS_UNKNOWN: (
        "This model's tokenizer produces token ids that the model does not have",
        _CHOOSE_ANOTHER,
    ),
    FailureKind.TOKENS_OUT_OF_RANGE: (
        "The prompt has token ids that this model does not have (its highest is {highest:,})",
        _CHOOSE_ANOTHER,
    ),
    FailureKind.NOT_THE_USERS: (
        "The last message must come from the user",
        "end the conversation with a question",
    ),
    FailureKind.LOADING_STOPPED: ("Loading was stopped", "load it again"),
    FailureKind.MODEL_NOT_LOADED: (
        "The model in {folder} could not be loaded ({error})",
        _DOWNLOAD,
    ),
    FailureKind.CONFIG_INCOMPLETE: (
        "The config.json of the model in {folder} lacks {keys}",
        "download the model again, or choose another one",
    ),
    FailureKind.MODEL_CHANGED: (
        "The files of {model} have changed since it was loaded",
        "load it again (in the app: Ctrl+L), and ask again",
    ),
    FailureKind.TOKENIZER_NOT_LOADED: (
        "The tokenizer of the model in {folder} could not be loaded ({error})",
        _DOWNLOAD,
    ),
    FailureKind.PACKAGE_MISSING: (
        "The model in {folder} could not be loaded (mlx-lm's code for this architecture needs a"
        " package that is not installed)",
        _CHOOSE_ANOTHER,
    ),
    FailureKind.MODEL_UNREADABLE: ("The model in {folder} could not be read ({error})", _DOWNLOAD),
    FailureKind.MODEL_CANNOT_RUN: ("The model in {folder} cannot run here ({error})", _DOWNLOAD),
    FailureKind.WEIGHTS_DAMAGED: (
        "The model in {folder} has damaged weights (some are not numbers)",
        _DOWNLOAD,
    ),
    FailureKind.CACHE_NOT_QUANTISABLE: (
        "The cache of {model} cannot be quantised to {bits} bits ({error})",
        "set KV bits to {instead}",
    ),
    FailureKind.NO_SHARDING: (
        "{model} cannot be spread over machines, because mlx-lm does not support that for its"
        " architecture",
        "load it on one machine, or choose another model",
    ),
    FailureKind.LAYERS_INDIVISIBLE: (
        lambda data: (
            f"{data['model']} cannot be divided evenly among {data['machines']} machines"
            + (f" ({data['error']})" if "error" in data else "")
        ),
        "use another number of machines, or choose another model",
    ),
    FailureKind.LAYERS_LOST: (
        "mlx-lm did not divide {model} correctly (layers are missing)",
        _DOWNLOAD,
    ),
    FailureKind.MACHINES_NOT_READY: (
        "The machines were not ready after {seconds:.0f} seconds",
        "check the output of `specchat worker` on each machine, and try again",
    ),
    FailureKind.VERSIONS_DIFFER: (
        "{machine} has {package} {other}, but this machine has {own}",
        "install the same versions on both",
    ),
    FailureKind.NO_WORKER: (
        "{machine} does not answer as a specchat worker ({error})",
        "run `specchat worker` there, and start specchat with the line that it prints",
    ),
    FailureKind.WORKER_GONE: ("{machine} stopped responding ({error})", "start its worker again"),
    FailureKind.WORKER_REFUSES: (
        "{machine} refused: {problem}",
        lambda data: data.get("advice") or "check the output of `specchat worker` there",
    ),
    FailureKind.SHARD_FAILED: (_shard_failed, _shard_advice),
    FailureKind.MACHINE_LOST: (
        _machine_lost,
        "start its worker again, and load the model again",
    ),
    FailureKind.RING_BROKEN: (
        "The connection between the machines broke ({error})",
        "check the cable or the network between them, and load the model again",
    ),
    FailureKind.NOT_LOADED_ALONE: (
        _not_alone,
        "start the worker again and load the model again, or choose a smaller one",
    ),
}
"""For each kind, what went wrong and what to do. Names in braces are keys of the failure's data."""

# ---------------------------------------------------------------------------- reasons


def _read_elsewhere(data: Data) -> str:
    names = data["names"]
    what, again = f"{len(names)} documents were", "they are"
    if len(names) == 1:
        what, again = f"{names[0]} was", "it is"
    other = "different text came before"
    return f"{what} read in another conversation, but {other}, so {again} read again."


def _cache_damaged(data: Data) -> str:
    what = " and ".join(f"the {name}'s cache was damaged ({how})" for name, how in data.items())
    dropped = "it was dropped, and its" if len(data) == 1 else "they were dropped, and their"
    return f"{capitalised(what)}, so {dropped} tokens are read again."


def _snapshot_failed(data: Data) -> str:
    again = "so the text will be read again after a restart"
    if "failure" in data:
        return f"Saving the cache failed ({cause(data)}), {again}."
    folder = f"check that '{data['folder']}' is writable and has free space"
    return f"Saving the cache failed ({data['error']}), {again}: {folder}."


def _saves_nothing(data: Data) -> str:
    what = "sparse reading" if data["keep"] is None else f"keep {data['keep']:.0%}"
    return f"Everything is cached already: {what} would not save time."


def _sparse_requested(data: Data) -> str:
    at_keep = "" if data["keep"] is None else f" at keep {data['keep']:.0%}"
    return f"Sparse reading{at_keep} was requested."


def _keep_limited(data: Data) -> str:
    limit = "the time limit you set" if data["timed"] else "memory"
    return (
        f"The scores call for keep {data['wanted']:.0%}, but {limit} allows only"
        f" {data['keep']:.0%}."
    )


def ignored_values(names: Sequence[str]) -> str:
    """A sentence that names sampling values in a model's file that are out of range."""
    listed = " and ".join(
        f"{name} (it must be from {BOUNDS[name][0]:g} to {BOUNDS[name][1]:,.7g})" for name in names
    )
    return f"{FILE_NAME} of this model has invalid values, which are ignored: {listed}."


_TEMPLATE_RULES = {
    TemplateRule.ALTERNATING: "This model's chat template requires that questions and answers"
    " alternate, so consecutive messages of the same role are joined.",
    TemplateRule.SYSTEM_FIRST: "This model's chat template allows a system prompt only at the"
    " start, so a later one is put at the start of the next question.",
    TemplateRule.NO_SYSTEM: "This model's chat template allows no system prompt, so it is put at"
    " the start of the next question.",
    TemplateRule.QUESTION_FIRST: "This model's chat template requires a question first, so an"
    " empty one is put before the answer that begins the conversation.",
}
"""What a chat template does not allow, and how the messages were changed for it."""

_READS_ALL = (
    ", so everything is always read. For faster answers choose another model (in the app: Ctrl+L)."
)

REASONS: dict[ReasonCode, _Wording] = {
    ReasonCode.FULL_REQUESTED: "Reading in full was requested.",
    ReasonCode.SPARSE_REQUESTED: _sparse_requested,
    ReasonCode.CACHED_STAYS: "The answer also uses {tokens:,} cached tokens.",
    ReasonCode.NOTHING_TO_SKIP: "There is no document or history to skip.",
    ReasonCode.ALL_CACHED: "Everything has already been read and is cached.",
    ReasonCode.SAVES_NOTHING: _saves_nothing,
    ReasonCode.NEEDS_EVERY_TOKEN: (
        "The question seems to need the whole text, so everything is read."
    ),
    ReasonCode.PARTS_ONLY: (
        "The text is longer than the model's context: only the parts nearest to the question were"
        " read, so the answer may lack something."
    ),
    ReasonCode.FEW_TO_SKIP: (
        "Fewer than {tokens:,} tokens could be skipped, so everything is read."
    ),
    ReasonCode.FASTER: (
        "A sparse read is expected to take {sparse:seconds}, a full read {full:seconds}."
    ),
    ReasonCode.QUICK_IN_FULL: (
        "A full read is expected to take {full:seconds}, so nothing is skipped."
    ),
    ReasonCode.LITTLE_SAVED: (
        "A sparse read is expected to take {sparse:seconds}, a full read {full:seconds}. That saves"
        " too little, so everything is read."
    ),
    ReasonCode.RELEVANT_ONLY: "Only what matters for the question is read.",
    ReasonCode.ONLY_SPARSE_FITS: (lambda data: f"{_shortage(data)}, so only a part is read."),
    ReasonCode.CONTINUED: "The answer is continued where it stopped.",
    ReasonCode.READ_ELSEWHERE: _read_elsewhere,
    ReasonCode.KEEP_CHOSEN: "Keep {keep:percent} was chosen from the scores.",
    ReasonCode.KEEP_LIMITED: _keep_limited,
    ReasonCode.RE_READ: "Re-read from scratch (faster than reusing {cached:,} cached tokens).",
    ReasonCode.CANNOT_INSERT: ("This model cannot recall skipped text while it answers."),
    ReasonCode.NO_MEMORY_TO_READ_ON: (
        "Too little memory is free to read more while the model answers."
    ),
    ReasonCode.SPARSE_FAILED: (
        lambda data: (
            f"Sparse reading failed ({cause(data)}), so everything is read. If this happens again,"
            " choose other models (in the app: Ctrl+L)."
        )
    ),
    ReasonCode.SELECTION_UNKNOWN: (
        lambda data: (
            f"specchat could not determine what a sparse read would select ({cause(data)})."
        )
    ),
    ReasonCode.CITATIONS_UNKNOWN: (
        lambda data: (
            f"specchat could not determine which passages this answer comes from ({cause(data)})."
        )
    ),
    ReasonCode.CITATIONS_STOPPED: (
        "The answer is complete, but has no citations because you stopped looking for them."
    ),
    ReasonCode.UNSUPPORTED_CACHE: f"This model cannot skip text ({{error}}){_READS_ALL}",
    ReasonCode.GAPS_FAIL: f"This model cannot skip text (a test failed: {{error}}){_READS_ALL}",
    ReasonCode.STEPS_FAIL: (
        "This model cannot skip text (reading several tokens in one step failed: {error})"
        f"{_READS_ALL}"
    ),
    ReasonCode.GAPS_CHANGE_ANSWERS: (
        f"This model cannot skip text (its results change by {{change:percent}}){_READS_ALL}"
    ),
    ReasonCode.ROTATION_UNSEEN: (
        "This model cannot skip text (its {layers} layers with rotary embeddings compute them in a"
        f" kernel of their own){_READS_ALL}"
    ),
    ReasonCode.SLOW_BLAS: (
        "Models on this CPU run many times faster with {package}: install it, and restart specchat."
    ),
    ReasonCode.SAMPLING_IGNORED: lambda data: ignored_values(data["names"]),
    ReasonCode.LONG_FACTORS_ALWAYS: (
        "{model} is always read with its factors for long texts (LongRoPE). Its answers about fewer"
        " than {tokens:,} tokens may differ from those of other programs."
    ),
    ReasonCode.WINDOW_IGNORED: (
        "{model} has sliding windows of {tokens:,} tokens, which mlx-lm does not apply. Its answers"
        " about longer texts may be worse than those of other programs."
    ),
    ReasonCode.TEMPLATE_RULE: lambda data: _TEMPLATE_RULES[TemplateRule(data["rule"])],
    ReasonCode.CACHE_DAMAGED: _cache_damaged,
    ReasonCode.SNAPSHOT_UNUSABLE: (
        "The saved cache cannot be used ({error}), so the tokens are read again."
    ),
    ReasonCode.SNAPSHOT_FAILED: _snapshot_failed,
    ReasonCode.BACKGROUND_STOPPED: (
        lambda data: (
            f"Background reading stopped ({cause(data)}). It starts again after the next answer."
        )
    ),
    ReasonCode.IDLE_WORK_FAILED: (
        lambda data: f"Background work failed ({cause(data)}). Nothing is lost."
    ),
    ReasonCode.LOADED_ALTERNATELY: (
        "{model} and {other} do not fit in memory together; they are loaded alternately."
    ),
    ReasonCode.UNLOADED_UNDER_PRESSURE: ("{model} was unloaded ({freed:bytes}) to free memory."),
    ReasonCode.UNLOADED_FOR_OTHER: (
        "{model} was unloaded ({freed:bytes}) to make room for {other}."
    ),
    ReasonCode.CACHES_DROPPED: (
        lambda data: (
            f"The caches of {'all' if data['all'] else 'other'} conversations were"
            f" {'saved to disk and ' if data['saved'] else ''}removed from memory"
            f" ({format_bytes(data['freed'])} freed)."
        )
    ),
    ReasonCode.DRAFT_CACHE_DROPPED: (
        "The draft's cache was removed from memory ({freed:bytes} freed)."
    ),
    ReasonCode.BACKGROUND_FREED: ("Background reading was stopped to free memory ({freed:bytes})."),
    ReasonCode.MEMORY_SHARE: "{used:bytes} of {ceiling:bytes}, {share:percent}",
    ReasonCode.SWAPPING: "swapping {rate:bytes} a second",
    ReasonCode.OTHER_PROGRAMS: "other programs use most of it",
}
"""A sentence for each code. Names in braces are keys of the reason's data; `notice` adds `model`
and `freed` from the event. The last three are clauses, which say why memory is tight."""


# ---------------------------------------------------------------------------- events


Notice = EngineWarning | MemoryFreed | Unloaded | PressureChanged | HostsLost | LoadingAlone


def notice(event: Notice) -> str:
    """The text of a notice: one or two sentences."""
    match event:
        case EngineWarning():
            return reason(event.reason)
        case MemoryFreed():
            return reason(_with(event.reason, freed=event.freed_bytes))
        case Unloaded():
            return reason(_with(event.reason, model=event.model, freed=event.freed_bytes))
        case PressureChanged():
            return _pressure(event)
        case HostsLost():
            lost = problem(event.failure)
            return f"{lost}, so {event.target} continues on this machine alone."
        case LoadingAlone():
            return f"{problem(event.failure)}. Loading the target on this machine…"


def _with(why: Reason, **data: object) -> Reason:
    return Reason(why.code, {**why.data, **data})


def _pressure(event: PressureChanged) -> str:
    """How tight memory is, why, and what specchat does about it."""
    level, scarce = event.level, reason(event.reason)
    if level is PressureLevel.NORMAL:
        return "Memory pressure is back to normal."
    if level.severity < event.previous.severity:
        return f"Memory is less tight ({scarce})."
    return f"{_TIGHT[level]} ({scarce}): {_RESPONSES[level]}."


_TIGHT = {
    PressureLevel.WARN: "Memory is getting tight",
    PressureLevel.TIGHT: "Memory is tight",
    PressureLevel.CRITICAL: "Memory is nearly used up",
}
_RESPONSES = {
    PressureLevel.WARN: "idle caches are removed, and prompts are read in smaller steps",
    PressureLevel.TIGHT: "the draft is unloaded until it is needed",
    PressureLevel.CRITICAL: "the running answer is stopped",
}


def in_words(event: Event) -> dict[str, Any]:
    """Sentences for an event, which JSON output adds to its fields."""
    match event:
        case Failed() | CommandFailed() | PairLost() | GpuLost():
            words = failure(event.failure)
            return {"problem": words.problem, "advice": words.advice, "message": words.sentence}
        case Planned():
            return {"reason": reasons(event.reasons)}
        case Finished(statistics=Statistics() as statistics):
            return {"reason": reasons(statistics.reasons)}
        case FellBackToDense() | SnapshotFailed() | SnapshotRestored(reason=Reason()):
            return {"message": reason(event.reason)} if event.reason is not None else {}
        case _ if isinstance(event, Notice):
            return {"message": notice(event)}
        case _:
            return {}
