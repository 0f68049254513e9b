"""Tiny models of every family, built offline: what tests of components, measuring, bounds and tuning run over.

`SAMPLES` holds at least one sample for each row of the table of families (a test asserts it). The paths of the parts
are written out by hand here, as an independent statement of what matching has to find.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import timm
import torch
import torchvision
import transformers as hf
from torch import Tensor, nn

DIM, HEADS, HIDDEN, TOKENS, WORDS = 32, 4, 64, 7, 50


@dataclass(frozen=True)
class Sample:
    """A tiny model of one family.

    Attributes:
        family: name of the row of the table of families.
        variant: what is special about it.
        make: builds the model; weights are drawn under a fixed seed by `model`.
        paths: full names of the five parts with `{}` for the block's index; a tuple where there are several modules.
        blocks: what is put for `{}`, in order of depth.
        size: side of the images in pixels; 0 for token ids.
        other: names of the parameters (or their beginnings) that belong to no part of the encoder.
    """

    family: str
    variant: str
    make: Callable[[], nn.Module]
    paths: dict[str, str | tuple[str, ...]]
    blocks: tuple[tuple[int, ...], ...] = ((0,), (1,))
    size: int = 16
    other: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Name in the list of tests."""
        return f"{self.family}/{self.variant}".replace(" ", "_")

    def model(self, seed: int = 0) -> nn.Module:
        """Build the model, every parameter away from its usual initial value, in evaluation mode."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = self.make().eval()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.1 * torch.randn_like(parameter))
        return model

    def inputs(self, count: int, seed: int = 1) -> Tensor:
        """Draw items: pixel values or token ids."""
        generator = torch.Generator().manual_seed(seed)
        if self.size:
            return torch.randn(count, 3, self.size, self.size, generator=generator)
        return torch.randint(3, WORDS, (count, TOKENS), generator=generator)

    def modules(self, role: str, depth: int) -> tuple[str, ...]:
        """Full names of the modules of a part in the block at this depth."""
        paths = self.paths[role]
        return tuple(p.format(*self.blocks[depth]) for p in ((paths,) if isinstance(paths, str) else paths))


def parts(prefix: str, ln1: str, mha: str, ln2: str, fc1: str, fc2: str) -> dict[str, str | tuple[str, ...]]:
    """Join the paths of parts with that of their block; `a,b` stands for two modules."""
    named = {"ln1": ln1, "mha": mha, "ln2": ln2, "fc1": fc1, "fc2": fc2}
    full = {role: tuple(f"{prefix}.{name}" for name in names.split(",")) for role, names in named.items()}
    return {role: names[0] if len(names) == 1 else names for role, names in full.items()}


def _timm(name: str, **more: object) -> Callable[[], nn.Module]:
    options = {"embed_dim": DIM, "depth": 2, "num_heads": HEADS, "img_size": 32, "num_classes": 5, **more}
    return lambda: timm.create_model(name, **options)


def _hf(model: str, config: str, **options: object) -> Callable[[], nn.Module]:
    return lambda: getattr(hf, model)(getattr(hf, config)(**options))


_VIT = {
    "hidden_size": DIM,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": HIDDEN,
    "image_size": 16,
    "patch_size": 4,
}
_DINO = {k: v for k, v in _VIT.items() if k != "intermediate_size"} | {"mlp_ratio": 2}
_TEXT = {"hidden_size": DIM, "num_hidden_layers": 2, "num_attention_heads": HEADS, "vocab_size": WORDS}
_DECODER = {
    **_TEXT,
    "intermediate_size": HIDDEN,
    "num_key_value_heads": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_GPT2 = {"n_embd": DIM, "n_layer": 2, "n_head": HEADS, "vocab_size": WORDS, "n_positions": 20} | {
    "bos_token_id": 1,
    "eos_token_id": 1,
}
_MAE = {**_VIT, "decoder_hidden_size": 16, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2}
_MAE |= {"decoder_intermediate_size": 32}
_SWIN = {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
_TIMM_SWIN = {"img_size": 32, "patch_size": 2, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 4)}
_TEXT_TOWER = {"hidden_size": DIM, "num_hidden_layers": 1, "num_attention_heads": HEADS, "intermediate_size": HIDDEN}

_TIMM = parts("blocks.{}", "norm1", "attn", "norm2", "mlp.fc1", "mlp.fc2")
_TIMM_GATED = parts("blocks.{}", "norm1", "attn", "norm2", "mlp.fc1_g,mlp.fc1_x", "mlp.fc2")


def _new_vit(prefix: str) -> dict[str, str | tuple[str, ...]]:
    return parts(f"{prefix}layers.{{}}", "layernorm_before", "attention", "layernorm_after", "mlp.fc1", "mlp.fc2")


def _old_vit(prefix: str) -> dict[str, str | tuple[str, ...]]:
    block = f"{prefix}encoder.layer.{{}}"
    return parts(block, "layernorm_before", "attention", "layernorm_after", "intermediate.dense", "output.dense")


def _dino(prefix: str, fc1: str, fc2: str) -> dict[str, str | tuple[str, ...]]:
    return parts(prefix + ".{}", "norm1", "attention", "norm2", fc1, fc2)


def _clip(prefix: str) -> dict[str, str | tuple[str, ...]]:
    return parts(prefix + "encoder.layers.{}", "layer_norm1", "self_attn", "layer_norm2", "mlp.fc1", "mlp.fc2")


def _llama(prefix: str) -> dict[str, str | tuple[str, ...]]:
    block, gate = f"{prefix}layers.{{}}", "mlp.gate_proj,mlp.up_proj"
    return parts(block, "input_layernorm", "self_attn", "post_attention_layernorm", gate, "mlp.down_proj")


class OldAttention(nn.Module):
    """Attention nested as in transformers before 5.9: `attention.attention.query`, `attention.output.dense`."""

    def __init__(self) -> None:
        """Draw weights."""
        super().__init__()
        self.attention = nn.Module()
        self.attention.num_attention_heads = HEADS  # type: ignore[assignment]
        for name in ("query", "key", "value"):
            setattr(self.attention, name, nn.Linear(DIM, DIM))
        self.output = nn.ModuleDict({"dense": nn.Linear(DIM, DIM)})

    def forward(self, x: Tensor) -> tuple[Tensor]:
        """Attend; a tuple is returned, as those releases did."""
        shape = (*x.shape[:2], HEADS, -1)
        q, k, v = (getattr(self.attention, n)(x).view(shape).transpose(1, 2) for n in ("query", "key", "value"))
        joined = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        return (self.output["dense"](joined),)


class OldLayer(nn.Module):
    """A block of transformers' ViT before 5.9 (`lambda_1` and `lambda_2` as in its BEiT)."""

    def __init__(self, *, scaled: bool) -> None:
        """Draw weights."""
        super().__init__()
        self.attention = OldAttention()
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(DIM, HIDDEN)})
        self.output = nn.ModuleDict({"dense": nn.Linear(HIDDEN, DIM)})
        self.layernorm_before, self.layernorm_after = nn.LayerNorm(DIM, eps=1e-12), nn.LayerNorm(DIM, eps=1e-12)
        if scaled:
            self.lambda_1, self.lambda_2 = (nn.Parameter(torch.ones(DIM)) for _ in range(2))

    def forward(self, x: Tensor) -> tuple[Tensor]:
        """Run the block; a tuple is returned, as those releases did."""
        first, second = getattr(self, "lambda_1", 1), getattr(self, "lambda_2", 1)
        x = x + first * self.attention(self.layernorm_before(x))[0]
        hidden = nn.functional.gelu(self.intermediate["dense"](self.layernorm_after(x)))
        return (x + second * self.output["dense"](hidden),)


