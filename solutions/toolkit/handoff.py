"""Really moving a KV cache, and checking what arrived.

A route is a function that takes a cache and gives back the cache that arrived; whoever wants times
takes them around it (toolkit.measure). A cache is what toolkit.decoder makes: one (K, V) pair a layer.
"""
import contextlib
import glob
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

from toolkit.costs import link_ms
from toolkit.decoder import one_thread

PACED_GBPS = (0.02, 1.0)  # slower takes too long to wait for, faster is drowned by the sleep's own error
ROOMY_BYTES = 256_000_000  # containers often come with 64 MB of /dev/shm only
PEER_SECONDS = 60  # importing torch in the other process may take many seconds on a busy machine

# The other process. It obeys one line of input at a time and answers each with one line. `gloo N` and
# `shared N FILE` take in N bytes and answer once all are in its own memory; `back` returns these over
# gloo, so that they can be compared. The end of its input is the end of it. Its own lines start with
# kv-peer, because some versions of gloo print lines of theirs.
PEER_PROGRAM = """
import datetime, sys
import torch
import torch.distributed as dist

torch.set_num_threads(1)
limit = datetime.timedelta(seconds=int(sys.argv[2]))
print("kv-peer here", flush=True)
store = dist.FileStore(sys.argv[1], 2)
store.set_timeout(limit)
dist.init_process_group("gloo", store=store, rank=1, world_size=2, timeout=limit)
mine = None
print("kv-peer ready", flush=True)
for line in sys.stdin:
    command, *details = line.split(maxsplit=2)
    if command == "back":
        dist.send(mine, 0)
    else:
        count = int(details[0])
        if mine is None or len(mine) != count:
            mine = torch.empty(count, dtype=torch.uint8)
        if command == "gloo":
            dist.recv(mine, 0)
        else:
            mine.copy_(torch.from_file(details[1].strip(), shared=True, size=count, dtype=torch.uint8))
    print("kv-peer done", flush=True)
"""

BUGS = (
    "last token missing",
    "position off by one",
    "bf16 on the wire",
    "layers swapped",
    "slots permuted",
)


def cache_tokens(cache):
    """Number of tokens in a cache."""
    return cache[0][0].shape[1]


def cache_bytes(cache):
    """Payload bytes of a cache."""
    return sum(part.numel() * part.element_size() for pair in cache for part in pair)


def pack_cache(cache):
    """The cache as one message: a 1-d uint8 tensor on the same device, K before V, layer after layer."""
    import torch

    return torch.cat([part.reshape(-1).view(torch.uint8) for pair in cache for part in pair])


def unpack_cache(payload, like):
    """The cache in `payload`; `like` is a cache of the same layers, shapes and dtype. Nothing is copied."""
    parts = [part for pair in like for part in pair]
    pieces = payload.split([part.numel() * part.element_size() for part in parts])
    whole = [piece.view(part.dtype).view(part.shape) for piece, part in zip(pieces, parts, strict=True)]
    return list(zip(whole[::2], whole[1::2], strict=True))


def copy_in_memory(cache):
    """Route: a copy in the same memory (on a GPU: device to device)."""
    return [(k.clone(), v.clone()) for k, v in cache]


def send_paced(cache, link_gbps):
    """Route: a copy that arrives no sooner than a link of `link_gbps` would deliver it, a real delay.

    One message, then a sleep to its deadline; a sleep may end some percent late. ValueError outside
    PACED_GBPS: there the formula is the better answer.
    """
    slowest, fastest = PACED_GBPS
    if not slowest <= link_gbps <= fastest:
        raise ValueError(
            f"link_gbps: found {link_gbps}, expected {slowest} to {fastest} for a real delay; "
            "for other links use the formula: MB * 8 / Gbps is ms"
        )
    deadline = time.perf_counter() + link_ms(cache_bytes(cache), link_gbps) / 1e3
    arrived = copy_in_memory(cache)
    time.sleep(max(0.0, deadline - time.perf_counter()))
    return arrived


