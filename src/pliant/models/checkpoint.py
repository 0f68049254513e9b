"""A folder with a configuration and weights becomes a model, or an error that says what does not fit.

Loading is strict: transformers would fill what a checkpoint lacks with random numbers and a warning; here each missing
or misshapen tensor but a new classifier's is an error. Nothing is fetched and no code from the folder runs.
"""

import inspect
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForImageClassification, PreTrainedModel, ViTConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES

from pliant.errors import ConfigError, ModelError, ModelNotFoundError
from pliant.models.loaded import check_float32
from pliant.models.preprocessing import first_line, read_json
from pliant.models.quiet import own_randomness, quiet

WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""What weights may lie in, safe formats first; pickled ones are read with `torch.load(weights_only=True)`."""

ATTENTION_IMPLEMENTATIONS = ("eager", "sdpa")
"""The ones that come with torch. A configuration can name others, up to a kernel fetched from a hub: never done."""

WELL_KNOWN = ("vit", "deit", "dinov2", "beit", "clip", "siglip", "swin", "timm_wrapper")
"""Named in messages, of all that transformers has."""

LEFT_OUT_PARTS = frozenset(
    {"pooler", "classifier", "cls_classifier", "distillation_classifier", "head", "head_dist", "score"}  # heads
    | {"lm_head", "cls", "predictions", "decoder", "mask_token", "projection_head"}  # of pretraining
    | {"text_model", "text_projection", "visual_projection", "logit_scale", "logit_bias"}  # of pairs of towers
    | {"position_ids", "relative_position_index", "attn_mask", "masked_bias", "inv_freq"}  # constants
)
"""Names inside a checkpoint of parts that a model may do without."""

LEFT_OUT_NORMS: dict[str, tuple[str, ...]] = {"beit": ("layernorm",), "data2vec-vision": ("layernorm",)}
"""Norms in front of a pretraining head, by model type; a classifier comes with one of its own, behind the pooling."""


def read_config(folder: Path) -> Any:
    """Read `config.json` of a folder in transformers' or timm's format, with everything taken out that fetches or runs.

    Raises:
        ModelNotFoundError: there is no such file.
        ModelError: it is for something that pliant does not load: an adapter, quantised weights, code of its own.
    """
    if (folder / "adapter_config.json").is_file():
        base = read_json(folder / "adapter_config.json").get("base_model_name_or_path", "its base model")
        raise ModelError(
            f"{folder} holds an adapter for {base!r}, not a whole model. Merge the two "
            "(peft: merge_and_unload, then save_pretrained) and give the merged model's folder."
        )
    if not (folder / "config.json").is_file():
        raise ModelNotFoundError(
            f"{folder} has no config.json, so it is no model folder in transformers' or timm's format."
        )
    raw = read_json(folder / "config.json")
    if raw.get("quantization_config"):
        raise ModelError(
            f"{folder} holds quantised weights; pliant measures and trains float32 weights. Give the original."
        )
    try:
        with quiet():
            config = AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
        _refuse_config(folder, raw, error)
    if getattr(config, "model_args", None):
        # timm's save_for_hf stores the number of classes here as well, where transformers' wrapper passes it twice.
        config.model_args = {k: v for k, v in config.model_args.items() if k != "num_classes"}
    if config.model_type == "vit_mae":
        # The same architecture, but its own class drops most patches at random in each pass, also when evaluating.
        with quiet():
            config = ViTConfig.from_dict({**config.to_dict(), "model_type": "vit", "architectures": ["ViTModel"]})
    for part in (config, *(getattr(config, name) for name in config.sub_configs if hasattr(config, name))):
        if getattr(part, "_attn_implementation", None) not in (None, *ATTENTION_IMPLEMENTATIONS):
            part._attn_implementation = None
    return config


def _refuse_config(folder: Path, raw: dict[str, Any], error: Exception) -> NoReturn:
    if raw.get("auto_map"):
        raise ModelError(
            f"{folder} needs Python code of its own (auto_map in config.json); pliant does not run code that comes "
            "with a model. Load it yourself and pass the object: pliant.models.from_module(model)."
        ) from error
    kind = raw.get("model_type") or raw.get("architecture")
    raise ModelError(
        f"{folder / 'config.json'} describes a model ({kind!r}) that the installed transformers and timm cannot build: "
        f"{first_line(error)}"
    ) from error


def build(
    folder: Path, config: Any, *, classes: Sequence[str] | None, seed: int
) -> tuple[PreTrainedModel, tuple[str, ...]]:
    """Load the weights of a folder into the model that `config` describes, in float32 and evaluation mode.

    Returns the model, and notes on what of the checkpoint was left out.

    Args:
        folder: where the weights are.
        config: from `read_config`; changed if classes are given.
        classes: names of a new classifier's classes; None keeps the model as its configuration states it.
        seed: of the new classifier.
    """
    if not any((folder / f).is_file() for f in WEIGHT_FILES):
        raise ModelNotFoundError(f"{folder} has no weights; expected one of {', '.join(WEIGHT_FILES)}.")
    factory, config = _prepare(config, classes)
    with own_randomness(seed):
        model, info = _from_pretrained(factory, folder, config)
        poolerless = _poolerless(factory, config, info)
        if poolerless:
            model, info = _from_pretrained(factory, folder, config, **poolerless)
    new = (*classifier_parameters(model), *_pooled_norms(model)) if classes is not None else ()
    notes = _check_complete(model, info, folder, new=new)
    if classes is not None:
        new_classifier(model, seed)
    check_float32(model, str(folder), "It is in a format that pliant does not load.")
    if poolerless:
        notes += ("the checkpoint has no pooler; none is built",)
    return model.eval(), notes


def build_random(
    folder: Path, config: Any, *, classes: Sequence[str] | None, seed: int
) -> tuple[PreTrainedModel, tuple[str, ...]]:
    """Build the model that `config` describes with random weights drawn under `seed`; only for who asks for it."""
    factory, config = _prepare(config, classes)
    with quiet(), own_randomness(seed):
        model = factory.from_config(config, dtype=torch.float32, trust_remote_code=False)
        if classes is not None:
            new_classifier(model, seed)
    check_float32(model, str(folder), "Its configuration asks for another precision than pliant trains in.")
    return model.eval(), (f"random weights, drawn under seed {seed}",)


def set_classes(config: Any, classes: Sequence[str]) -> None:
    """Write the classes into a configuration, and drop its choice of a special classification model."""
    names = [str(c) for c in classes]
    if len(names) < 2 or len(set(names)) != len(names):
        raise ConfigError(f"a classifier needs at least two classes with different names, got {names}.")
    config.num_labels = len(names)
    config.id2label = dict(enumerate(names))
    config.label2id = {name: i for i, name in enumerate(names)}
    config.problem_type = "single_label_classification"
    for name in ("label_names", "label_descriptions"):  # timm's own lists would be saved in place of the new classes
        if hasattr(config, name):
            delattr(config, name)
    config.architectures = []


def check_classifiable(config: Any) -> None:
    """Refuse an architecture that transformers has no image classification model for."""
    if config.model_type in MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES:
        return
    advice = " Use a timm checkpoint of it (timm/vit_..._dinov3...)." if "dinov3" in config.model_type else ""
    known = MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES
    raise ModelError(
        f"transformers has no image classification model for {config.model_type!r}, so it cannot get a classifier; "
        f"it can still be measured as a backbone.{advice} There is one for {len(known)} others, such as "
        f"{', '.join(n for n in WELL_KNOWN if n in known)}."
    )


def _prepare(config: Any, classes: Sequence[str] | None) -> tuple[Any, Any]:
    """Return the factory to build with and the configuration to give it."""
    if classes is not None:
        set_classes(config, classes)
        check_classifiable(config)
        return AutoModelForImageClassification, config
    architectures = config.architectures or []
    if config.model_type == "timm_wrapper" and not architectures:
        return (AutoModelForImageClassification if config.num_labels else AutoModel), config
    if any("ForImageClassification" in name for name in architectures):
        return AutoModelForImageClassification, config
    if hasattr(config, "vision_config") and hasattr(config, "text_config"):
        return AutoModel, config.vision_config  # of a pair of towers (CLIP, SigLIP) the one that takes images
    return AutoModel, config


def _from_pretrained(factory: Any, folder: Path, config: Any, **extra: Any) -> tuple[PreTrainedModel, dict[str, Any]]:
    try:
        with quiet():
            model, info = factory.from_pretrained(
                str(folder),
                config=config,
                dtype=torch.float32,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                local_files_only=True,
                trust_remote_code=False,
                weights_only=True,
                **extra,
            )
    except UnpicklingError as error:
        reason = next((line for line in str(error).splitlines() if "GLOBAL" in line), first_line(error))
        raise ModelError(
            f"the pickled weights in {folder} hold more than tensors and are not opened: {reason.strip()} "
            "Get the model in safetensors format."
        ) from error
    except SafetensorError as error:
        raise ModelError(f"the weights in {folder} are damaged: {error}") from error
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError, AttributeError, EOFError) as error:
        raise ModelError(
            f"the weights in {folder} cannot be loaded: {str(error).strip() or type(error).__name__}"
        ) from error
    return model, info


def _poolerless(factory: Any, config: Any, info: dict[str, Any]) -> dict[str, bool]:
    """Arguments that leave out a backbone's pooler, if that is all that the checkpoint lacks."""
    missing = info["missing_keys"]
    if not missing or not all("pooler" in name.split(".") for name in missing):
        return {}
    model_class = factory._model_mapping[type(config)]
    return {"add_pooling_layer": False} if "add_pooling_layer" in inspect.signature(model_class).parameters else {}


