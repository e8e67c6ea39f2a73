"""A Qwen3 decoder in plain PyTorch, with explicit positions and mlx-lm's parameter names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

FAST = 8  # rotary pairs, from the fastest, that distinguish neighbours
WIDTHS = (16, 14, 8)  # entries of the codes of the token before, the one before it, the last dozen
EMBEDDING = 0.3  # the size of an embedding's entries
PIECE = 128  # queries whose attention is computed at once
SLOW = 13  # rotary pairs from here on turn slowly enough to match a word's identity


@dataclass(frozen=True)
class Shape:
    """The sizes of a model, under the names of its config.json."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    head_dim: int = 64
    vocab_size: int = 6144
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e10
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
        }


SHAPES = {
    "sapling": Shape(192, 4, 4, 4, 512),  # what the target was before it was grown
    "target": Shape(192, 5, 6, 6, 512),
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


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention (B, H, T, D), a block of queries at a time.

    Compiled, this takes a third of the time of PyTorch's own on a CPU in bfloat16, up to 2,048.
    """
    length, out = q.shape[2], []
    if length > 2048 or q.device.type != "cpu":
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    for start in range(0, length, PIECE):
        end = min(length, start + PIECE)
        scores = q[:, :, start:end] @ k[:, :, :end].transpose(-1, -2) * q.shape[-1] ** -0.5
        hidden = torch.ones(end - start, end, dtype=torch.bool, device=q.device).triu(start + 1)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        out.append(weights.to(v.dtype) @ v[:, :, :end])
    return torch.cat(out, 2)


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
        out = attend(q, k, v)
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
    """Pre-norm attention and MLP with residual connections."""

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

    def __init__(self, shape: Shape, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(layers)
        self.norm = Norm(shape.hidden_size, shape.rms_norm_eps)


class LanguageModel(nn.Module):
    """A decoder with tied embeddings. Its attention turns `rotary_dim` of each head's dimensions by
    the token's position."""

    def __init__(self, shape: Shape, decoder: Decoder, rotary_dim: int) -> None:
        super().__init__()
        self.shape, self.rotary_dim = shape, rotary_dim
        self.model = decoder

    def initialise(self) -> None:
        """Draw new matrices."""
        deep = (2 * self.shape.num_hidden_layers) ** -0.5
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                std = 0.02 if "embed" in name else parameter.shape[1] ** -0.5
                last = name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter, std=std * (deep if last else 1.0))

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine, (B, 1, T, rotary pairs), of these positions (B, T)."""
        half = self.rotary_dim // 2
        powers = torch.arange(half, dtype=torch.float32, device=positions.device) / half
        angles = positions[:, None, :, None].float() * self.shape.rope_theta**-powers
        return angles.cos(), angles.sin()

    def hidden(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Last hidden states (B, T, hidden) of ids (B, T) at these positions (B, T)."""
        cos, sin = self.angles(positions)
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        out: Tensor = self.model.norm(x)
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores over the vocabulary."""
        return F.linear(hidden, self.model.embed_tokens.weight)


class Model(LanguageModel):
    """Qwen3."""

    def __init__(self, shape: Shape) -> None:
        blocks = (Block(shape) for _ in range(shape.num_hidden_layers))
        super().__init__(shape, Decoder(shape, blocks), shape.head_dim)
        self.initialise()


def saved_weights(path: Path) -> dict[str, Tensor]:
    """The weights of a checkpoint or of an exported folder of the pair, on the CPU."""
    if path.is_dir():
        return load_file(path / "model.safetensors")
    weights: dict[str, Tensor] = torch.load(path, map_location="cpu")["model"]
    return weights


def at_offset(shape: Shape, offset: float, pairs: range) -> tuple[Tensor, Tensor]:
    """A query and a key (head_dim,): their product is highest for the key `offset` tokens before.

    The faster the rotary `pairs` used, the sharper.
    """
    half = shape.head_dim // 2
    used = torch.arange(pairs.start, pairs.stop)
    angles = shape.rope_theta ** -(used / half) * offset
    query, key = torch.zeros(shape.head_dim), torch.zeros(shape.head_dim)
    key[used] = 1
    query[used] = angles.cos()
    query[half + used] = -angles.sin()
    return query, key


@torch.no_grad()
def prime(model: Model, reply: int) -> None:
    """Initialises the first layers as a rough induction circuit, which training then refines.

    Layer 0: head 0 attends one token back, head 1 two, head 2 over about the last dozen, and each
    writes a code of what it saw; head 3 marks whether an answer has started. Layer 1 finds
    positions with the same previous tokens and copies the token there (Olsson et al., 2209.11895);
    a head of layer 2 does the same among earlier answers and subtracts what it finds, so that the
    next of several values follows. A model with one head has the first of each.
    """
    shape = model.shape
    size, d, half = shape.hidden_size, shape.head_dim, shape.head_dim // 2
    heads = shape.num_attention_heads
    layers = [layer.self_attn for layer in model.model.layers]
    first = layers[0]
    embedding = model.model.embed_tokens.weight
    embedding *= EMBEDDING / embedding.std()
    embedding[:, 0] = 4 * EMBEDDING  # a constant for heads that attend by position
    model.model.norm.weight.fill_(0.5)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight *= EMBEDDING
        layer.mlp.down_proj.weight *= EMBEDDING
    slow = torch.cat((torch.arange(SLOW, half), torch.arange(half + SLOW, d)))
    for attention, sharp in ((first, 2.2), (layers[1], 1.8)):
        attention.q_norm.weight.fill_(sharp)
        attention.k_norm.weight.fill_(sharp)
    # Orthonormal rows without the constant: to read a token, and to write codes.
    basis = torch.linalg.qr(torch.randn(size - 1, size - 1))[0]
    basis = torch.cat((torch.zeros(size - 1, 1), basis), 1)
    widths = WIDTHS if heads > 1 else (len(slow),)
    code = basis[: max(widths)]
    written = basis[d : d + sum(widths)].split(widths)
    offsets = ((1, range(FAST)), (2, range(FAST)), (6, range(2, 7)))
    for head, width in enumerate(widths):
        rows = slice(head * d, (head + 1) * d)
        offset, pairs = offsets[head]
        query, key = at_offset(shape, offset, pairs)
        first.q_proj.weight[rows] *= 0.1
        first.q_proj.weight[rows, 0] = query
        first.k_proj.weight[rows] *= 0.1
        first.k_proj.weight[rows, 0] = key
        gain = 2 if head < 2 else 3  # the mean of a dozen codes is small
        first.v_proj.weight[rows.start : rows.start + width] = code[:width]
        first.o_proj.weight[:, rows.start : rows.start + width] = gain * EMBEDDING * written[head].T
    for head in range(heads):
        rows = slice(head * d, (head + 1) * d)
        # Head 0 of layer 1 matches one token, the others as many codes as there are.
        _match(layers[1], rows, slow, code, written[: 1 if head == 0 else len(widths)])
        seen = basis[torch.randperm(size - 1)[:d]]
        layers[1].v_proj.weight[rows] = seen
        layers[1].o_proj.weight[:, rows] = 8 * EMBEDDING / heads * seen.T
    if heads > 3 and len(layers) > 2:
        _prime_subtraction(model, reply, basis, slow, code, written)


def _match(
    attention: Attention, rows: slice, slow: Tensor, code: Tensor, written: tuple[Tensor, ...]
) -> None:
    """A head (its rows) that finds keys whose previous tokens are the query's last ones."""
    attention.q_proj.weight[rows] *= 0.1
    attention.k_proj.weight[rows] *= 0.1
    at = 0
    for back, where in enumerate(written):
        width = min(len(where), len(slow) - at)
        entries = rows.start + slow[at : at + width]
        now = (code, written[0], where)[back]  # the previous dozen is nearly the same dozen
        attention.q_proj.weight[entries] = now[:width]
        attention.k_proj.weight[entries] = where[:width]
        at += width


