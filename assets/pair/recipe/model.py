"""A Qwen3 decoder in plain PyTorch, with explicit positions and mlx-lm's parameter names."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FAST = 8  # rotary pairs, from the fastest, that tell neighbours apart
EMBEDDING = 0.3  # the size of an embedding's entries
SLOW = 10  # rotary pairs from here on turn slowly enough to match what a word is


@dataclass(frozen=True)
class Shape:
    """The sizes of a model, under the names of its config.json."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    head_dim: int = 64
    vocab_size: int = 4096
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e6
    max_position_embeddings: int = 131072

    def config(self) -> dict[str, object]:
        """The config.json of this model."""
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            **asdict(self),
            "hidden_act": "silu",
            "attention_bias": False,
            "tie_word_embeddings": True,
            "torch_dtype": "float32",
        }


SHAPES = {
    "target": Shape(128, 4, 2, 2, 512),
    "draft": Shape(128, 2, 1, 1, 320),
}


class Norm(nn.Module):
    """RMS normalisation over the last axis."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return (x * scale * self.weight).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates (B, H, T, D) by angles whose cos and sin are (B, 1, T, D / 2), halves convention."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


class Attention(nn.Module):
    """Grouped-query attention with normalised queries and keys."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        d, self.shape = shape.head_dim, shape
        self.q_proj = nn.Linear(shape.hidden_size, shape.num_attention_heads * d, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, shape.num_key_value_heads * d, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, shape.num_key_value_heads * d, bias=False)
        self.o_proj = nn.Linear(shape.num_attention_heads * d, shape.hidden_size, bias=False)
        self.q_norm, self.k_norm = Norm(d, shape.rms_norm_eps), Norm(d, shape.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        rows, length, _ = x.shape
        q, k, v = (
            p(x).view(rows, length, -1, self.shape.head_dim).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotate(self.q_norm(q), cos, sin), rotate(self.k_norm(k), cos, sin)
        groups = self.shape.num_attention_heads // self.shape.num_key_value_heads
        if groups > 1:
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(rows, length, -1))


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Block(nn.Module):
    """Attention and MLP, each behind a norm and beside a residual path."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(shape), Mlp(shape)
        self.input_layernorm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.post_attention_layernorm = Norm(shape.hidden_size, shape.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Decoder(nn.Module):
    """Embeddings, blocks and the last norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.num_hidden_layers))
        self.norm = Norm(shape.hidden_size, shape.rms_norm_eps)


class Model(nn.Module):
    """Qwen3 with tied embeddings."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Decoder(shape)
        deep = (2 * shape.num_hidden_layers) ** -0.5
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                std = 0.02 if "embed" in name else parameter.shape[1] ** -0.5
                scale = deep if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
                nn.init.normal_(parameter, std=std * scale)

    def hidden(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Last hidden states (B, T, hidden) of ids (B, T) that stand at these positions (B, T)."""
        half = self.shape.head_dim // 2
        powers = torch.arange(half, dtype=torch.float32, device=ids.device) / half
        angles = positions[:, None, :, None].float() * self.shape.rope_theta**-powers
        cos, sin = angles.cos(), angles.sin()
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        out: Tensor = self.model.norm(x)
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores over the vocabulary."""
        return F.linear(hidden, self.model.embed_tokens.weight)


def previous(shape: Shape, offset: int) -> tuple[Tensor, Tensor]:
    """A query and a key (head_dim,): their product is highest for the key `offset` before."""
    half = shape.head_dim // 2
    angles = shape.rope_theta ** -(torch.arange(FAST) / half)
    query, key = torch.zeros(shape.head_dim), torch.zeros(shape.head_dim)
    key[:FAST] = 1
    query[:FAST] = (angles * offset).cos()
    query[half : half + FAST] = -(angles * offset).sin()
    return query, key


@torch.no_grad()
def prime(model: Model) -> None:
    """Starts the first two layers as a rough induction circuit, which training then refines.

    Layer 0 looks one or two tokens back and writes what it saw; layer 1 looks for places whose
    previous token is the current one and copies what stands there (Olsson et al., 2209.11895).
    Left to training alone, the draft did not find this within 6 M tokens.
    """
    shape = model.shape
    size, d, half = shape.hidden_size, shape.head_dim, shape.head_dim // 2
    groups = shape.num_key_value_heads
    per_group = shape.num_attention_heads // groups
    first, second = model.model.layers[0].self_attn, model.model.layers[1].self_attn
    embedding = model.model.embed_tokens.weight
    embedding *= EMBEDDING / embedding.std()
    embedding[:, 0] = 4 * EMBEDDING  # a constant for position-only heads
    model.model.norm.weight.fill_(0.5)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight *= EMBEDDING
        layer.mlp.down_proj.weight *= EMBEDDING
    slow = torch.cat((torch.arange(SLOW, half), torch.arange(half + SLOW, d)))
    first.q_norm.weight.fill_(2.2)
    first.k_norm.weight.fill_(2.2)
    second.q_norm.weight.fill_(1.8)
    second.k_norm.weight.fill_(1.8)
    basis = torch.linalg.qr(torch.randn(size - 1, size - 1))[0]
    # Orthonormal rows, blind to the constant.
    basis = torch.cat((torch.zeros(size - 1, 1), basis), 1)
    for group in range(groups):
        rows = slice(group * d, (group + 1) * d)
        seen = basis[2 * group * d : (2 * group + 1) * d]  # (d, size): what is read of a token
        first.v_proj.weight[rows] = seen
        second.v_proj.weight[rows] = seen
        for member in range(per_group):
            head = group * per_group + member
            columns = slice(head * d, (head + 1) * d)
            query, key = previous(shape, 1 + member)
            first.q_proj.weight[columns] *= 0.1
            first.q_proj.weight[columns, 0] = query
            second.q_proj.weight[columns] *= 0.1
            second.q_proj.weight[columns.start + slow] = seen[: len(slow)]
            second.o_proj.weight[:, columns] = 8 * EMBEDDING / shape.num_attention_heads * seen.T
            written = basis[(2 * group + 1) * d : (2 * group + 2) * d]
            written = torch.nn.functional.pad(written, (0, 0, 0, d - len(written)))
            if member == 0:
                first.o_proj.weight[:, columns] = 2 * EMBEDDING * written.T
                first.k_proj.weight[rows] *= 0.1
                first.k_proj.weight[rows, 0] = key
                second.k_proj.weight[rows] *= 0.1
                second.k_proj.weight[rows.start + slow] = written[: len(slow)]


@torch.no_grad()
def grow(model: Model, smaller: dict[str, Tensor]) -> None:
    """Starts a model as the function of a smaller one of the same width.

    Further heads, hidden units and layers are there, but write nothing yet, since what they write
    through is zero.
    """
    for name, parameter in model.named_parameters():
        known = smaller.get(name)
        if known is not None and known.shape == parameter.shape:
            parameter.copy_(known)
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            parameter.zero_()
        if known is not None and known.ndim == 2:
            parameter[: known.shape[0], : known.shape[1]] = known
