"""Every route moves a cache bit by bit, and each planted bug is caught by the check that can see it."""
import os
import sys

import pytest
import torch

from toolkit import handoff
from toolkit.decoder import Decoder, DecoderShape, random_tokens
from toolkit.handoff import (
    BUGS,
    HandoffReport,
    Peer,
    break_handoff,
    cache_bytes,
    copy_in_memory,
    device_routes,
    pack_cache,
    same_bits,
    send_paced,
    unpack_cache,
    verify_handoff,
)

GQA = DecoderShape(kv_heads=2)


@pytest.fixture(scope="module")
def decoder():
    return Decoder(GQA, seed=2)


@pytest.fixture(scope="module")
def cache(decoder):
    return decoder.prefill(random_tokens(48))[1]


@pytest.fixture(scope="module")
def peer():
    with Peer() as running:
        yield running


def test_a_copy_is_equal_and_a_copy(cache):
    arrived = copy_in_memory(cache)
    assert same_bits(cache, arrived)
    assert all(a.data_ptr() != b.data_ptr() for old, new in zip(cache, arrived) for a, b in zip(old, new))


def test_one_message_holds_the_cache_and_nothing_else(cache):
    payload = pack_cache(cache)
    assert payload.dtype == torch.uint8 and len(payload) == cache_bytes(cache) == 48 * GQA.kv_bytes()
    assert same_bits(cache, unpack_cache(payload, cache))
    half = [(k.half(), v.half()) for k, v in cache]
    assert same_bits(half, unpack_cache(pack_cache(half), half))


def test_bits_are_compared_not_values(cache):
    zero = [(torch.zeros(1, 1, 2), torch.full((1, 1, 2), float("nan")))]
    minus = [(-zero[0][0], zero[0][1])]
    assert same_bits(zero, zero) and not same_bits(zero, minus)
    assert not same_bits(cache, cache[:-1])
    assert not same_bits(cache, [(k.double(), v) for k, v in cache])
    assert not same_bits(cache, break_handoff(cache, "last token missing")[0])


@pytest.mark.parametrize("name", ["over_gloo", "over_shared_memory"])
def test_another_process_receives_every_bit(peer, decoder, name):
    for count in (48, 20, 20):
        cache = decoder.prefill(random_tokens(count, seed=count + len(name)))[1]
        getattr(peer, name)(cache)
        assert same_bits(cache, peer.returned(cache))
        cache[0][0].neg_()  # the same size with other content
        getattr(peer, name)(cache)
        assert same_bits(cache, peer.returned(cache))


def test_decode_after_a_handoff_to_another_process_is_the_colocated_one(peer, decoder):
    def route(cache):
        peer.over_gloo(cache)
        return peer.returned(cache)

    assert verify_handoff(decoder, random_tokens(40), route) == HandoffReport(True, True, True, 0.0)


def test_peer_says_why_it_cannot_start(peer):
    with pytest.raises(RuntimeError, match="in use already"), Peer():
        pass


def test_peer_cleans_up_and_reports_a_child_that_fails(monkeypatch):
    monkeypatch.setattr(handoff, "PEER_PROGRAM", "raise SystemExit('no torch here')")
    if torch.distributed.is_initialized():  # by the peer of the other tests
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: False)
    peer, before = Peer(), os.environ.get("GLOO_SOCKET_IFNAME")
    with pytest.raises(RuntimeError, match="no torch here"):
        peer.__enter__()
    assert peer._process.returncode is not None and not os.path.exists(peer._folder)
    assert os.environ.get("GLOO_SOCKET_IFNAME") == before


def test_shared_memory_without_room_is_refused_before_it_kills(peer, cache, monkeypatch):
    bigger = [(torch.zeros(1, 7, 64), torch.zeros(1, 7, 64))]
    monkeypatch.setattr(handoff.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 10}))
    with pytest.raises(RuntimeError, match="found 0 MB free"):
        peer.over_shared_memory(bigger)
    monkeypatch.undo()
    peer.over_shared_memory(bigger)
    assert same_bits(bigger, peer.returned(bigger))