def classifier_modules(model: nn.Module) -> dict[str, nn.Linear]:
    """Find the linear layers of an image classification model that give the logits, by full name.

    Raises:
        ModelError: there is none.
    """
    wrapped = getattr(model, "timm_model", None)
    if wrapped is not None:
        heads = wrapped.get_classifier()
        heads = heads if isinstance(heads, tuple | list) else (heads,)
    else:
        heads = [getattr(model, name) for name in ("classifier", "head", "score") if hasattr(model, name)]
    inside = {id(m) for head in heads if isinstance(head, nn.Module) for m in head.modules()}
    found = {n: m for n, m in model.named_modules() if id(m) in inside and isinstance(m, nn.Linear)}
    if not found:
        raise ModelError(f"{type(model).__name__} has no linear classifier that pliant can find.")
    return found


def classifier_parameters(model: nn.Module) -> tuple[str, ...]:
    """Full names of the parameters of `classifier_modules`."""
    return tuple(
        f"{name}.{p}" for name, module in classifier_modules(model).items() for p, _ in module.named_parameters()
    )


def _pooled_norms(model: nn.Module) -> tuple[str, ...]:
    """Norms between pooled tokens and classifier (BEiT, Data2Vec): pretraining has none, a new one is the identity."""
    norms = [n for n, m in model.named_modules() if isinstance(m, nn.LayerNorm) and "pooler" in n.split(".")]
    return tuple(f"{name}.{p}" for name in norms for p in ("weight", "bias"))


