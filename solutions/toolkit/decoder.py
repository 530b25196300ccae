"""A small real decoder in torch: its prefill builds a real KV cache, its decode continues from one.

RMSNorm, rotary positions, grouped-query attention and SwiGLU as in the Llama family; random weights,
since nobody reads its text. A KV cache is a list of one (K, V) pair a layer, each a tensor of shape
(kv_heads, tokens, head_dim); K is stored with its position already in it.
"""
import contextlib
import math
from dataclasses import dataclass

from toolkit.costs import DTYPE_BYTES, kv_bytes_per_token

ROPE_BASE = 10_000.0
NORM_EPSILON = 1e-6


@dataclass(frozen=True)
class DecoderShape:
    """Sizes of a decoder. `kv_heads` is the knob: `heads` gives MHA, 1 gives MQA, between them GQA."""

    layers: int = 4
    d: int = 256
    heads: int = 8
    kv_heads: int = 8
    head_dim: int = 32
    ff: int = 704
    vocab: int = 512

    def __post_init__(self):
        for name, size in vars(self).items():
            if type(size) is not int or size < 1:
                raise ValueError(f"{name}: found {size!r}, expected a whole number of at least 1")
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads: found {self.kv_heads}, expected a divisor of heads, {self.heads}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim: found {self.head_dim}, expected an even number (rotary positions)")

    def kv_bytes(self, dtype="float32"):
        """KV cache bytes a token."""
        return kv_bytes_per_token(self.layers, self.kv_heads, self.head_dim, DTYPE_BYTES[dtype])


class Decoder:
    """The decoder with weights drawn from `seed`: equal seeds, shapes and dtypes give equal weights.

    `device` is anything torch takes; `dtype` is a torch dtype's name. One sequence at a time.
    """

    def __init__(self, shape=None, seed=0, device="cpu", dtype="float32"):
        import torch

        self.shape = shape = shape or DecoderShape()
        self.device = torch.device(device)
        self.dtype = getattr(torch, dtype)
        random = torch.Generator().manual_seed(seed)  # on the CPU, so that every device gets the same weights

        def weights(rows, columns):
            drawn = torch.randn(rows, columns, generator=random) / math.sqrt(columns)
            return drawn.to(self.device, self.dtype)

        width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.embedding = weights(shape.vocab, shape.d) * math.sqrt(shape.d)
        self.layers = [
            {
                "qkv": weights(width + 2 * kv_width, shape.d),
                "out": weights(shape.d, width),
                "gate_up": weights(2 * shape.ff, shape.d),
                "down": weights(shape.d, shape.ff),
            }
            for _ in range(shape.layers)
        ]
        self.head = weights(shape.vocab, shape.d)
        exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float64) / shape.head_dim
        self.frequencies = (ROPE_BASE**-exponents).to(self.device, torch.float32)

    def prefill(self, tokens):
        """(logits after the last token, shape (vocab,); KV cache of all) for a 1-d sequence of token ids."""
        if len(tokens) == 0:
            raise ValueError("tokens: found none, expected at least 1")
        return self._run(tokens, [None] * self.shape.layers, 0)

    def decode(self, token, cache, position=None):
        """(logits, longer cache) after one more token id; `cache` itself is left as it was.

        `position` is the token's, by default the number of tokens in the cache.
        """
        cached = cache[0][0].shape[1]
        return self._run([int(token)], cache, cached if position is None else position)

    def _run(self, tokens, cache, position):
        import torch

        with torch.no_grad():
            ids = torch.as_tensor(tokens, dtype=torch.long, device=self.device)
            turns = rope_turns(self.frequencies, position, len(ids))
            x = self.embedding[ids]
            longer = []
            for weights, old in zip(self.layers, cache, strict=True):
                attended, pair = self._attention(rms_norm(x), weights, turns, old)
                x = x + attended
                gate, up = (rms_norm(x) @ weights["gate_up"].T).chunk(2, dim=-1)
                x = x + (torch.nn.functional.silu(gate) * up) @ weights["down"].T
                longer.append(pair)
            return (rms_norm(x[-1]) @ self.head.T).float(), longer

    def _attention(self, x, weights, turns, old):
        """Attention of x's rows over the cached pair and themselves, and the pair with them added."""
        import torch

        shape, tokens = self.shape, len(x)
        sizes = [shape.heads, shape.kv_heads, shape.kv_heads]
        split = (x @ weights["qkv"].T).split([size * shape.head_dim for size in sizes], dim=-1)
        q, k, v = (
            part.view(tokens, size, shape.head_dim).transpose(0, 1)
            for part, size in zip(split, sizes, strict=True)
        )
        q, k, v = apply_rope(q, turns), apply_rope(k, turns), v.contiguous()
        if old is not None:
            k, v = torch.cat([old[0], k], dim=1), torch.cat([old[1], v], dim=1)
        # Query heads in groups, each group with its one KV head: (kv_heads, heads / kv_heads, tokens, head_dim).
        grouped = q.reshape(shape.kv_heads, -1, tokens, shape.head_dim)
        wide = grouped.shape[1]
        mixed = torch.nn.functional.scaled_dot_product_attention(
            grouped,
            k.unsqueeze(1).expand(-1, wide, -1, -1),
            v.unsqueeze(1).expand(-1, wide, -1, -1),
            is_causal=old is None,  # a single new token may look at everything
        )
        joined = mixed.reshape(shape.heads, tokens, shape.head_dim).transpose(0, 1).reshape(tokens, -1)
        return joined @ weights["out"].T, (k, v)


def rms_norm(x):
    """Rows scaled to a root mean square of 1, worked out in float32."""
    wide = x.float()
    return (wide * (wide.square().mean(dim=-1, keepdim=True) + NORM_EPSILON).rsqrt()).to(x.dtype)


def rope_turns(frequencies, position, tokens):
    """(cos, sin) of the angles position·frequency for `tokens` positions from `position` on."""
    import torch

    positions = torch.arange(position, position + tokens, device=frequencies.device, dtype=torch.float32)
    angles = positions[:, None] * frequencies
    return angles.cos(), angles.sin()


def apply_rope(x, turns):
    """Rotary positions: turns each pair (i, i + head_dim / 2) of x (heads, tokens, head_dim) by its angle."""
    import torch

    cos, sin = turns
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


@contextlib.contextmanager
def one_thread():
    """torch works in the calling thread alone, so that this thread's CPU time is all there is.

    The small decoder gains nothing from more threads, and loses much by them on a busy machine.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def random_tokens(count, vocab=512, seed=0):
    """A 1-d CPU tensor of `count` token ids below `vocab`; longer prompts of a seed begin with the shorter ones."""
    import torch

    return torch.randint(vocab, (count,), generator=torch.Generator().manual_seed(seed))
