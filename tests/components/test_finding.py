"""Finding components: every parameter in exactly one role, on every family, and messages where nothing is found."""

import pytest
import torch
import transformers as hf
from torch import nn

from families import HIDDEN, SAMPLES, Sample, sample
from pliant.components import FAMILIES, Family, find_components
from pliant.errors import AnatomyError
from pliant.terms import BLOCK_ROLES, ROLES

every_sample = pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.id)


def test_every_row_of_the_table_has_a_sample() -> None:
    assert {row.name for row in FAMILIES} == {s.family for s in SAMPLES}
    assert len({row.name for row in FAMILIES}) == len(FAMILIES)
    assert len({s.id for s in SAMPLES}) == len(SAMPLES)


@every_sample
def test_every_parameter_belongs_to_exactly_one_role(sample: Sample) -> None:
    model = sample.model()
    found = find_components(model)
    assert found.family.name == sample.family
    owned = [name for c in found.components for name in c.parameters]
    assert sorted(owned) == sorted(name for name, _ in model.named_parameters())
    assert len({c.id for c in found.components}) == len(found.components)
    assert {c.role for c in found.components} <= set(ROLES)
    assert found.frame["parameters"].sum() == sum(p.numel() for p in model.parameters())
    assert found.frame["share"].sum() == pytest.approx(1)


@every_sample
def test_parts_are_where_they_were_written_down(sample: Sample) -> None:
    found = find_components(sample.model())
    assert len(found.blocks) == len(sample.blocks)
    for role in BLOCK_ROLES:
        of_role = {c.block: c for c in found.of(role) if c.block is not None}
        assert {depth: c.modules for depth, c in of_role.items()} == {
            depth: sample.modules(role, depth) for depth in range(len(sample.blocks))
        }
        for depth, component in of_role.items():
            names = sample.modules(role, depth)
            inside = {n for n, _ in found.model.named_parameters() if n.startswith(tuple(f"{m}." for m in names))}
            if role in ("fc1", "fc2"):
                assert set(component.parameters) == inside
            assert inside - set(component.parameters) <= {  # BERT keeps its first norm under `attention`
                n for c in found.components if c.role != role for n in c.parameters
            }


@every_sample
def test_what_belongs_to_no_part_is_known(sample: Sample) -> None:
    found = find_components(sample.model())
    other = [name for c in found.of("other") for name in c.parameters]
    assert all(name.startswith(sample.other) for name in other) if sample.other else not other
    assert all(any(name.startswith(start) for name in other) for start in sample.other)
    assert found.of("emb")


@pytest.mark.parametrize(
    ("family", "variant", "role", "names"),
    [
        ("timm VisionTransformer", "layerscale, qk norm", "layerscale", {"blocks.0.ls1.gamma", "blocks.0.ls2.gamma"}),
        ("timm Eva and BEiT", "BEiT", "layerscale", {"blocks.0.gamma_1", "blocks.0.gamma_2"}),
        (
            "transformers DINOv2",
            "old names",
            "layerscale",
            {"encoder.layer.0.layer_scale1.lambda1", "encoder.layer.0.layer_scale2.lambda1"},
        ),
        (
            "timm Eva and BEiT",
            "BEiT",
            "mha",
            {f"blocks.0.attn.{n}" for n in ("q_bias", "v_bias", "relative_position_bias_table", "qkv.weight")}
            | {"blocks.0.attn.proj.weight", "blocks.0.attn.proj.bias"},
        ),
    ],
)
def test_layerscale_biases_and_tables_have_the_owner_that_is_stated(
    family: str, variant: str, role: str, names: set[str]
) -> None:
    found = find_components(sample(family, variant).model())
    component = next(c for c in found.components if c.role == role and c.block == 0)
    assert set(component.parameters) == names


def test_q_and_k_norms_belong_to_attention() -> None:
    found = find_components(sample("transformers LLaMA and Qwen", "Qwen3").model())
    attention = next(c for c in found.of("mha") if c.block == 1)
    assert {"model.layers.1.self_attn.q_norm.weight", "model.layers.1.self_attn.k_norm.weight"} <= set(
        attention.parameters
    )


def test_class_and_register_tokens_belong_to_the_embedding() -> None:
    found = find_components(sample("transformers DINOv2", "registers").model())
    names = {name for c in found.of("emb") for name in c.parameters}
    assert {"embeddings.cls_token", "embeddings.register_tokens", "embeddings.position_embeddings"} <= names