def test_paced_link_sleeps_until_its_deadline(cache, monkeypatch):
    now, slept = [100.0], []
    monkeypatch.setattr(handoff.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(handoff.time, "sleep", slept.append)

    def slow_copy(cache):
        now[0] += 0.001
        return [(k.clone(), v.clone()) for k, v in cache]

    monkeypatch.setattr(handoff, "copy_in_memory", slow_copy)
    assert same_bits(cache, send_paced(cache, 0.05))
    assert slept == [pytest.approx(48 * 2048 * 8 / 0.05e9 - 0.001)]  # the copy's own time is part of it


@pytest.mark.parametrize("link_gbps", [0.019, 1.01, 200, 0, float("nan")])
def test_paced_link_outside_its_range_names_the_formula(cache, link_gbps):
    with pytest.raises(ValueError, match=r"0\.02 to 1\.0 .*MB \* 8 / Gbps is ms"):
        send_paced(cache, link_gbps)


def test_a_right_handoff_passes_all_checks(decoder):
    assert verify_handoff(decoder, random_tokens(60)).caught_by is None


@pytest.mark.parametrize("bug, caught_by", [
    ("last token missing", "payload"), ("position off by one", "logits"), ("bf16 on the wire", "payload"),
    ("layers swapped", "payload"), ("slots permuted", "payload"),
])
def test_each_bug_is_caught_by_its_check(bug, caught_by):
    for seed in range(2):
        report = verify_handoff(Decoder(GQA, seed=seed), random_tokens(60, seed=seed), bug=bug)
        assert report.caught_by == caught_by
        assert not report.logits


def test_tokens_are_a_weak_check():
    """Of 3 seeds: swapped layers always change a token, bf16 on the wire never does."""
    def changed(bug):
        reports = [verify_handoff(Decoder(GQA, seed=s), random_tokens(60, seed=s), bug=bug) for s in range(3)]
        return sum(not report.tokens for report in reports)

    assert changed("layers swapped") == 3
    assert 0 < changed("position off by one")
    assert changed("bf16 on the wire") == 0


@pytest.mark.parametrize("kv_heads, tokens", [(8, False), (2, True)])
def test_what_the_chapter_says_of_a_position_off_by_one(kv_heads, tokens):
    decoder = Decoder(DecoderShape(kv_heads=kv_heads))
    report = verify_handoff(decoder, random_tokens(96), bug="position off by one")
    assert (report.payload, report.logits, report.tokens) == (True, False, tokens)


@pytest.mark.parametrize("kv_heads", [8, 1])
def test_permuted_slots_change_no_token_and_logits_by_rounding_only(kv_heads):
    """K carries its position, so the order of slots is free; sums in another order round differently."""
    for seed in range(2):
        decoder = Decoder(DecoderShape(kv_heads=kv_heads), seed=seed)
        permuted = verify_handoff(decoder, random_tokens(60, seed=seed), bug="slots permuted")
        wire = verify_handoff(decoder, random_tokens(60, seed=seed), bug="bf16 on the wire")
        assert not permuted.payload and permuted.tokens
        assert permuted.logit_error < 1e-5 < wire.logit_error


def test_bugs_have_the_names_of_the_chapter():
    assert len(BUGS) == 5
    with pytest.raises(ValueError, match="found 'typo', expected None or one of: last token missing"):
        break_handoff([(torch.zeros(1, 2, 2), torch.zeros(1, 2, 2))], "typo")


class StandInGpu:
    """What device_routes asks of a GPU, on the CPU."""

    device = "cpu"

    def __init__(self, second=None):
        self.second, self.buffers = second, []

    def host_buffer(self, size, pinned):
        self.buffers.append((size, pinned))
        return torch.empty(size, dtype=torch.uint8)


def test_device_routes_move_every_bit_through_buffers_made_before(cache):
    gpu = StandInGpu(second="cpu")
    routes = device_routes(cache, gpu)
    assert list(routes) == ["device to device", "pinned host", "pageable host", "second GPU"]
    assert gpu.buffers == [(cache_bytes(cache), True), (cache_bytes(cache), False)]
    for route in routes.values():
        arrived = route(cache)
        assert same_bits(cache, arrived) and arrived[0][0].data_ptr() != cache[0][0].data_ptr()
    assert len(gpu.buffers) == 2
    assert "second GPU" not in device_routes(cache, StandInGpu())


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no gloo over loopback by name")
def test_peers_can_follow_one_another(decoder, cache):
    if torch.distributed.is_initialized():
        pytest.skip("the peer of the other tests is running")
    for _ in range(2):
        with Peer() as one:
            one.over_gloo(cache)
            assert same_bits(cache, one.returned(cache))
    assert not torch.distributed.is_initialized()
