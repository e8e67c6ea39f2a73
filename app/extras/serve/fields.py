"""A table of request fields that clients of other servers send. A field is supported (and declared
in a request's model), refused with one sentence, or known to change no answer. Other fields are
ignored, and a note in the answer's usage names them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field

from app.protocol.options import TemplateValues

_OFF: tuple[Any, ...] = (False, "", [])
_NOTHING: tuple[Any, ...] = (*_OFF, {})
_ON_IF_EMPTY = """guided_json json_schema format structured_outputs structural_tag output_format
    audio web_search_options search_parameters"""
"""Fields for which {} asks for something: any JSON, or a search with the usual options."""
_OUTPUT = """grammar guided_regex guided_choice guided_grammar ebnf regex response_format bad_words
    bad_words_ids allowed_token_ids force_words_ids include_stop_str_in_output suffix echo
    return_full_text"""
_PROMPT = """chat_template template system_prompt role_mapping documents images image_data adapters
    lora lora_request truncate_prompt_tokens context_shift mcp_servers plugins transforms container
    negative_prompt raw previous_response_id"""
_CHOICE = """logits_processors sampler_priority samplers sampler_order sampler_seed use_beam_search
    num_beams mirostat_mode xtc_special_tokens dry_sequence_breakers smoothing_curve options
    extra_body"""
_MORE_OUTPUT = """logprobs prompt_logprobs post_sampling_probs return_token_ids return_tokens
    return_tokens_as_token_ids return_progress background details"""
_OTHER_ROUTES = """system instructions conversation stop stop_sequences
    reasoning reasoning_effort thinking enable_thinking think output_config
    thinking_budget thinking_token_budget reasoning_budget chat_template_kwargs"""
_LENGTHS = """max_tokens max_completion_tokens max_output_tokens n_predict max_new_tokens
    max_length num_predict max_tokens_to_sample"""
_OFF_AT_ZERO = """min_tokens min_length min_keep mirostat dynatemp_range dry_multiplier top_a
    penalty_alpha smoothing_factor epsilon_cutoff eta_cutoff diversity_penalty adaptive_target
    no_repeat_ngram_size top_logprobs n_probs"""
_OFF_AT_ONE = """n best_of length_penalty typical_p typ_p tfs tfs_z guidance_scale n_cmpl
    num_return_sequences encoder_repetition_penalty"""
_ON = "skip_special_tokens add_generation_prompt do_sample include_reasoning"
_UNLESS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    (" ".join((_OUTPUT, _PROMPT, _CHOICE, _MORE_OUTPUT, _OTHER_ROUTES)), _NOTHING),
    (_ON_IF_EMPTY, _OFF),
    (_LENGTHS, (-1, *_NOTHING)),
    (_OFF_AT_ZERO, (0, *_NOTHING)),
    (_OFF_AT_ONE, (0, 1)),
    (_ON, (True,)),
    ("top_n_sigma nsigma", (-1, 0)),
    ("reasoning_format", ("auto", "deepseek", "parsed")),
    ("verbosity", ("medium",)),
    ("modalities", (["text"], [])),
)
REFUSED = {name: values for names, values in _UNLESS for name in names.split()}
"""Unsupported fields, by name, with the values that turn them off and are therefore accepted."""
_HARMLESS = """user user_id metadata store service_tier safety_identifier prompt_cache_key
    prompt_cache_retention cache_salt cache_prompt cache_control prediction request_id session_id
    priority keep_alive ttl timeout id_slot slot_id n_keep n_discard n_cache_reuse num_ctx
    t_max_predict_ms timings_per_token num_draft_tokens draft_model provider route models usage
    betas inference_geo speed context_management spaces_between_special_tokens
    continue_final_message mirostat_tau mirostat_eta dynatemp_exponent dry_base early_stopping
    dry_allowed_length dry_penalty_last_n parse_tool_calls stream_options tools tool_choice
    functions function_call parallel_tool_calls"""
HARMLESS = frozenset(_HARMLESS.split())
"""Names of fields that change no answer, or that only modify a refused field."""


class RequestError(Exception):
    """Why a request is not answered: a sentence, an HTTP status, and an error code that clients
    know, if there is one."""

    status = 400
    code: str | None = None


class BadRequest(RequestError):
    """The request is wrong. The text says what is wrong and what to do."""


def refuse_unsupported(request: BaseModel) -> None:
    """Raise BadRequest for a field that would change the answer and is not supported."""
    for name, value in (request.model_extra or {}).items():
        if name in REFUSED and not any(_same(value, each) for each in REFUSED[name]):
            raise BadRequest(f"`{name}` is not supported on this route: leave it out.")


def _same(value: Any, other: Any) -> bool:
    """Whether two values are equal and of one type: `logprobs` 0 is not `logprobs` false."""
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


def ignored(request: BaseModel) -> str:
    """A sentence about unknown fields; an empty string if there are none."""
    names = [n for n in request.model_extra or {} if n not in REFUSED and n not in HARMLESS]
    shown = ", ".join(sorted(name[:50] for name in names)[:20])
    return f"Fields that specchat does not know were ignored: {shown}." if names else ""


# ------------------------------------------------------------------------------------- thinking

NO_LIMIT = -1
"""Value that clients send for no limit."""
_EFFORTS = {
    "minimal": ("low", 512),
    "low": ("low", 2_048),
    "medium": ("medium", 8_192),
    "high": ("high", 0),
    "xhigh": ("high", 0),
    "max": ("high", 0),
}
"""For each effort that clients send: its name in chat templates, and the maximum thinking tokens
(0: unlimited)."""
_TAKEN = """conversation messages tools documents chat_template add_generation_prompt tokenize
    continue_final_message padding truncation max_length return_tensors return_dict
    return_assistant_tokens_mask tokenizer_kwargs"""
_RESERVED = frozenset(_TAKEN.split())
"""Names that the template renderer uses itself."""
MAX_VALUES, MAX_VALUE = 32, 1_000
"""Maximum template variables in one request, and characters of each."""


class Thoughts(BaseModel):
    """Fields about whether and how long a model thinks, under the names that servers use."""

    reasoning_effort: str | None = None
    reasoning: dict[str, Any] | None = None
    thinking: bool | dict[str, Any] | None = None
    enable_thinking: bool | None = None
    think: bool | str | None = None
    thinking_budget: int | None = Field(None, ge=NO_LIMIT, le=1_000_000)
    thinking_token_budget: int | None = Field(None, ge=NO_LIMIT, le=1_000_000)
    reasoning_budget: int | None = Field(None, ge=NO_LIMIT, le=1_000_000)
    chat_template_kwargs: dict[str, Any] | None = Field(None, max_length=MAX_VALUES)
    output_config: dict[str, Any] | None = None

    def thoughts(self) -> dict[str, Any]:
        """The corresponding fields of `Sampling`. Raises BadRequest."""
        found: dict[str, Any] = {}
        if self.chat_template_kwargs:
            found |= _template_values(self.chat_template_kwargs)
        asked, config = self.reasoning or {}, self.output_config or {}
        if asked.get("exclude"):
            raise BadRequest("`reasoning.exclude` is not supported: leave it out.")
        if config.get("format"):
            raise BadRequest("`output_config.format` is not supported: leave it out.")
        for name, effort in (
            ("reasoning_effort", self.reasoning_effort),
            ("reasoning.effort", asked.get("effort")),
            ("output_config.effort", config.get("effort")),
            ("think", self.think if isinstance(self.think, str) else None),
        ):
            if effort not in (None, "default", "auto"):
                found = _with_effort(found, name, effort)
        for switch in (self.enable_thinking, self.think, asked.get("enabled"), self.thinking):
            if isinstance(switch, bool):
                found["thinking"] = switch
        budgets = [self.thinking_budget, self.thinking_token_budget, self.reasoning_budget]
        budgets.append(asked.get("max_tokens"))
        if isinstance(self.thinking, dict):
            kind = self.thinking.get("type")
            if kind not in ("enabled", "disabled", "adaptive", "auto"):
                raise BadRequest("`thinking.type` must be enabled, disabled or adaptive.")
            found["thinking"] = kind != "disabled"
            budgets.append(self.thinking.get("budget_tokens"))
        for budget in budgets:
            if budget is None:
                continue
            if not isinstance(budget, int) or not NO_LIMIT <= budget <= 1_000_000:
                raise BadRequest("The budget for thinking must be a number of tokens.")
            if budget == 0:
                found["thinking"] = False
            else:
                found["thinking_budget"] = 0 if budget == NO_LIMIT else budget
        return found


def _with_effort(found: Mapping[str, Any], name: str, effort: Any) -> dict[str, Any]:
    if effort == "none":
        return {**found, "thinking": False}
    if not isinstance(effort, str) or effort not in _EFFORTS:
        raise BadRequest(f"`{name}` must be none, {', '.join(_EFFORTS)}.")
    word, budget = _EFFORTS[effort]
    values: TemplateValues = (*found.get("template_values", ()), ("reasoning_effort", word))
    return {**found, "thinking": True, "thinking_budget": budget, "template_values": values}


def _template_values(given: Mapping[str, Any]) -> dict[str, Any]:
    values: list[tuple[str, str | int | float | bool]] = []
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name in _RESERVED or not name.isidentifier() or len(name) > MAX_VALUE:
            raise BadRequest(f"`chat_template_kwargs` cannot set {name[:50]!r}: leave it out.")
        if name in ("enable_thinking", "thinking") and isinstance(value, bool):
            found["thinking"] = value
        elif isinstance(value, str | int | float) and len(str(value)) <= MAX_VALUE:
            values.append((name, value))
        elif value is not None:
            raise BadRequest(
                f"`chat_template_kwargs` takes short texts, numbers, true and false:"
                f" leave {name[:50]!r} out."
            )
    return found | {"template_values": tuple(values)}
