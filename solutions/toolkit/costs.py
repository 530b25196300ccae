"""What moving and recomputing a KV cache cost: closed forms, fits, and published figures. No torch here.

MB is 10**6 bytes and Gbps 10**9 bits a second throughout; times are in ms.
"""
import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8": 1}
DEFAULT_MFU = 0.45  # share of a GPU's peak that prefill reaches; B* is linear in it
FIT_TOKENS = (64, 256, 1024, 2048, 4096)  # other sizes of a sweep are held out, to show the fit's error


def transfer_ms(cache_transfer_mb, link_gbps):
    """Time to move `cache_transfer_mb` (10**6 bytes) over `link_gbps` (10**9 bits a second), in ms."""
    return link_ms(cache_transfer_mb * 1e6, link_gbps)


def link_ms(payload_bytes, link_gbps):
    """The same for a payload in bytes. ValueError for a link of 0 Gbps or less."""
    if link_gbps <= 0:
        raise ValueError(f"link_gbps: found {link_gbps}, expected more than 0")
    return payload_bytes * 8 / (link_gbps * 1e6)  # 1 Gbps carries 10**6 bits a ms


def kv_bytes_per_token(layers, kv_heads, head_dim, value_bytes, latent_dim=0):
    """Bytes of KV cache that one token takes (κ): a key and a value for every layer and KV head.

    With `latent_dim` (MLA: kv_lora_rank + rope_dim) a layer keeps one latent vector instead.
    """
    values = latent_dim if latent_dim else 2 * kv_heads * head_dim
    return layers * values * value_bytes


@dataclass(frozen=True)
class ModelShape:
    """What a model's costs depend on, from its public configuration.

    `active_params` counts what one token uses, without embedding and output head. `attention_dim` is
    the mean of a query's and a value's size per head where that is not `head_dim` (MLA).
    """

    name: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    active_params: float
    latent_dim: int = 0
    attention_dim: int = 0
    remark: str = ""

    def kv_bytes(self, value_bytes=2):
        """KV cache bytes a token; `value_bytes` 2 is bfloat16 or float16."""
        return kv_bytes_per_token(self.layers, self.kv_heads, self.head_dim, value_bytes, self.latent_dim)

    def flops_per_token(self):
        """(a, b): causal prefill of n tokens takes a·n + b·n² floating-point operations."""
        attention = self.layers * self.heads * (self.attention_dim or self.head_dim)
        return 2 * self.active_params, 2 * attention


MODELS = {
    shape.name: shape
    for shape in (
        ModelShape("Llama-3.1-8B", 32, 32, 8, 128, 6.98e9),
        ModelShape("Llama-3.1-70B", 80, 64, 8, 128, 68.5e9),
        ModelShape("Qwen2.5-7B", 28, 28, 4, 128, 6.53e9),
        ModelShape("Qwen2.5-72B", 80, 64, 8, 128, 70.2e9),
        ModelShape("Qwen3-235B-A22B", 94, 64, 4, 128, 20.9e9),
        ModelShape("Mixtral-8x7B", 32, 32, 8, 128, 12.6e9),
        ModelShape(
            "DeepSeek-V3 MLA", 61, 128, 128, 128, 35.6e9, latent_dim=512 + 64, attention_dim=(192 + 128) // 2,
            remark="dense layers and v_head_dim not checked",
        ),
    )
}


@dataclass(frozen=True)
class Gpu:
    """Dense bf16 or fp16 TFLOP/s, memory GB/s and GB of one GPU; show it as unverified unless `verified`."""

    name: str
    tflops: float
    memory_gb_per_s: float
    memory_gb: float
    verified: bool = True
    source: str = "vendor datasheet, to be checked"


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("A100 SXM 80 GB", 312, 2039, 80),
        Gpu("H100 SXM", 989, 3350, 80),
        Gpu("H200 SXM", 989, 4800, 141),
        Gpu("H20", 148, 4000, 96, verified=False),
        Gpu("L40S", 362, 864, 48, verified=False),
        Gpu("L4", 121, 300, 24, verified=False),
        Gpu("A10", 125, 600, 24),
        Gpu("T4", 65, 320, 16),
        Gpu("RTX 4090", 165, 1008, 24),
    )
}

