"""The table of families: where each kind of model keeps its parts.

A model is matched by structure: some list of blocks whose path ends as `Family.blocks` says and whose first block has
every part that the row names. To use pliant on a model of another kind, write one row and pass it:

    mine = Family(name="mine", blocks="trunk", ln1="pre", mha="mixer", ln2="post", fc1=("up",), fc2="down")
    pliant.anatomy(model, family=mine)
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """One row of the table. Names inside a block are relative to the block; `a|b` means whichever exists.

    Attributes:
        name: library and kind, as reports show it.
        blocks: end of the dotted path of the list that holds the blocks; `*` stands for one name (a stage's index).
        ln1, mha, ln2, fc2: modules of a block. A `mha` of the form `a>b` is a sequence: it takes the input of a and
            gives the output of b.
        fc1: the module, or the modules that share one input (gate and up of a gated feed-forward part).
        mha_also: further modules or parameters of a block that belong to `mha` (relative position tables).
        layerscale: modules or parameters of a block that scale a residual branch.
        emb, final_norm, head, mha_shared: modules or parameters outside the blocks, as they are called in the module
            that holds the list of blocks, or in one around it.
        owners: class names of the module that may hold the list of blocks; empty for any.
        absent: names that a block must not have (they would give a part another meaning).
        causal: whether attention is masked to the past.
        windowed: whether `mha` is called on windows of tokens instead of the whole sequence.
        post_norm: whether each norm follows its residual sum instead of preceding `mha` or `fc1`.
    """

    name: str
    blocks: str
    ln1: str
    mha: str
    ln2: str
    fc1: tuple[str, ...]
    fc2: str
    mha_also: tuple[str, ...] = ()
    layerscale: tuple[str, ...] = ()
    emb: tuple[str, ...] = ()
    final_norm: tuple[str, ...] = ()
    head: tuple[str, ...] = ()
    mha_shared: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    causal: bool = False
    windowed: bool = False
    post_norm: bool = False


_TIMM_EMB = ("patch_embed", "cls_token", "reg_token", "dist_token", "pos_embed", "norm_pre", "cls_embed")
_HF_CLASSIFIER = ("classifier", "cls_classifier", "distillation_classifier", "lm_head", "score")

FAMILIES: tuple[Family, ...] = (
    Family(
        name="timm VisionTransformer",
        blocks="blocks",
        ln1="norm1",
        mha="attn",
        ln2="norm2",
        fc1=("mlp.fc1",),
        fc2="mlp.fc2",
        layerscale=("ls1", "ls2"),
        emb=_TIMM_EMB,
        final_norm=("norm", "fc_norm"),
        head=("head", "head_dist"),
        owners=("VisionTransformer", "VisionTransformerDistilled"),
    ),
    Family(
        name="timm Eva and BEiT",
        blocks="blocks",
        ln1="norm1",
        mha="attn",
        ln2="norm2",
        fc1=("mlp.fc1",),
        fc2="mlp.fc2",
        layerscale=("gamma_1", "gamma_2"),
        emb=_TIMM_EMB,
        final_norm=("norm", "fc_norm"),
        head=("head",),
        owners=("Eva", "Beit"),
    ),
    Family(
        name="timm Eva, gated",
        blocks="blocks",
        ln1="norm1",
        mha="attn",
        ln2="norm2",
        fc1=("mlp.fc1_g", "mlp.fc1_x"),
        fc2="mlp.fc2",
        layerscale=("gamma_1", "gamma_2"),
        emb=_TIMM_EMB,
        final_norm=("norm", "fc_norm"),
        head=("head",),
        owners=("Eva",),
    ),
    Family(
        name="timm Swin",
        blocks="layers.*.blocks",
        ln1="norm1",
        mha="attn",
        ln2="norm2",
        fc1=("mlp.fc1",),
        fc2="mlp.fc2",
        emb=_TIMM_EMB,
        final_norm=("norm",),
        head=("head",),
        owners=("SwinTransformer",),
        windowed=True,
    ),
    Family(
        name="transformers ViT",  # also DeiT and MAE, since transformers 5.9
        blocks="layers",
        ln1="layernorm_before",
        mha="attention",
        ln2="layernorm_after",
        fc1=("mlp.fc1",),
        fc2="mlp.fc2",
        emb=("embeddings",),
        final_norm=("layernorm",),
        head=_HF_CLASSIFIER,
        absent=("lambda_1",),
    ),
    Family(
        name="transformers BEiT",
        blocks="layers",
        ln1="layernorm_before",
        mha="attention",
        ln2="layernorm_after",
        fc1=("mlp.fc1",),
        fc2="mlp.fc2",
        mha_also=("relative_position_bias",),
        mha_shared=("shared_position_bias",),
        layerscale=("lambda_1", "lambda_2"),
        emb=("embeddings",),
        final_norm=("layernorm", "pooler.layernorm"),
        head=_HF_CLASSIFIER,
        owners=("BeitModel", "Data2VecVisionModel"),
    ),
    Family(
        name="transformers ViT before 5.9",  # also DeiT, BEiT and MAE
        blocks="encoder.layer",
        ln1="layernorm_before",
        mha="attention",
        ln2="layernorm_after",
        fc1=("intermediate.dense",),
        fc2="output.dense",
        mha_shared=("encoder.relative_position_bias",),
        layerscale=("lambda_1", "lambda_2"),
        emb=("embeddings",),
        final_norm=("layernorm", "pooler.layernorm"),
        head=_HF_CLASSIFIER,
    ),
    Family(
        name="transformers DINOv2",
        blocks="encoder.layer",
        ln1="norm1",
        mha="attention",
        ln2="norm2",
        fc1=("mlp.fc1|mlp.weights_in",),
        fc2="mlp.fc2|mlp.weights_out",
        layerscale=("layer_scale1", "layer_scale2"),
        emb=("embeddings",),
        final_norm=("layernorm",),
        head=_HF_CLASSIFIER,
    ),
    Family(
        name="transformers DINOv2, gated",
        blocks="encoder.layer",
        ln1="norm1",
        mha="attention",
        ln2="norm2",
        fc1=("mlp.gate_proj", "mlp.up_proj"),
        fc2="mlp.down_proj",
        layerscale=("layer_scale1", "layer_scale2"),
        emb=("embeddings",),
        final_norm=("layernorm",),
        head=_HF_CLASSIFIER,
    ),
    Family(
        name="transformers DINOv3",
        blocks="layer",
        ln1="norm1",
        mha="attention",
        ln2="norm2",
        fc1=("mlp.up_proj",),
        fc2="mlp.down_proj",
        layerscale=("layer_scale1", "layer_scale2"),
        emb=("embeddings",),
        final_norm=("norm",),
        head=_HF_CLASSIFIER,
        absent=("mlp.gate_proj",),
    ),
    Family(
        name="transformers DINOv3, gated",
        blocks="layer",
        ln1="norm1",
        mha="attention",
        ln2="norm2",
        fc1=("mlp.gate_proj", "mlp.up_proj"),
        fc2="mlp.down_proj",
        layerscale=("layer_scale1", "layer_scale2"),
        emb=("embeddings",),
        final_norm=("norm",),
        head=_HF_CLASSIFIER,
    ),
    Family(
        name="transformers CLIP and SigLIP vision",
        blocks="encoder.layers",
        ln1="layer_norm1",
        mha="self_attn",
        ln2="layer_norm2",
        fc1=("mlp.fc1",),
        fc2="mlp.fc2",
        emb=("embeddings", "pre_layrnorm"),
        final_norm=("post_layernorm",),
        head=_HF_CLASSIFIER,
    ),
    Family(
        name="transformers Swin",
        blocks="layers.*.blocks",
        ln1="layernorm_before",
        mha="attention",
        ln2="layernorm_after",
        fc1=("mlp.fc1|intermediate.dense",),
        fc2="mlp.fc2|output.dense",
        emb=("embeddings",),
        final_norm=("layernorm",),
        head=_HF_CLASSIFIER,
        windowed=True,
    ),
    Family(
        name="transformers BERT",
        blocks="encoder.layer",
        ln1="attention.output.LayerNorm",
        mha="attention.self>attention.output.dense",
        ln2="output.LayerNorm",
        fc1=("intermediate.dense",),
        fc2="output.dense",
        emb=("embeddings",),
        head=_HF_CLASSIFIER,
        post_norm=True,
    ),
    Family(
        name="transformers LLaMA and Qwen",
        blocks="layers",
        ln1="input_layernorm",
        mha="self_attn",
        ln2="post_attention_layernorm",
        fc1=("mlp.gate_proj", "mlp.up_proj"),
        fc2="mlp.down_proj",
        emb=("embed_tokens",),
        final_norm=("norm",),
        head=_HF_CLASSIFIER,
        absent=("pre_feedforward_layernorm", "post_feedforward_layernorm"),
        causal=True,
    ),
    Family(
        name="transformers GPT-2",
        blocks="h",
        ln1="ln_1",
        mha="attn",
        ln2="ln_2",
        fc1=("mlp.c_fc",),
        fc2="mlp.c_proj",
        emb=("wte", "wpe"),
        final_norm=("ln_f",),
        head=_HF_CLASSIFIER,
        causal=True,
    ),
    Family(
        name="torchvision VisionTransformer",
        blocks="encoder.layers",
        ln1="ln_1",
        mha="self_attention",
        ln2="ln_2",
        fc1=("mlp.0|mlp.linear_1",),
        fc2="mlp.3|mlp.linear_2",
        emb=("conv_proj", "class_token", "encoder.pos_embedding"),
        final_norm=("encoder.ln",),
        head=("heads",),
    ),
)
"""Tried from the first to the last; the first row that fits is taken."""