def _prime_subtraction(
    model: Model, reply: int, basis: Tensor, slow: Tensor, code: Tensor, written: tuple[Tensor, ...]
) -> None:
    """Head 3 of layer 0 marks tokens after the start of a reply; head 0 of layer 2 subtracts what
    followed the same words there."""
    d, first = model.shape.head_dim, model.model.layers[0].self_attn
    subtract = model.model.layers[2].self_attn
    embedding = model.model.embed_tokens.weight
    marker, mark = basis[-1], basis[-2]
    embedding[reply] += 8 * EMBEDDING * marker
    rows, entry = slice(3 * d, 4 * d), int(slow[-1])
    for projection in (first.q_proj, first.k_proj):
        projection.weight[rows] *= 0.1
    first.q_proj.weight[rows.start + entry, 0] = 2
    first.k_proj.weight[rows.start + entry] = 4 * marker
    first.v_proj.weight[rows.start] = marker
    first.o_proj.weight[:, rows.start] = 2 * EMBEDDING * mark
    rows = slice(0, d)
    _match(subtract, rows, slow[:-1], code, written)
    subtract.q_norm.weight.fill_(1.8)
    subtract.k_norm.weight.fill_(1.8)
    subtract.q_proj.weight[entry, 0] = 0.5
    subtract.k_proj.weight[entry] = 2 * mark
    seen = basis[torch.randperm(len(basis))[:d]]
    subtract.v_proj.weight[rows] = seen
    subtract.o_proj.weight[:, rows] = -EMBEDDING * seen.T