def new_classifier(model: nn.Module, seed: int) -> None:
    """Give the classifier fresh weights: normal, cut at two standard deviations of 0.02; biases zero."""
    deviation = float(getattr(model.config, "initializer_range", 0.02))
    generator = torch.Generator().manual_seed(seed)
    for module in classifier_modules(model).values():
        nn.init.trunc_normal_(module.weight, std=deviation, a=-2 * deviation, b=2 * deviation, generator=generator)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def _check_complete(
    model: PreTrainedModel, info: dict[str, Any], folder: Path, *, new: Sequence[str] = ()
) -> tuple[str, ...]:
    """Compare what was loaded with what the model has; the notes name what the checkpoint has and the model has not."""
    expected = set(model.state_dict()) - set(new)
    missing = sorted(set(info["missing_keys"]) - set(new))
    misshapen = {
        name: (tuple(theirs), tuple(ours)) for name, theirs, ours in info["mismatched_keys"] if name not in new
    }
    problems = [f"missing: {_few(missing)}"] if missing else []
    if misshapen:
        shapes = [f"{n} ({theirs} in the checkpoint, {ours} in the model)" for n, (theirs, ours) in misshapen.items()]
        problems.append(f"other shape: {_few(shapes)}")
    unexpected = sorted(info["unexpected_keys"])
    parts = {name: _left_out_part(model, name) for name in unexpected}
    strange = [name for name, part in parts.items() if part is None]
    if strange:
        problems.append(f"in the checkpoint but not in the model: {_few(strange)}")
    problems += [str(message) for message in info.get("error_msgs", ())]
    if problems:
        loaded = len(expected) - len(missing) - len(misshapen)
        raise ModelError(
            f"{folder} does not fit {type(model).__name__}: {loaded} of {len(expected)} tensors were loaded. "
            f"{'; '.join(problems)}. The configuration and the weights are not of the same model."
        )
    left_out = Counter(part for part in parts.values() if part is not None)
    counts = [f"{part} ({count} tensor{'s'[: count > 1]})" for part, count in left_out.items()]
    return (f"in the checkpoint but not in the model: {', '.join(counts)}",) if counts else ()


def _left_out_part(model: PreTrainedModel, name: str) -> str | None:
    """Name the part that a tensor which found no place belongs to, if a model may do without it.

    Not if the model has that part, with weights in it: then the tensor is one too many, and the part another one.
    """
    steps = name.split(".")
    if steps[0] in LEFT_OUT_NORMS.get(model.config.model_type, ()):
        return steps[0]
    at = next((i for i, step in enumerate(steps) if step in LEFT_OUT_PARTS), None)
    if at is None:
        return None
    part = ".".join(steps[: at + 1])
    own = dict(model.named_modules()).get(part)
    return None if own is not None and any(True for _ in own.parameters()) else part


def _few(names: Iterable[str], *, count: int = 4) -> str:
    listed = list(names)
    more = f" and {len(listed) - count} more" if len(listed) > count else ""
    return f"{', '.join(listed[:count])}{more}"
