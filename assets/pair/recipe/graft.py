"""Makes the start of the hybrid's training from the trained target of the pair.

The target's layers 1 and 2 find what followed the same tokens before. They need layer 0, whose
heads attend to the tokens just before. Its other layers matter little. So the hybrid's two layers
of attention begin as copies of these two, the delta layers before them learn what layer 0 puts out,
and the delta layers between them put out zero. The MTP head begins as a copy of layer 1.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from corpus import LICENCES, training_texts
from data import Mix, Rows
from grow import fitted
from hybrid import HYBRID, Hybrid, HybridBlock
from model import SHAPES, Block, Model, saved_weights
from tokenizers import Tokenizer
from torch import Tensor
from train import optimisers

COPIES = ((1, 3), (2, 7))  # layers of the target, and of the hybrid
LEARNS = 3  # the first layers of the hybrid learn the target's first
LENGTH, ROWS = 512, 16


def layers_until(model: Model | Hybrid, last: int, ids: Tensor, positions: Tensor) -> Tensor:
    """The output (B, T, hidden) of the first `last` layers."""
    angles = model.angles(positions)
    x: Tensor = model.model.embed_tokens(ids)
    for layer in model.model.layers[:last]:
        x = layer(x, *angles)
    return x


@torch.no_grad()
def copy_attention(old: Block, new: HybridBlock) -> None:
    """Copies attention and norms. The rotary pairs that turn slowest become those that do not turn,
    and the gate is open by half."""
    shape, source, to = new.self_attn.shape, old.self_attn, new.self_attn
    d, half, heads = shape.head_dim, shape.rotary_dim // 2, shape.num_attention_heads
    pairs = torch.arange(d).view(2, d // 2)
    order = torch.cat((pairs[:, :half].flatten(), pairs[:, half:].flatten()))
    queries = source.q_proj.weight.view(heads, d, -1)[:, order]
    to.q_proj.weight.copy_(torch.cat((queries, torch.zeros_like(queries)), 1).flatten(0, 1))
    to.k_proj.weight.copy_(source.k_proj.weight.view(heads, d, -1)[:, order].flatten(0, 1))
    to.v_proj.weight.copy_(source.v_proj.weight)
    to.o_proj.weight.copy_(2 * source.o_proj.weight)
    for name in ("q_norm", "k_norm"):
        getattr(to, name).weight.copy_(getattr(source, name).weight[order])
    new.input_layernorm.load_state_dict(old.input_layernorm.state_dict())


@torch.no_grad()
def copy_mlp(old: Block, new: HybridBlock, active: Tensor) -> None:
    """Copies the neurons that put out most; `active` (neurons,) is their mean absolute value."""
    source, to = old.mlp, new.mlp
    count = to.down_proj.weight.shape[1]
    kept = (active * source.down_proj.weight.norm(dim=0)).topk(count).indices.sort().values
    to.gate_proj.weight.copy_(source.gate_proj.weight[kept])
    to.up_proj.weight.copy_(source.up_proj.weight[kept])
    to.down_proj.weight.copy_(source.down_proj.weight[:, kept])
    new.post_attention_layernorm.load_state_dict(old.post_attention_layernorm.state_dict())


@torch.no_grad()
def graft(target: Model, hybrid: Hybrid, ids: Tensor, positions: Tensor) -> None:
    """Copies embeddings, last norm and two layers; the delta layers between these put out zero."""
    active: dict[int, Tensor] = {}
    for index, layer in enumerate(target.model.layers):
        layer.mlp.down_proj.register_forward_pre_hook(
            lambda _, read, index=index: active.update({index: read[0].abs().flatten(0, 1).mean(0)})
        )
    target.hidden(ids, positions)
    hybrid.model.embed_tokens.load_state_dict(target.model.embed_tokens.state_dict())
    hybrid.model.norm.load_state_dict(target.model.norm.state_dict())
    old, new = target.model.layers, hybrid.model.layers
    for source, to in COPIES:
        copy_attention(old[source], new[to])
        copy_mlp(old[source], new[to], active[source])
    copy_mlp(old[0], new[LEARNS - 1], active[0])
    for layer in new[COPIES[0][1] + 1 : COPIES[1][1]]:
        layer.linear_attn.out_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()


@torch.no_grad()
def graft_head(target: Model, hybrid: Hybrid, ids: Tensor, positions: Tensor) -> None:
    """Copies the target's layer 1 and last norm into the MTP head, and fits its input to what the
    target's layer 0 puts out at the next token."""
    head = hybrid.mtp
    hidden = head.pre_fc_norm_hidden(hybrid.hidden(ids, positions)[:, :-1])
    following = head.pre_fc_norm_embedding(hybrid.model.embed_tokens(ids[:, 1:]))
    wanted = layers_until(target, 1, ids, positions)[:, 1:]
    read = torch.cat((following, hidden), -1).flatten(0, 1)
    head.fc.weight.copy_(fitted(read, wanted.flatten(0, 1)))
    missed = (head.fc(read) - wanted.flatten(0, 1)).pow(2).mean() / wanted.var()
    print(f"MTP head: missed {missed:.4f}", flush=True)
    source, to = target.model.layers[COPIES[0][0]], head.layers[0]
    active: list[Tensor] = []
    hook = source.mlp.down_proj.register_forward_pre_hook(
        lambda _, neurons: active.append(neurons[0].abs().flatten(0, 1).mean(0))
    )
    target.hidden(ids, positions)
    hook.remove()
    copy_attention(source, to)
    copy_mlp(source, to, active[0])
    head.norm.load_state_dict(target.model.norm.state_dict())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--licences", type=Path, default=LICENCES)
    parser.add_argument("--start", type=Path, required=True, help="the folder of the target")
    parser.add_argument("--out", type=Path, required=True, help="the checkpoint to write")
    parser.add_argument("--million", type=float, default=2, help="tokens to learn from, millions")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=51)
    parser.add_argument("--threads", type=int, default=2)
    a = parser.parse_args()
    torch.manual_seed(a.seed)
    torch.set_num_threads(a.threads)
    target, hybrid = Model(SHAPES["target"]), Hybrid(HYBRID)
    target.load_state_dict(saved_weights(a.start))
    tokenizer = Tokenizer.from_file(str(a.tokenizer / "tokenizer.json"))
    mix = Mix(LENGTH, gapped=0.3, reach=65536)
    batches = Rows(tokenizer, training_texts(a.licences), mix, a.seed).batches(ROWS)
    graft(target, hybrid, *(torch.from_numpy(part) for part in next(batches)[:2]))
    for parameter in hybrid.model.embed_tokens.parameters():
        parameter.requires_grad_(False)
    for layer in hybrid.model.layers[:LEARNS]:
        layer.forward = torch.compile(layer.forward, dynamic=False)
    optimizers = optimisers(hybrid, a.rate)
    steps, started = int(1e6 * a.million / (LENGTH * ROWS)), time.monotonic()
    for step in range(steps):
        ids, positions = (torch.from_numpy(part) for part in next(batches)[:2])
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                read = layers_until(target, 0, ids, positions)
                wanted = layers_until(target, 1, ids, positions)
            out = layers_until(hybrid, LEARNS, ids, positions)
        missed = (out - wanted).float().pow(2).mean(-1) / (wanted - read).float().pow(2).mean(-1)
        loss = missed.mean()
        loss.backward()
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = a.rate * min(1, (step + 1) / 20, 0.05 + 1.5 * (1 - step / steps))
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if step % 10 == 0:
            print(
                f"{time.monotonic() - started:6.0f} s  step {step:4d}  missed {loss:.4f}",
                flush=True,
            )
    graft_head(target, hybrid, *(torch.from_numpy(part) for part in next(batches)[:2]))
    torch.save({"model": hybrid.state_dict()}, a.out)


if __name__ == "__main__":
    main()
