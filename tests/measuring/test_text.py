"""Texts: pieces of equal length from a file, and texts of different length with a mask."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer, models, pre_tokenizers

from families import sample
from pliant import from_module
from pliant.errors import ConfigError, DataError
from pliant.measuring import Measurement, measure
from pliant.measuring.text import text_tokens

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "looked", "at", "dog"]
CAUSAL = ("transformers GPT-2", "transformers LLaMA and Qwen")
both = pytest.mark.parametrize("convention", ["insitu", "shared"])


@pytest.fixture
def tokenizer() -> hf.PreTrainedTokenizerFast:
    vocabulary = {"[UNK]": 0, **{word: i for i, word in enumerate(WORDS, 1)}}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return hf.PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]", model_max_length=8)


@pytest.fixture
def story(tmp_path: Path) -> Path:
    path = tmp_path / "story.txt"
    rng = np.random.default_rng(0)
    path.write_text(" ".join(rng.choice(WORDS, 103)))
    return path


def bytes_model() -> torch.nn.Module:
    config = hf.GPT2Config(
        n_embd=32, n_layer=2, n_head=4, vocab_size=256, n_positions=40, bos_token_id=1, eos_token_id=1
    )
    torch.manual_seed(0)
    return hf.GPT2LMHeadModel(config).eval()


def same(found: Measurement, expected: Measurement, rtol: float = 1e-5) -> None:
    for column in ("plasticity", "max", "ratio_of_means", "relative", "token_norm", "token_std_min"):
        np.testing.assert_allclose(found.frame[column], expected.frame[column], rtol=rtol, err_msg=column)


def test_pieces_are_the_tokenizers(story: Path, tokenizer: hf.PreTrainedTokenizerFast) -> None:
    loaded = from_module(sample("transformers GPT-2").model(), tokenizer=tokenizer)
    found = text_tokens(f"text:{story}", loaded, length=10)
    assert found.shape == (10, 10)
    assert [WORDS[i - 1] for i in found.flatten().tolist()] == story.read_text().split()[:100]
    assert text_tokens(f"text:{story}", loaded).shape == (5, 20)  # as long as the model takes


def test_bytes_where_there_is_no_tokenizer(story: Path) -> None:
    loaded = from_module(bytes_model())
    found = text_tokens(f"text:{story}", loaded, length=32)
    assert bytes(found.flatten().tolist()) == story.read_bytes()[: found.numel()]


@both
def test_a_text_is_measured(story: Path, convention: str) -> None:
    loaded = from_module(bytes_model())
    found = measure(loaded, target=f"text:{story}", convention=convention, length=16, items=12, seed=3)
    pieces = text_tokens(f"text:{story}", loaded, length=16)
    chosen = torch.tensor(np.random.default_rng(3).permutation(len(pieces))[:12])
    same(found, measure(loaded.model, pieces[chosen], convention=convention), rtol=1e-6)
    assert found.provenance["target"] == f"text:{story} (16 tokens each)"
    assert found.provenance["item_shape"] == [16]


def test_what_is_wrong_with_a_text(story: Path, tmp_path: Path, tokenizer: hf.PreTrainedTokenizerFast) -> None:
    loaded = from_module(bytes_model())
    with pytest.raises(DataError, match=r"nowhere\.txt cannot be read"):
        measure(loaded, target=f"text:{tmp_path / 'nowhere.txt'}")
    short, binary = tmp_path / "short.txt", tmp_path / "binary.txt"
    short.write_text("too short")
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"has 9 tokens, fewer than the 40 of one piece"):
        measure(loaded, target=f"text:{short}")
    with pytest.raises(DataError, match=r"is no text in UTF-8 \(byte 0\)"):
        measure(from_module(loaded.model, tokenizer=tokenizer), target=f"text:{binary}")
    with pytest.raises(ConfigError, match=r"length is 41; .* takes 1 to 40 tokens"):
        measure(loaded, target=f"text:{story}", length=41)
    with pytest.raises(ConfigError, match=r"no tokenizer, and its 50 words are too few to take bytes"):
        measure(sample("transformers GPT-2").model(), target=f"text:{story}")
    with pytest.raises(ConfigError, match=r"takes pixel_values, not text"):
        measure(sample("transformers ViT").model(), target=f"text:{story}")
    with pytest.raises(ConfigError, match=r"got images, and .* takes text"):
        measure(loaded, target="digits")


def padded(lengths: list[int], width: int, *, left: bool, seed: int = 0) -> dict[str, torch.Tensor]:
    """Texts of these lengths filled up with word 0, on one side."""
    generator = torch.Generator().manual_seed(seed)
    ids, mask = torch.zeros(len(lengths), width, dtype=torch.int64), torch.zeros(len(lengths), width, dtype=torch.int64)
    for i, n in enumerate(lengths):
        place = slice(width - n, width) if left else slice(0, n)
        ids[i, place] = torch.randint(3, 50, (n,), generator=generator)
        mask[i, place] = 1
    return {"input_ids": ids, "attention_mask": mask}


LENGTHS = [7, 4, 6, 7]


@both
@pytest.mark.parametrize("name", [*CAUSAL, "transformers BERT"])
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_padding_never_counts(name: str, convention: str, left: bool) -> None:
    """Texts filled up to 7 and to 12 tokens, on either side, give the same numbers."""
    model = sample(name).model()
    found = measure(model, padded(LENGTHS, 7, left=left), convention=convention)
    more = measure(model, padded(LENGTHS, 12, left=left), convention=convention)
    right = measure(model, padded(LENGTHS, 9, left=False), convention=convention)
    same(more, found, rtol=2e-5)
    same(right, found, rtol=2e-5)


@both
@pytest.mark.parametrize("name", [*CAUSAL, "transformers BERT"])
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_a_batch_of_one_and_of_many_agree(name: str, convention: str, left: bool) -> None:
    model = sample(name).model()
    source, target = padded(LENGTHS, 8, left=left, seed=1), padded(LENGTHS[::-1], 8, left=left, seed=2)
    many = measure(model, source, target, convention=convention, pairs="matched")
    one = measure(model, source, target, convention=convention, pairs="matched", batch_size=1)
    same(one, many, rtol=2e-5)
    assert one.provenance["passes"] == 4


@both
@pytest.mark.parametrize("name", [*CAUSAL, "transformers BERT"])
def test_a_text_alone_has_the_numbers_it_has_among_longer_ones(name: str, convention: str) -> None:
    """Two texts of four tokens, without any padding, and the same two filled up to 7."""
    model = sample(name).model()
    filled = padded([4, 4], 7, left=False)
    alone = {key: value[:, :4] for key, value in filled.items()}
    same(measure(model, filled, convention=convention), measure(model, alone, convention=convention), rtol=2e-5)
    same(measure(model, alone, convention=convention), measure(model, alone["input_ids"], convention=convention))


def test_masks_that_cannot_be() -> None:
    model = sample("transformers GPT-2").model()
    texts = padded(LENGTHS, 7, left=False)
    with pytest.raises(DataError, match="item 2 of a batch is all padding"):
        measure(model, padded([3, 3, 0, 3], 7, left=False))
    with pytest.raises(DataError, match="one of source and target is a mapping of tensors, the other is not"):
        measure(model, texts, texts["input_ids"])
    with pytest.raises(DataError, match="source gives input_ids, attention_mask and target gives input_ids"):
        measure(model, texts, {"input_ids": texts["input_ids"]})
    with pytest.raises(DataError, match=r"a tensor with one row per item \(attention_mask is none\)"):
        measure(model, {**texts, "attention_mask": [1, 1]})
    longer = measure(model, texts, padded(LENGTHS, 9, left=False, seed=5))
    assert (longer.frame["n_pairs"] == 16).all()