class Peer:
    """Another Python process on this machine that takes in caches, over gloo on loopback or shared memory.

    Use as `with Peer() as peer:`. A route's call returns once the peer has every byte in memory of
    its own; `returned(like)` then fetches them back. Starting takes seconds, since it imports torch.
    RuntimeError where torch has no gloo, a process group exists already, or the peer does not answer.
    """

    def __enter__(self):
        import datetime

        import torch.distributed as dist

        if not (dist.is_available() and dist.is_gloo_available()):
            raise RuntimeError("this torch has no gloo; use copy_in_memory")
        if dist.is_initialized():
            raise RuntimeError("torch.distributed is in use already; call its destroy_process_group() first")
        limit = datetime.timedelta(seconds=PEER_SECONDS)
        with contextlib.ExitStack() as stack:
            self._folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="kv-", dir=_memory_folder()))
            stack.enter_context(_loopback_only())
            # Not a TCPStore: without a network it complains, on the page, that a host's name is unknown.
            meeting_place = os.path.join(self._folder, "store")
            store = dist.FileStore(meeting_place, 2)
            store.set_timeout(limit)
            self._process = subprocess.Popen(
                [sys.executable, "-c", PEER_PROGRAM, meeting_place, str(PEER_SECONDS)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            stack.callback(self._stop)
            self._answer("here")
            try:
                dist.init_process_group("gloo", store=store, rank=0, world_size=2, timeout=limit)
            except RuntimeError as error:
                raise RuntimeError(f"the other process did not join: {self._last_words()}") from error
            stack.callback(dist.destroy_process_group)
            self._answer("ready")
            self._mapped = None
            self._cleanup = stack.pop_all()
        return self

    def __exit__(self, *_):
        self._mapped = None
        self._cleanup.close()

    def over_gloo(self, cache):
        """Route: one message through torch.distributed gloo on the loopback interface."""
        import torch.distributed as dist

        payload = pack_cache(cache)
        self._ask(f"gloo {len(payload)}")
        dist.send(payload, 1)
        self._answer("done")

    def over_shared_memory(self, cache):
        """Route: written to memory that both processes map; the peer copies it into its own."""
        size = cache_bytes(cache)
        path = os.path.join(self._folder, f"{size}.bin")
        if self._mapped is None or len(self._mapped) != size:
            self._map(path, size)
        self._mapped.copy_(pack_cache(cache))
        self._ask(f"shared {size} {path}")
        self._answer("done")

    def returned(self, like):
        """What the peer holds since the last route, as a cache shaped as `like`, fetched back over gloo."""
        import torch
        import torch.distributed as dist

        payload = torch.empty(cache_bytes(like), dtype=torch.uint8)
        self._ask("back")
        dist.recv(payload, 1)
        self._answer("done")
        return unpack_cache(payload, like)

    def _map(self, path, size):
        import torch

        self._mapped = None
        for old in glob.glob(os.path.join(self._folder, "*.bin")):
            os.remove(old)
        free = shutil.disk_usage(self._folder).free
        if free < size:  # writing to a map without room behind it would kill this process
            raise RuntimeError(f"shared memory: found {free / 1e6:.0f} MB free, expected {size / 1e6:.0f} MB")
        self._mapped = torch.from_file(path, shared=True, size=size, dtype=torch.uint8)

    def _ask(self, line):
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise RuntimeError(f"the other process is gone: {self._last_words()}") from error

    def _answer(self, expected):
        for line in self._process.stdout:
            if line.strip() == f"kv-peer {expected}":
                return
        raise RuntimeError(f"the other process stopped: {self._last_words()}")

    def _last_words(self):
        self._process.kill()
        return self._process.stderr.read().strip()[-400:] or "without a word"

    def _stop(self):
        self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._process.stderr.close()


def _memory_folder():
    """A folder that lies in memory and has room, or None: then the system keeps a mapped file in memory."""
    folder = "/dev/shm"
    roomy = os.access(folder, os.W_OK) and shutil.disk_usage(folder).free >= ROOMY_BYTES
    return folder if roomy else None


@contextlib.contextmanager
def _loopback_only():
    """gloo looks up the host's name to choose an interface, which fails on many laptops: name it instead."""
    name, before = "GLOO_SOCKET_IFNAME", os.environ.get("GLOO_SOCKET_IFNAME")
    loopback = {"linux": "lo", "darwin": "lo0"}.get(sys.platform)
    if loopback and before is None:
        os.environ[name] = loopback
    try:
        yield
    finally:
        if loopback and before is None:
            os.environ.pop(name, None)


def device_routes(cache, gpu):
    """{name: route} on a GPU for caches sized as `cache`: buffers are allocated here, not while timing.

    `gpu` is a toolkit.measure.CudaDevice. Pinned copies do not block the CPU: time them by events on
    the stream they run on. Pageable ones do: time them by wall clock.
    """
    import torch

    size = cache_bytes(cache)
    buffers = {"pinned host": gpu.host_buffer(size, pinned=True), "pageable host": gpu.host_buffer(size, pinned=False)}

    def through(host, pinned):
        def route(cache):
            host.copy_(pack_cache(cache), non_blocking=pinned)
            return unpack_cache(host.to(gpu.device, non_blocking=pinned, copy=True), cache)

        return route

    routes = {"device to device": copy_in_memory}
    routes.update({name: through(host, name == "pinned host") for name, host in buffers.items()})
    if gpu.second is not None:
        target = torch.device(gpu.second)
        routes["second GPU"] = lambda cache: unpack_cache(
            pack_cache(cache).to(target, non_blocking=True, copy=True), cache
        )
    return routes


def break_handoff(cache, bug):
    """(cache, position of the next token) as a destination with this planted bug would have them.

    `bug` is one of BUGS, or None for a right handoff; ValueError for another name. Needs two layers.
    """
    import torch

    tokens = cache_tokens(cache)
    if bug is None:
        return cache, tokens
    if bug == "last token missing":
        return [(k[:, :-1], v[:, :-1]) for k, v in cache], tokens - 1
    if bug == "position off by one":
        return cache, tokens + 1
    if bug == "bf16 on the wire":
        return [(k.bfloat16().to(k.dtype), v.bfloat16().to(v.dtype)) for k, v in cache], tokens
    if bug == "layers swapped":
        return [cache[1], cache[0], *cache[2:]], tokens
    if bug == "slots permuted":
        order = torch.randperm(tokens, generator=torch.Generator().manual_seed(0)).to(cache[0][0].device)
        return [(k[:, order], v[:, order]) for k, v in cache], tokens
    raise ValueError(f"bug: found {bug!r}, expected None or one of: {', '.join(BUGS)}")


@dataclass(frozen=True)
class HandoffReport:
    """What each check of a handoff said (True: equal), and by how much the first logits differ at most."""

    payload: bool
    logits: bool
    tokens: bool
    logit_error: float

    @property
    def caught_by(self):
        """The first check that fails, in the order payload, logits, tokens; None when all are equal."""
        return next((name for name in ("payload", "logits", "tokens") if not getattr(self, name)), None)


def same_bits(left, right):
    """Whether two caches are equal bit by bit (unlike ==, this tells -0.0 from 0.0 and knows NaN)."""
    import torch

    if len(left) != len(right):
        return False
    pairs = [parts for a, b in zip(left, right, strict=True) for parts in zip(a, b, strict=True)]
    if any(a.shape != b.shape or a.dtype != b.dtype for a, b in pairs):
        return False
    # A view as bytes needs at least one token, and numbers that lie in order.
    return all(
        torch.equal(a.contiguous().view(torch.uint8).cpu(), b.contiguous().view(torch.uint8).cpu()) for a, b in pairs
    )


def verify_handoff(decoder, prompt, route=copy_in_memory, bug=None, steps=12):
    """Prefill `prompt`, hand its cache over, decode on both sides, and compare: a HandoffReport.

    `route` takes a cache and returns what arrived; `bug` (one of BUGS) breaks it on the way. The
    colocated side decodes `steps` tokens greedily from the original cache, the other from the arrived one.
    """
    with one_thread():
        logits, cache = decoder.prefill(prompt)
        first = int(logits.argmax())
        arrived, position = break_handoff(route(cache), bug)
        stayed_logits, stayed_tokens = decode_greedily(decoder, first, cache, cache_tokens(cache), steps)
        moved_logits, moved_tokens = decode_greedily(decoder, first, arrived, position, steps)
    return HandoffReport(
        payload=same_bits(cache, arrived),
        logits=bool((stayed_logits == moved_logits).all()),
        tokens=stayed_tokens == moved_tokens,
        logit_error=float((stayed_logits - moved_logits).abs().max()),
    )


def decode_greedily(decoder, token, cache, position, steps):
    """(logits of the first step, the `steps` likeliest next tokens) from `token` at `position` on."""
    first_logits, tokens = None, []
    for step in range(steps):
        logits, cache = decoder.decode(token, cache, position + step)
        first_logits = logits if first_logits is None else first_logits
        token = int(logits.argmax())
        tokens.append(token)
    return first_logits, tokens
