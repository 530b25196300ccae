"""The small decoder against a slow reference that computes the whole sequence anew, without any cache."""
import cmath
import math

import pytest
import torch

from toolkit.decoder import Decoder, DecoderShape, apply_rope, random_tokens, rms_norm, rope_turns

SMALL = {"layers": 2, "d": 24, "heads": 4, "head_dim": 6, "ff": 20, "vocab": 50}


def reference_logits(decoder, tokens):
    """Logits after the last token in float64, one head and one position at a time."""
    shape = decoder.shape
    x = decoder.embedding.double()[torch.as_tensor(tokens)]
    for weights in decoder.layers:
        wide = {name: value.double() for name, value in weights.items()}
        rows = (norm(x) @ wide["qkv"].T).split(shape.head_dim, dim=-1)
        q, k, v = rows[:shape.heads], rows[shape.heads:shape.heads + shape.kv_heads], rows[-shape.kv_heads:]
        mixed = []
        for head in range(shape.heads):
            kv = head * shape.kv_heads // shape.heads  # consecutive query heads share a KV head
            here = []
            for i in range(len(tokens)):
                scores = [turned(q[head][i], i) @ turned(k[kv][j], j) for j in range(i + 1)]
                shares = torch.stack(scores).div(math.sqrt(shape.head_dim)).softmax(0)
                here.append(sum(share * v[kv][j] for j, share in enumerate(shares)))
            mixed.append(torch.stack(here))
        x = x + torch.cat(mixed, dim=-1) @ wide["out"].T
        gate, up = (norm(x) @ wide["gate_up"].T).chunk(2, dim=-1)
        x = x + (gate * gate.sigmoid() * up) @ wide["down"].T
    return norm(x[-1]) @ decoder.head.double().T


def norm(x):
    return x / (x.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt()


def turned(vector, position):
    """Rotary position by complex numbers: entry i and entry i + half are one number, turned by its angle."""
    half = len(vector) // 2
    pairs = [complex(vector[i], vector[i + half]) for i in range(half)]
    pairs = [z * cmath.exp(1j * position * 10_000 ** (-i / half)) for i, z in enumerate(pairs)]
    return torch.tensor([z.real for z in pairs] + [z.imag for z in pairs], dtype=torch.float64)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])  # MHA, GQA, MQA
def test_prefill_and_decode_agree_with_the_reference(kv_heads):
    decoder = Decoder(DecoderShape(**SMALL, kv_heads=kv_heads), seed=3)
    tokens = random_tokens(9, vocab=50, seed=1).tolist()
    logits, cache = decoder.prefill(tokens)
    assert torch.allclose(logits.double(), reference_logits(decoder, tokens), atol=1e-5)
    for token in (7, 0):
        logits, cache = decoder.decode(token, cache)
        tokens.append(token)
        assert torch.allclose(logits.double(), reference_logits(decoder, tokens), atol=1e-5)


def test_cache_is_one_pair_a_layer_and_decode_leaves_it():
    decoder = Decoder(DecoderShape(**SMALL, kv_heads=2))
    _, cache = decoder.prefill(random_tokens(5, vocab=50))
    before = [(k.clone(), v.clone()) for k, v in cache]
    _, longer = decoder.decode(3, cache)
    assert [(tuple(k.shape), tuple(v.shape)) for k, v in cache] == [((2, 5, 6), (2, 5, 6))] * 2
    assert [k.shape[1] for k, _ in longer] == [6, 6]
    assert all(torch.equal(a, b) for old, new in zip(before, cache) for a, b in zip(old, new))
    assert all(torch.equal(k, more[:, :5]) for (k, _), (more, _) in zip(cache, longer))


def test_cache_of_a_prompt_begins_with_that_of_a_shorter_one():
    decoder = Decoder(DecoderShape(**SMALL, kv_heads=2))
    short, long = random_tokens(5, 50, seed=4), random_tokens(9, 50, seed=4)
    assert torch.equal(long[:5], short)
    for (k, v), (longer_k, longer_v) in zip(decoder.prefill(short)[1], decoder.prefill(long)[1]):
        assert torch.allclose(k, longer_k[:, :5], atol=1e-5) and torch.allclose(v, longer_v[:, :5], atol=1e-5)


def test_a_seed_gives_the_same_weights_and_another_seed_others():
    tokens = random_tokens(6)
    first, again, other = (Decoder(seed=seed).prefill(tokens)[0] for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.allclose(first, other)


def test_only_the_distance_between_positions_matters():
    frequencies = 10_000.0 ** -(torch.arange(0, 8, 2) / 8)
    q, k = torch.randn(2, 1, 1, 8, generator=torch.Generator().manual_seed(0))
    products = [
        float((apply_rope(q, rope_turns(frequencies, at + 3, 1)) * apply_rope(k, rope_turns(frequencies, at, 1))).sum())
        for at in (0, 5, 400)
    ]
    assert products == pytest.approx([products[0]] * 3, abs=1e-4)
    assert float((q * k).sum()) != pytest.approx(products[0], abs=1e-2)


def test_norm_keeps_dtype_and_makes_rows_of_size_one():
    x = torch.tensor([[3.0, -4.0], [300.0, 400.0]], dtype=torch.bfloat16)
    assert rms_norm(x).dtype == torch.bfloat16
    assert rms_norm(x).float().square().mean(dim=-1).tolist() == pytest.approx([1, 1], rel=0.01)


def test_other_dtypes_stay_near_float32():
    tokens = random_tokens(16)
    exact = Decoder().prefill(tokens)[0]
    rounded, cache = Decoder(dtype="bfloat16").prefill(tokens)
    assert cache[0][0].dtype == torch.bfloat16
    assert 0 < (rounded - exact).abs().max() < 0.2


def test_kv_bytes_are_those_of_the_real_cache():
    for shape, dtype in ((DecoderShape(), "float32"), (DecoderShape(kv_heads=1), "bfloat16")):
        _, cache = Decoder(shape, dtype=dtype).prefill([1, 2, 3])
        assert sum(t.numel() * t.element_size() for pair in cache for t in pair) == 3 * shape.kv_bytes(dtype)
    assert DecoderShape().kv_bytes() == 8192


@pytest.mark.parametrize("sizes, word", [
    ({"kv_heads": 3}, "kv_heads: found 3"), ({"head_dim": 5}, "head_dim: found 5"), ({"d": 0}, "d: found 0"),
    ({"layers": 2.0}, "layers: found 2.0"), ({"kv_heads": True}, "kv_heads: found True"),
])
def test_impossible_shapes_are_refused_by_name(sizes, word):
    with pytest.raises(ValueError, match=word):
        DecoderShape(**sizes)


def test_an_empty_prompt_is_refused():
    with pytest.raises(ValueError, match="tokens"):
        Decoder(DecoderShape(**SMALL, kv_heads=2)).prefill([])
