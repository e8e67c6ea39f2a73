"""A small Qwen3.5 in plain PyTorch: gated delta layers, gated attention and a head for MTP.

Three layers of the gated delta rule (Yang et al., 2412.06464) are followed by one of attention. The
multi-token prediction (MTP) head predicts the token after the next one. Explicit positions turn the
queries and keys of attention; the delta layers take tokens in their order. Norms multiply by their
weight here; `published` makes them zero-centred, as Qwen's checkpoints are.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import torch
from model import SHAPES, Decoder, LanguageModel, Mlp, Model, Norm, Shape, attend, rotate
from torch import Tensor, nn
from torch.nn import functional as F

CHUNK, GPU_CHUNK = 32, 64  # tokens of the delta rule that are computed at once
L2_EPS = 1e-6
SLOWEST, FASTEST = 1e-3, 0.5  # how much of a head's state decays with a token, at first


@dataclass(frozen=True)
class HybridShape(Shape):
    """The sizes of a hybrid, under the names of its config.json."""

    linear_num_key_heads: int = 2
    linear_num_value_heads: int = 4
    linear_key_head_dim: int = 32
    linear_value_head_dim: int = 32
    linear_conv_kernel_dim: int = 4
    full_attention_interval: int = 4
    mtp_num_hidden_layers: int = 1
    partial_rotary_factor: float = 0.5

    @property
    def rotary_dim(self) -> int:
        return int(self.head_dim * self.partial_rotary_factor)

    def is_attention(self, layer: int) -> bool:
        return (layer + 1) % self.full_attention_interval == 0

    def config(self) -> dict[str, object]:
        """The config.json of this model."""
        text = asdict(self)
        rope = {
            "rope_type": "default",
            "rope_theta": text.pop("rope_theta"),
            "partial_rotary_factor": text.pop("partial_rotary_factor"),
        }
        kinds = ("linear_attention", "full_attention")
        return {
            "architectures": ["Qwen3_5ForConditionalGeneration"],
            "model_type": "qwen3_5",
            "tie_word_embeddings": True,
            "text_config": {
                "model_type": "qwen3_5_text",
                **text,
                "rope_parameters": rope,
                "layer_types": [kinds[self.is_attention(i)] for i in range(self.num_hidden_layers)],
                "hidden_act": "silu",
                "attention_bias": False,
                "tie_word_embeddings": True,
            },
        }


HYBRID = HybridShape(192, 8, 6, 6, 384, rope_theta=1e5)


def delta_rule(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    """The gated delta rule for (B, H, T, D) in float32, a chunk of tokens at a time (WY form).

    `decay` (B, H, T) is the logarithm of the share of the state that stays, `beta` (B, H, T) the
    share of a key's old value that is replaced.
    """
    rows, heads, length, _ = q.shape
    chunk = CHUNK if q.device.type == "cpu" else GPU_CHUNK
    padding = -length % chunk
    if padding:
        q, k, v = (F.pad(x, (0, 0, 0, padding)) for x in (q, k, v))
        decay, beta = F.pad(decay, (0, padding)), F.pad(beta, (0, padding))
    q, k, v = (x.reshape(rows, heads, -1, chunk, x.shape[-1]) for x in (q, k, v))
    total = decay.reshape(rows, heads, -1, chunk).cumsum(-1)
    beta = beta.reshape(rows, heads, -1, chunk, 1)
    causal = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).tril()
    between = (total[..., :, None] - total[..., None, :]).masked_fill(~causal, float("-inf")).exp()
    since = total.exp()[..., None]
    until = (total[..., -1:] - total).exp()[..., None]
    written = (beta * (k @ k.transpose(-1, -2)) * between).tril(-1)
    both = torch.cat((beta * v, beta * since * k), -1)
    both = torch.linalg.solve_triangular(written, both, upper=False, unitriangular=True)
    values, erased = both.split((v.shape[-1], k.shape[-1]), -1)
    states = _states(total[..., -1].exp(), (until * k).transpose(-1, -2), values, erased)
    values = values - erased @ states
    out = (since * q) @ states + (q @ k.transpose(-1, -2) * between) @ values
    return out.reshape(rows, heads, -1, v.shape[-1])[:, :, :length]


@torch.compiler.disable
def _states(stays: Tensor, keys: Tensor, values: Tensor, erased: Tensor) -> Tensor:
    """The states before every chunk, (B, H, N, key size, value size)."""
    state = torch.zeros_like(keys[:, :, 0] @ values[:, :, 0])
    states = []
    for s, k, v, e in zip(*(x.unbind(2) for x in (stays, keys, values, erased)), strict=True):
        states.append(state)
        state = s[..., None, None] * state + k @ (v - e @ state)
    return torch.stack(states, 2)


class GatedNorm(Norm):
    """RMS normalisation times SiLU of a gate."""

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x) * F.silu(gate.float())


class DeltaLayer(nn.Module):
    """A short causal convolution and the gated delta rule."""

    def __init__(self, shape: HybridShape) -> None:
        super().__init__()
        self.shape = shape
        self.keys = shape.linear_num_key_heads * shape.linear_key_head_dim
        self.values = shape.linear_num_value_heads * shape.linear_value_head_dim
        width, heads = 2 * self.keys + self.values, shape.linear_num_value_heads
        kernel = shape.linear_conv_kernel_dim
        self.in_proj_qkv = nn.Linear(shape.hidden_size, width, bias=False)
        self.in_proj_z = nn.Linear(shape.hidden_size, self.values, bias=False)
        self.in_proj_b = nn.Linear(shape.hidden_size, heads, bias=False)
        self.in_proj_a = nn.Linear(shape.hidden_size, heads, bias=False)
        self.conv1d = nn.Conv1d(width, width, kernel, groups=width, bias=False)
        rates = torch.logspace(math.log10(SLOWEST), math.log10(FASTEST), heads)
        self.A_log = nn.Parameter(torch.zeros(heads))
        self.dt_bias = nn.Parameter(rates.expm1().log())
        self.norm = GatedNorm(shape.linear_value_head_dim, shape.rms_norm_eps)
        self.out_proj = nn.Linear(self.values, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        shape, (rows, length, _) = self.shape, x.shape
        qkv, kernel = self.in_proj_qkv(x).float(), shape.linear_conv_kernel_dim
        padded = F.pad(qkv, (0, 0, kernel - 1, 0))
        taps = self.conv1d.weight[:, 0].unbind(1)
        qkv = F.silu(sum(padded[:, i : i + length] * tap for i, tap in enumerate(taps)))
        q, k, v = (
            part.view(rows, length, heads, -1).transpose(1, 2)
            for part, heads in zip(
                qkv.split((self.keys, self.keys, self.values), -1),
                (shape.linear_num_key_heads,) * 2 + (shape.linear_num_value_heads,),
                strict=True,
            )
        )
        q, k = (y * torch.rsqrt(y.pow(2).sum(-1, keepdim=True) + L2_EPS) for y in (q, k))
        groups = shape.linear_num_value_heads // shape.linear_num_key_heads
        q, k = (y.repeat_interleave(groups, 1) for y in (q * q.shape[-1] ** -0.5, k))
        decay = -self.A_log.exp() * F.softplus(self.in_proj_a(x).float() + self.dt_bias)
        beta = self.in_proj_b(x).float().sigmoid()
        with torch.autocast(x.device.type, enabled=False):
            out = delta_rule(q, k, v, decay.transpose(1, 2), beta.transpose(1, 2))
        gate = self.in_proj_z(x).view(rows, length, shape.linear_num_value_heads, -1)
        out = self.norm(out.transpose(1, 2), gate).to(x.dtype)
        return self.out_proj(out.reshape(rows, length, -1))


class GatedAttention(nn.Module):
    """Attention with a gate on its output and rotary positions in a part of each head."""

    def __init__(self, shape: HybridShape) -> None:
        super().__init__()
        d, self.shape = shape.head_dim, shape
        self.q_proj = nn.Linear(shape.hidden_size, shape.num_attention_heads * 2 * d, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, shape.num_key_value_heads * d, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, shape.num_key_value_heads * d, bias=False)
        self.o_proj = nn.Linear(shape.num_attention_heads * d, shape.hidden_size, bias=False)
        self.q_norm, self.k_norm = Norm(d, shape.rms_norm_eps), Norm(d, shape.rms_norm_eps)

    def _turned(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        turning, still = x.split((2 * cos.shape[-1], x.shape[-1] - 2 * cos.shape[-1]), -1)
        return torch.cat((rotate(turning, cos, sin), still), -1)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        shape, (rows, length, _) = self.shape, x.shape
        q, gate = self.q_proj(x).view(rows, length, -1, 2 * shape.head_dim).chunk(2, -1)
        k, v = (p(x).view(rows, length, -1, shape.head_dim) for p in (self.k_proj, self.v_proj))
        q, k, v = (y.transpose(1, 2) for y in (self.q_norm(q), self.k_norm(k), v))
        q, k = self._turned(q, cos, sin), self._turned(k, cos, sin)
        groups = shape.num_attention_heads // shape.num_key_value_heads
        if groups > 1:
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        out = attend(q, k, v).transpose(1, 2)
        return self.o_proj((out * gate.sigmoid()).reshape(rows, length, -1))


class HybridBlock(nn.Module):
    """Pre-norm mixer (attention or delta rule) and MLP with residual connections."""

    def __init__(self, shape: HybridShape, attention: bool) -> None:
        super().__init__()
        self.is_attention = attention
        if attention:
            self.self_attn = GatedAttention(shape)
        else:
            self.linear_attn = DeltaLayer(shape)
        self.mlp = Mlp(shape)
        self.input_layernorm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.post_attention_layernorm = Norm(shape.hidden_size, shape.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        read = self.input_layernorm(x)
        x = x + (self.self_attn(read, cos, sin) if self.is_attention else self.linear_attn(read))
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class MtpHead(nn.Module):
    """Predicts the token after the next one, from the next one's embedding and the last hidden
    state (after the last norm) of the token before it, at that token's position."""

    def __init__(self, shape: HybridShape) -> None:
        super().__init__()
        size, eps = shape.hidden_size, shape.rms_norm_eps
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden = Norm(size, eps), Norm(size, eps)
        self.fc = nn.Linear(2 * size, size, bias=False)
        self.layers = nn.ModuleList([HybridBlock(shape, attention=True)])
        self.norm = Norm(size, eps)

    def forward(self, hidden: Tensor, following: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        parts = self.pre_fc_norm_embedding(following), self.pre_fc_norm_hidden(hidden)
        x = self.fc(torch.cat(parts, -1))
        for layer in self.layers:
            x = layer(x, cos, sin)
        out: Tensor = self.norm(x)
        return out


class Hybrid(LanguageModel):
    """Qwen3.5 with an MTP head."""

    def __init__(self, shape: HybridShape) -> None:
        blocks = (HybridBlock(shape, shape.is_attention(i)) for i in range(shape.num_hidden_layers))
        super().__init__(shape, Decoder(shape, blocks), shape.rotary_dim)
        self.mtp = MtpHead(shape)
        self.initialise()

    def hidden_after_next(self, hidden: Tensor, following: Tensor, positions: Tensor) -> Tensor:
        """States (B, T, hidden) for the token after `following` (B, T), the next tokens' ids."""
        embedded = self.model.embed_tokens(following)
        out: Tensor = self.mtp(hidden, embedded, *self.angles(positions))
        return out


def published(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights under Qwen's names, with norms around zero."""
    renamed = {}
    for name, weight in weights.items():
        is_centred = "norm" in name and "linear_attn" not in name
        name = name.replace("model.", "model.language_model.", 1)
        renamed[name] = weight - 1 if is_centred else weight
    return renamed


def build(name: str) -> Model | Hybrid:
    """A new model of one of the shapes."""
    return Hybrid(HYBRID) if name == "hybrid" else Model(SHAPES[name])
