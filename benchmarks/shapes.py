"""Model pairs with random weights and the shapes of real ones."""

from __future__ import annotations

import json
import shutil
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from app.chat import wording
from app.errors import UserError
from app.models.embedded import EMBEDDED, target_path

SMALL = "small"


@cache
def shapes() -> dict[str, dict[str, dict[str, Any]]]:
    """The configs of target and draft by the name of the shape."""
    text = (Path(__file__).parent / "shapes.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def random_pair(shape: str, scale: float = 1.0, bits: int | None = None) -> tuple[Any, Any]:
    """Target and draft with random weights, in bfloat16 on a GPU, quantised to `bits` unless None.
    `scale`: share of the layers to build. Raises UserError for an unknown shape, or if the pair
    does not fit into memory."""
    found = configs_of(shape)
    return _build(found["target"], scale, bits), _build(found["draft"], scale, bits)


def save_target(folder: Path, shape: str, scale: float = 1.0) -> dict[str, Any]:
    """Write a model folder with a random target and the embedded target's tokenizer. Returns its
    config. Raises UserError as `random_pair` does."""
    import mlx.core as mx

    source = target_path()
    vocabulary = json.loads((source / "config.json").read_text("utf-8"))["vocab_size"]
    config = {**configs_of(shape)["target"], "vocab_size": vocabulary}
    model = _build(config, scale, None)
    config |= {"num_hidden_layers": len(model.layers)}
    for path in source.iterdir():
        if path.suffix != ".safetensors" and path.name != "config.json":
            shutil.copyfile(path, folder / path.name)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    arrays = dict(zip(_names(model), weights(model), strict=True))
    mx.save_safetensors(str(folder / "model.safetensors"), arrays, metadata={"format": "mlx"})
    return config


def configs_of(shape: str) -> dict[str, dict[str, Any]]:
    """The configs of target and draft. Raises UserError for an unknown shape."""
    if shape not in shapes():
        known = ", ".join(shapes())
        raise UserError(f"There is no shape {shape!r}", f"choose one of {known}")
    return shapes()[shape]


def shape_name(text: str) -> str:
    """The name of a shape, or that of the embedded pair. Raises UserError for others."""
    if text != EMBEDDED:
        configs_of(text)
    return text


def _build(config: dict[str, Any], scale: float, bits: int | None) -> Any:
    import mlx.core as mx
    from mlx.nn.layers.quantized import quantize
    from mlx_lm.utils import _get_classes

    from app.engine.backend import memory

    kinds = config.get("full_attention_interval") or config.get("sliding_window_pattern") or 1
    layers = (
        max(round(config["num_hidden_layers"] * scale / kinds), 1) * kinds
    )  # at least one layer of each kind
    model_class, arguments = _get_classes(config)
    model = model_class(arguments.from_dict({**config, "num_hidden_layers": layers}))
    if mx.default_device().type != mx.DeviceType.cpu:
        model.set_dtype(mx.bfloat16)
    whole = max(array.nbytes for array in weights(model))
    if bits is not None:
        quantize(model, bits=bits)
    arrays = weights(model)  # lazy, not allocated yet
    try:
        needed = sum(each.nbytes for each in arrays) + (whole if bits else 0)
        memory.check_fits({"loading": "it"}, needed)
    except memory.NotEnoughMemory as error:
        advice = "build fewer layers with a lower --scale, or quantise with --bits 4"
        problem = wording.problem(error.failure)
        raise UserError(f"This shape does not fit: {problem}", advice) from error
    for array in arrays:  # one by one, because each is large before it is quantised
        mx.eval(array)
    mx.eval(model.state)
    return model


def _names(model: Any) -> list[str]:
    from mlx.utils import tree_flatten

    leaves: list[tuple[str, Any]] = tree_flatten(model.parameters())  # type: ignore[assignment]
    return [name for name, _ in leaves]


def weights(model: Any) -> list[Any]:
    from mlx.utils import tree_flatten

    leaves: list[tuple[str, Any]] = tree_flatten(model.parameters())  # type: ignore[assignment]
    return [array for _, array in leaves]