class OldViT(nn.Module):
    """The module nesting of transformers' ViTModel before 5.9."""

    def __init__(self, *, scaled: bool = False) -> None:
        """Draw weights."""
        super().__init__()
        self.embeddings = nn.Module()
        self.embeddings.cls_token = nn.Parameter(torch.randn(1, 1, DIM))
        self.embeddings.projection = nn.Conv2d(3, DIM, 4, 4)
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList([OldLayer(scaled=scaled) for _ in range(2)])})
        self.layernorm = nn.LayerNorm(DIM)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Return the last hidden state."""
        x = self.embeddings.projection(pixel_values).flatten(2).transpose(1, 2)
        x = torch.cat([self.embeddings.cls_token.expand(len(x), 1, DIM), x], dim=1)
        for layer in self.encoder["layer"]:
            (x,) = layer(x)
        return self.layernorm(x)


class OldViTForImageClassification(nn.Module):
    """Parameter names as `vit.encoder.layer.0.attention.attention.query.weight`."""

    def __init__(self) -> None:
        """Draw weights."""
        super().__init__()
        self.vit = OldViT()
        self.classifier = nn.Linear(DIM, 5)

    def forward(self, pixel_values: Tensor) -> SimpleNamespace:
        """Return logits of the class token."""
        return SimpleNamespace(logits=self.classifier(self.vit(pixel_values)[:, 0]))


class OldDinoLayer(nn.Module):
    """A block of transformers' DINOv2 before 5.9, gate and up projection packed in one."""

    def __init__(self) -> None:
        """Draw weights."""
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM, eps=1e-6), nn.LayerNorm(DIM, eps=1e-6)
        self.attention = OldAttention()
        self.mlp = nn.ModuleDict({"weights_in": nn.Linear(DIM, 2 * HIDDEN), "weights_out": nn.Linear(HIDDEN, DIM)})
        for name in ("layer_scale1", "layer_scale2"):
            scale = nn.Module()
            scale.lambda1 = nn.Parameter(torch.full((DIM,), 0.1))
            setattr(self, name, scale)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        """Run the block; a tuple is returned, as those releases did."""
        x = x + self.layer_scale1.lambda1 * self.attention(self.norm1(x))[0]
        gate, up = self.mlp["weights_in"](self.norm2(x)).chunk(2, dim=-1)
        return (x + self.layer_scale2.lambda1 * self.mlp["weights_out"](nn.functional.silu(gate) * up),)