MEASURED_PREFILL_SOURCE = "Patel et al., Splitwise, ISCA 2024: Llama2-70B, batch 1, median of real runs"
MEASURED_KV_BYTES = 327_680  # Llama2-70B in 16 bits: 80 layers, 8 KV heads of 128
MEASURED_PREFILL_MS = {  # GPUs of one instance -> {prompt tokens: ms}
    "A100 TP2": {128: 81.08, 256: 112.9, 512: 195.5, 1024: 377.1, 2048: 688.1, 4096: 1485, 8192: 2990},
    "A100 TP4": {128: 63.65, 256: 78.57, 512: 127.0, 1024: 227.1, 2048: 403.3, 4096: 965.2, 8192: 2278},
    "A100 TP8": {128: 65.35, 256: 66.76, 512: 93.02, 1024: 154.5, 2048: 274.2, 4096: 661.2, 8192: 1550},
    "H100 TP2": {128: 48.33, 256: 51.85, 512: 83.83, 1024: 158.0, 2048: 310.3, 4096: 642.7, 8192: 1340},
    "H100 TP4": {128: 49.09, 256: 50.98, 512: 59.72, 1024: 105.6, 2048: 200.7, 4096: 463.5, 8192: 953.6},
    "H100 TP8": {128: 58.19, 256: 51.66, 512: 53.86, 1024: 77.91, 2048: 136.8, 4096: 390.3, 8192: 844.9},
}


class Peak(NamedTuple):
    """Top of the hump of B*: prompt tokens and Gbps."""

    tokens: float
    gbps: float


@dataclass(frozen=True)
class Recompute:
    """Prefill time c + d·n + e·n² of n prompt tokens, for a KV cache of `kv_bytes` a token.

    `c_ms` in ms, `d_ms` in ms a token, `e_ms` in ms a token²; none below 0, and d or e above it.
    """

    c_ms: float
    d_ms: float
    e_ms: float
    kv_bytes: float

    def __post_init__(self):
        if min(self.c_ms, self.d_ms, self.e_ms) < 0 or self.d_ms + self.e_ms <= 0 or self.kv_bytes <= 0:
            raise ValueError(f"{self}: expected no negative coefficient, d_ms or e_ms and kv_bytes above 0")

    def ms(self, tokens):
        """Recompute time of `tokens` prompt tokens (a number or an array), in ms."""
        return self.c_ms + self.d_ms * tokens + self.e_ms * tokens * tokens

    def crossing_gbps(self, tokens):
        """B*(n) in Gbps: on a faster link, moving the cache of `tokens` tokens beats recomputing it."""
        return measured_crossing_gbps(self.kv_bytes, tokens, self.ms(tokens))

    @property
    def peak(self):
        """Where B* is highest: n = sqrt(c/e). Without curvature B* only rises, and the peak lies at infinity."""
        tokens = math.sqrt(self.c_ms / self.e_ms) if self.e_ms else math.inf if self.c_ms else 0.0
        ms_a_token = self.d_ms + 2 * math.sqrt(self.c_ms * self.e_ms)
        return Peak(tokens, _gbps(self.kv_bytes, ms_a_token) if ms_a_token else math.inf)

    def crossing_tokens(self, link_gbps, low=1, high=1_000_000):
        """Prompt lengths in [low, high] at which both ways take as long on this link: 0, 1 or 2, ascending."""
        slope = self.d_ms - link_ms(self.kv_bytes, link_gbps)  # ms a token
        roots = _positive_roots(self.e_ms, slope, self.c_ms)
        return [n for n in roots if low <= n <= high]


@dataclass(frozen=True)
class Transfer:
    """Transfer time a + b·n of n prompt tokens: `a_ms` in ms, `b_ms` in ms a token."""

    a_ms: float
    b_ms: float

    def ms(self, tokens):
        """Transfer time of `tokens` prompt tokens (a number or an array), in ms."""
        return self.a_ms + self.b_ms * tokens