def test_a_norm_inside_another_part_is_not_the_final_norm() -> None:
    found = find_components(sample("timm VisionTransformer", "pooled by attention").model())
    assert [c.parameters for c in found.of("final_norm")] == [("norm.weight", "norm.bias")]


def test_tied_parameters_are_one_and_are_reported() -> None:
    found = find_components(sample("transformers GPT-2").model())
    assert found.tied == (("transformer.wte.weight", "lm_head.weight"),)
    assert "transformer.wte.weight" in [n for c in found.of("emb") for n in c.parameters]
    assert not found.of("head")


def test_finding_changes_nothing() -> None:
    model = sample("transformers DINOv2").model().train()
    before = {n: (p.requires_grad, p.dtype, p.clone()) for n, p in model.named_parameters()}
    find_components(model)
    assert model.training
    for name, p in model.named_parameters():
        assert (p.requires_grad, p.dtype) == before[name][:2]
        assert torch.equal(p, before[name][2])


class Mixer(nn.Module):
    """A block of a kind that no row of the table knows."""

    def __init__(self) -> None:
        """Draw weights."""
        super().__init__()
        self.pre, self.post = nn.LayerNorm(8), nn.LayerNorm(8)
        self.mixer = nn.MultiheadAttention(8, 2, batch_first=True)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the block."""
        h = self.pre(x)
        x = x + self.mixer(h, h, h, need_weights=False)[0]
        return x + self.down(torch.relu(self.up(self.post(x))))


class Trunk(nn.Module):
    """A model of one's own."""

    def __init__(self) -> None:
        """Draw weights."""
        super().__init__()
        self.stem = nn.Linear(3, 8)
        self.trunk = nn.ModuleList([Mixer(), Mixer(), Mixer()])
        self.norm = nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the last tokens."""
        x = self.stem(x)
        for block in self.trunk:
            x = block(x)
        return self.norm(x)


MINE = {"name": "mine", "blocks": "trunk", "ln1": "pre", "mha": "mixer", "ln2": "post", "fc1": ("up",), "fc2": "down"}


def test_a_row_of_ones_own() -> None:
    found = find_components(Trunk(), family=Family(**MINE, emb=("stem",), final_norm=("norm",)))
    assert [c.id for c in found.components][:4] == ["emb", "block00.ln1", "block00.mha", "block00.ln2"]
    assert found.roles == ("emb", "ln1", "mha", "ln2", "fc1", "fc2", "final_norm")


def test_a_model_that_no_row_fits_gets_its_lists_and_a_template() -> None:
    with pytest.raises(AnatomyError, match=r"(?s)any of the \d+ known families.*trunk \(3 x Mixer\): pre, post, mixer"):
        find_components(Trunk())
    with pytest.raises(AnatomyError, match=r"(?s)\(none\).*pliant\.Family\(name=\"mine\", blocks="):
        find_components(nn.Linear(3, 3))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"blocks": "trnk"}, "no list of modules has a path that ends in 'trnk'"),
        ({"mha": "attn"}, r"trunk\.0 \(Mixer\) has no 'attn' \(its mha\)"),
        ({"absent": ("post",)}, r"trunk\.0 has 'post', which the row says must be absent"),
        ({"owners": ("Stem",)}, "'trunk' is held by a Trunk, and the row is for Stem"),
    ],
)
def test_a_row_that_does_not_fit_says_by_what(change: dict[str, object], message: str) -> None:
    with pytest.raises(AnatomyError, match=message):
        find_components(Trunk(), family=Family(**{**MINE, **change}))


def test_a_compiled_model_is_refused_with_the_way_out() -> None:
    with pytest.raises(AnatomyError, match=r"compiled by torch\.compile .*_orig_mod"):
        find_components(torch.compile(sample("timm VisionTransformer").model()))
    model = sample("timm VisionTransformer").model()
    model.blocks[0].compile()
    with pytest.raises(AnatomyError, match=r"compiled by torch\.compile"):
        find_components(model)


def test_two_towers_are_refused_by_name() -> None:
    text = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": HIDDEN}
    vision = {**text, "image_size": 16, "patch_size": 4}
    special = {"vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2}
    for kind in ("CLIP", "Siglip"):
        config = getattr(hf, f"{kind}Config")(vision_config=vision, text_config={**text, **special})
        model = getattr(hf, f"{kind}Model")(config)
        with pytest.raises(AnatomyError, match=r"2 towers of blocks.*'text_model'.*'vision_model'.*get_submodule"):
            find_components(model)
        assert find_components(model.vision_model).family.name == "transformers CLIP and SigLIP vision"