class OldDino(OldViT):
    """The module nesting of transformers' Dinov2Model before 5.9."""

    def __init__(self) -> None:
        """Draw weights."""
        super().__init__()
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList([OldDinoLayer() for _ in range(2)])})


def _clip_classifier() -> nn.Module:
    return hf.CLIPForImageClassification(hf.CLIPConfig(vision_config=_VIT, text_config=_TEXT_TOWER, num_labels=5))


def _siglip_classifier() -> nn.Module:
    return hf.SiglipForImageClassification(hf.SiglipConfig(vision_config=_VIT, text_config=_TEXT_TOWER, num_labels=5))


_V, _E = "timm VisionTransformer", "timm Eva and BEiT"
_VIT_ROW, _BEIT, _OLD = "transformers ViT", "transformers BEiT", "transformers ViT before 5.9"
_CLIP, _LLAMA, _GATED2 = (
    "transformers CLIP and SigLIP vision",
    "transformers LLaMA and Qwen",
    "mlp.gate_proj,mlp.up_proj",
)
_STAGES = ((0, 0), (0, 1), (1, 0), (1, 1))

SAMPLES: tuple[Sample, ...] = (
    Sample(_V, "plain", _timm("vit_tiny_patch16_224"), _TIMM, size=32),
    Sample(_V, "layerscale, qk norm", _timm("vit_tiny_patch16_224", init_values=0.1, qk_norm=True), _TIMM, size=32),
    Sample(_V, "pooled by attention", _timm("vit_base_patch16_siglip_224"), _TIMM, size=32, other=("attn_pool",)),
    Sample(_V, "distilled", _timm("deit_tiny_distilled_patch16_224"), _TIMM, size=32),
    Sample(_E, "BEiT", _timm("beit_base_patch16_224"), _TIMM, size=32),
    Sample(_E, "DINOv3", _timm("vit_small_patch16_dinov3"), _TIMM, size=32),
    Sample(_E, "EVA-02, packed gate", _timm("eva02_tiny_patch14_224", img_size=28), _TIMM, size=28),
    Sample("timm Eva, gated", "DINOv3", _timm("vit_small_plus_patch16_dinov3", mlp_ratio=2), _TIMM_GATED, size=32),
    Sample(
        "timm Swin",
        "two widths",
        lambda: timm.create_model("swin_tiny_patch4_window7_224", window_size=4, num_classes=5, **_TIMM_SWIN),
        parts("layers.{}.blocks.{}", "norm1", "attn", "norm2", "mlp.fc1", "mlp.fc2"),
        blocks=_STAGES,
        size=32,
        other=("layers.1.downsample",),
    ),
    Sample(_VIT_ROW, "backbone", _hf("ViTModel", "ViTConfig", **_VIT), _new_vit(""), other=("pooler",)),
    Sample(_VIT_ROW, "classifier", _hf("ViTForImageClassification", "ViTConfig", **_VIT), _new_vit("vit.")),
    Sample(_VIT_ROW, "DeiT", _hf("DeiTForImageClassificationWithTeacher", "DeiTConfig", **_VIT), _new_vit("deit.")),
    Sample(_VIT_ROW, "MAE encoder", _hf("ViTMAEModel", "ViTMAEConfig", **_MAE), _new_vit("")),
    Sample(
        _VIT_ROW,
        "MAE with decoder",
        _hf("ViTMAEForPreTraining", "ViTMAEConfig", **_MAE),
        _new_vit("vit."),
        other=("decoder",),
    ),
    Sample(
        _BEIT,
        "bias per block",
        _hf("BeitForImageClassification", "BeitConfig", **_VIT, use_relative_position_bias=True, use_mean_pooling=True),
        _new_vit("beit."),
    ),
    Sample(
        _BEIT,
        "shared bias",
        _hf("BeitForImageClassification", "BeitConfig", **_VIT, use_shared_relative_position_bias=True),
        _new_vit("beit."),
    ),
    Sample(_OLD, "classifier", OldViTForImageClassification, _old_vit("vit.")),
    Sample(_OLD, "scaled backbone", lambda: OldViT(scaled=True), _old_vit("")),
    Sample(
        "transformers DINOv2",
        "classifier",
        _hf("Dinov2ForImageClassification", "Dinov2Config", **_DINO),
        _dino("dinov2.encoder.layer", "mlp.fc1", "mlp.fc2"),
    ),
    Sample(
        "transformers DINOv2",
        "registers",
        _hf("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", **_DINO, num_register_tokens=2),
        _dino("encoder.layer", "mlp.fc1", "mlp.fc2"),
    ),
    Sample("transformers DINOv2", "old names", OldDino, _dino("encoder.layer", "mlp.weights_in", "mlp.weights_out")),
    Sample(
        "transformers DINOv2, gated",
        "gated",
        _hf("Dinov2Model", "Dinov2Config", **_DINO, use_swiglu_ffn=True),
        _dino("encoder.layer", "mlp.gate_proj,mlp.up_proj", "mlp.down_proj"),
    ),
    Sample(
        "transformers DINOv3",
        "plain",
        _hf("DINOv3ViTModel", "DINOv3ViTConfig", **_VIT, num_register_tokens=2),
        _dino("model.layer", "mlp.up_proj", "mlp.down_proj"),
    ),
    Sample(
        "transformers DINOv3, gated",
        "gated",
        _hf("DINOv3ViTModel", "DINOv3ViTConfig", **_VIT, use_gated_mlp=True),
        _dino("model.layer", _GATED2, "mlp.down_proj"),
    ),
    Sample(_CLIP, "CLIP", _hf("CLIPVisionModel", "CLIPVisionConfig", **_VIT), _clip("")),
    Sample(_CLIP, "CLIP classifier", _clip_classifier, _clip("vision_model.")),
    Sample(_CLIP, "SigLIP", _hf("SiglipVisionModel", "SiglipVisionConfig", **_VIT), _clip(""), other=("head",)),
    Sample(_CLIP, "SigLIP classifier", _siglip_classifier, _clip("vision_model."), other=("vision_model.head",)),
    Sample(
        "transformers Swin",
        "two widths",
        _hf("SwinForImageClassification", "SwinConfig", **_SWIN, num_labels=5),
        parts(
            "swin.encoder.layers.{}.blocks.{}", "layernorm_before", "attention", "layernorm_after", "mlp.fc1", "mlp.fc2"
        ),
        blocks=_STAGES,
        size=32,
        other=("swin.encoder.layers.0.downsample",),
    ),
    Sample(
        "transformers BERT",
        "encoder",
        _hf("BertModel", "BertConfig", **_TEXT, intermediate_size=HIDDEN),
        parts(
            "encoder.layer.{}",
            "attention.output.LayerNorm",
            "attention.self,attention.output.dense",
            "output.LayerNorm",
            "intermediate.dense",
            "output.dense",
        ),
        size=0,
        other=("pooler",),
    ),
    Sample(_LLAMA, "LLaMA", _hf("LlamaForCausalLM", "LlamaConfig", **_DECODER), _llama("model."), size=0),
    Sample(_LLAMA, "Qwen2", _hf("Qwen2Model", "Qwen2Config", **_DECODER), _llama(""), size=0),
    Sample(_LLAMA, "Qwen3", _hf("Qwen3ForCausalLM", "Qwen3Config", **_DECODER, head_dim=8), _llama("model."), size=0),
    Sample(
        "transformers GPT-2",
        "language model",
        _hf("GPT2LMHeadModel", "GPT2Config", **_GPT2),
        parts("transformer.h.{}", "ln_1", "attn", "ln_2", "mlp.c_fc", "mlp.c_proj"),
        size=0,
    ),
    Sample(
        "torchvision VisionTransformer",
        "plain",
        lambda: torchvision.models.VisionTransformer(16, 4, 2, HEADS, DIM, HIDDEN, num_classes=5),
        parts("encoder.layers.encoder_layer_{}", "ln_1", "self_attention", "ln_2", "mlp.0", "mlp.3"),
    ),
)


def sample(family: str, variant: str | None = None) -> Sample:
    """Return the sample of a family, its first one or the one of a variant."""
    return next(s for s in SAMPLES if s.family == family and variant in (None, s.variant))