class FitError(NamedTuple):
    """|fit / measured - 1| over some sizes: mean and largest, as fractions."""

    mean: float
    largest: float


def measured_crossing_gbps(kv_bytes, tokens, recompute_ms):
    """B* in Gbps of one measured point: the link on which moving takes as long as `recompute_ms`."""
    return _gbps(kv_bytes, recompute_ms / tokens)


def prefill_recompute(model, gpu, mfu=DEFAULT_MFU, value_bytes=2):
    """The closed form of a model's prefill on a GPU that reaches the share `mfu` of its peak."""
    if not 0 < mfu <= 1:
        raise ValueError(f"mfu: found {mfu}, expected more than 0 and at most 1")
    linear, square = model.flops_per_token()
    flops_a_ms = gpu.tflops * 1e12 * mfu / 1e3
    return Recompute(0.0, linear / flops_a_ms, square / flops_a_ms, model.kv_bytes(value_bytes))


def prefill_ms(model, gpu, tokens, mfu=DEFAULT_MFU):
    """Closed-form time to prefill `tokens` tokens, in ms."""
    return prefill_recompute(model, gpu, mfu).ms(tokens)


def fit_transfer(tokens, ms):
    """Transfer a + b·n through measured points, by relative least squares; ValueError for under 2 sizes."""
    return Transfer(*_relative_fit(tokens, ms, powers=(0, 1)))


def fit_recompute(tokens, ms, kv_bytes):
    """Recompute c + d·n + e·n² through measured points; ValueError for fewer than 3 different sizes."""
    return Recompute(*_relative_fit(tokens, ms, powers=(0, 1, 2)), kv_bytes)


def fit_error(fit, tokens, ms):
    """FitError of a Transfer or Recompute at these points; held-out ones, if it is to mean anything."""
    errors = np.abs(fit.ms(np.asarray(tokens, float)) / np.asarray(ms, float) - 1)
    return FitError(float(errors.mean()), float(errors.max()))


def _gbps(kv_bytes, ms_a_token):
    return 8 * kv_bytes / ms_a_token / 1e6  # bits a ms are 1000 bits a second


def _positive_roots(e, slope, c):
    """Roots above 0 of e·n² + slope·n + c, ascending, for e and c of at least 0."""
    if slope >= 0:
        return []  # both sides only rise apart
    if e == 0:
        return [-c / slope] if c else []
    square = slope * slope - 4 * e * c
    if square < 0:
        return []
    # The sum below adds two numbers of one sign; the textbook formula would subtract nearly equal ones.
    half = (-slope + math.sqrt(square)) / 2
    return sorted({n for n in (c / half, half / e) if n > 0})


def _relative_fit(tokens, ms, powers):
    """Coefficients of the powers of n, none below 0, with the least sum of squared relative errors.

    Relative, because plain least squares listens to the longest prompts only. A coefficient that
    would come out negative is left out instead: every choice of terms is tried, there are at most 7.
    """
    n, ms = np.asarray(tokens, float), np.asarray(ms, float)
    if len(set(n.tolist())) < len(powers):
        raise ValueError(f"tokens: found {len(set(n.tolist()))} different sizes, expected at least {len(powers)}")
    if min(ms.min(), n.min()) <= 0:
        raise ValueError("tokens, ms: found a value of 0 or less, expected all above 0")
    scale = float(n.max())  # keeps the columns of like size
    columns = np.stack([(n / scale) ** power / ms for power in powers], axis=1)
    best, least = None, math.inf
    for count in range(1, len(powers) + 1):
        for chosen in itertools.combinations(range(len(powers)), count):
            found, *_ = np.linalg.lstsq(columns[:, chosen], np.ones(len(n)), rcond=None)
            residual = float(np.sum((columns[:, chosen] @ found - 1) ** 2))
            if found.min() >= 0 and residual < least:
                best, least = dict(zip(chosen, found.tolist(), strict=True)), residual
    return [best.get(i, 0.0) / scale**power for i, power in enumerate(powers)]
