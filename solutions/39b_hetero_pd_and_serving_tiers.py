# %% [markdown] tags=["zh"]
# # 39b · 异构 PD 与服务分层
#
# <!-- badges -->
#
# prefill 和 decode 分到了不同的机器上，而这些机器并不一样快。一个请求来了：它主要需要什么？它的 KV cache 搬过去，还是在对面重算？哪个资源池能接？都接不了怎么办？本章把这 4 个问题写成 4 个小函数，最后连成一条可以复查的路由记录。
#
# **学完你能够**
#
# - 按提示词和生成长度判断请求主要需要哪种资源；
# - 把 MB 和 Gbps 换算成 ms，在传输和重算之间选择；
# - 区分“这个池能运行请求”和“这个池能接收已有的 KV”；
# - 写出主池、回退池、拒绝三条路径，并说清每个池为什么被拒绝。
#
# **前置**：39a 推理分层与回退策略（先学它）。“38 PD 分离”和“Serving 重叠与状态交接”这两章尚未发布；知道 prefill 产生 KV cache、decode 读取它就够了。
#
# **时间**：约 120 分钟，只用 CPU。

# %% [markdown] tags=["en"]
# # 39b · Heterogeneous PD and serving tiers
#
# <!-- badges -->
#
# Prefill and decode now live on different machines, and the machines are not equally fast. A request arrives: what does it need most? Does its KV cache travel, or is it computed again on the other side? Which pool can take it? And if none can? This chapter turns these 4 questions into 4 small functions and joins them into a route record that somebody can review.
#
# **You will be able to**
#
# - tell from prompt and output length which resource a request needs most;
# - turn MB and Gbps into ms, and choose between transfer and recompute;
# - separate "this pool can run the request" from "this pool can accept the existing KV";
# - write the three paths primary, fallback and reject, and say why each pool was refused.
#
# **Prerequisites**: 39a Inference fallback and tiers (take it first). The chapters "38 Prefill-Decode Disaggregation" and "Serving Overlap and State Handoff" are not yet published; it is enough to know that prefill produces the KV cache and decode reads it.
#
# **Time**: about 120 minutes, CPU only.

# %%
from toolkit.checks import case, check, demo, hidden_rng, scorecard, why
from toolkit.crossover_panels import crossover_panel, decision_map_panel, destinations_panel
from toolkit.decoder import Decoder, DecoderShape, random_tokens
from toolkit.experiments import (
    can_measure,
    handoff_table,
    kv_heads_table,
    measure_cuda,
    measured_sources,
    progress_bar,
    read_profile,
    recorded_sources,
    sweep_report,
    time_routes,
    write_profile,
)
from toolkit.handoff import BUGS, cache_bytes, copy_in_memory, verify_handoff
from toolkit.measure import cuda_ready, sweep
from toolkit.profiles import load_profile
from toolkit.tier_panels import count_by, tiers_panel
from toolkit.traces import azure_trace

# %% [markdown] tags=["zh"]
# ## 怎样使用本章
#
# 每个 TODO 后面有检查。检查只打印一行：
#
# | 你看到 | 意思 |
# | --- | --- |
# | `[T2] ok` | 通过 |
# | `[T2] not done yet · 尚未完成` | 还没写 |
# | `[T2] got …, expected … : …` | 结果不对，冒号后面是提示 |
#
# `why("T2")` 显示 T2 出错的那次调用和完整的报错。可以用 Run All：检查没写完的 TODO 时只打印上面那一行，然后接着运行（检查单元格带 `raises-exception` 标签）。
#
# 4 个函数都遵守三条规则：**不改动传入的参数**；同样的输入总是给出同样的结果；结果恰好有表格里的字段，值是普通的 Python 值（`np.round(x, 4)` 得到 numpy 的数，`round(x, 4)` 得到普通的数）。表格就是约定：检查只用到表格里写明的规则。

# %% [markdown] tags=["en"]
# ## How to use this chapter
#
# Checks follow each TODO. A check prints a single line:
#
# | you see | meaning |
# | --- | --- |
# | `[T2] ok` | passed |
# | `[T2] not done yet · 尚未完成` | not written yet |
# | `[T2] got …, expected … : …` | a wrong result, with a hint after the colon |
#
# `why("T2")` shows the call that went wrong in T2 and the whole error. Run All is fine: the check of an unfinished TODO prints its line, and the run goes on (check cells carry the tag `raises-exception`).
#
# All 4 functions follow three rules: **never change the inputs**; the same input always gives the same result; a result has exactly the fields of its table, with plain Python values (`np.round(x, 4)` gives a numpy number, `round(x, 4)` a plain one). The tables are the contract: checks use only rules that the tables state.

# %% [markdown] tags=["zh"]
# ## 本章的词
#
# 39a 的词（prefill、decode、KV cache、驻留、抢占、交接、路由器、worker、熔断器、backend）意思不变。另外还有：
#
# | 词 | 意思 |
# | --- | --- |
# | TTFT、TPOT | 到第一个 token 的时间；之后每个 token 的时间 |
# | 资源池、链路 | 做同一种工作的一组同样的机器；两个池之间的网络，以 Gbps 计 |
# | 异构 PD | prefill 和 decode 分在不同的池，而且两边的卡不同 |
# | P95、P99 | 95 %（99 %）的请求不比这个值慢 |
# | SLO、goodput | 说好要达到的目标，例如“TTFT 的 P99 小于 500 ms”；每秒达到目标的请求数 |
# | 前缀命中（prefix hit） | 提示词的开头已经在池的 KV cache 里，不必再算 |
# | dtype、bf16 | 数的存储格式；bf16 每个数 2 字节，约 3 位有效数字 |
# | 布局、页（page） | 这些数在内存里的次序；paged KV 把 KV 存成固定大小的块 |
# | kv heads：MHA、GQA、MQA | 存 K 和 V 的头数：每个 Query 头各有一份；几个头共用一份；所有头共用一份 |
# | RMSNorm、RoPE、SwiGLU | decoder 一层里的部件：缩放、用旋转标出位置、前馈 |
# | logits | 模型给下一个 token 的每个候选打的分 |
# | 张量并行（TP） | 把每一层拆到几张卡上；TP2 是 2 张 |
# | TFLOP/s、利用率（MFU） | 每秒 10^12 次运算；模型的计算实际达到其中的几成 |
# | gloo、回环（loopback） | 在进程之间搬张量的软件；一台机器连到自己的网络 |
# | CUDA event、锁页内存 | GPU 上的计时标记；GPU 能直接读写的主机内存（可分页的要多复制一次） |
# | sidecar | 守在 worker 旁边的辅助进程 |
# | 限流（throttle） | 少放一些请求进来 |
# | 关键路径 | 决定总时间的那几步；与计算重叠的传输不在其中 |

# %% [markdown] tags=["en"]
# ## The words of this chapter
#
# The words of 39a (prefill, decode, KV cache, residency, preempt, handoff, router, worker, circuit, backend) keep their meaning. New here:
#
# | word | meaning |
# | --- | --- |
# | TTFT, TPOT | the time to the first token; the time for each token after it |
# | pool, link | a group of equal machines with the same job; the network between two pools, in Gbps |
# | heterogeneous PD | prefill and decode live in different pools, and the cards of the two differ |
# | P95, P99 | 95 % (99 %) of the requests are no slower than this value |
# | SLO, goodput | a target that was agreed on, such as "P99 of TTFT below 500 ms"; requests per second that meet their targets |
# | prefix hit | the beginning of the prompt is in the pool's KV cache already and need not be computed |
# | dtype, bf16 | the format in which numbers are stored; bf16 takes 2 bytes a number and keeps about 3 digits |
# | layout, page | the order of these numbers in memory; paged KV is stored in blocks of a fixed size |
# | kv heads: MHA, GQA, MQA | how many heads store K and V: one for each query head; one for several; one for all |
# | RMSNorm, RoPE, SwiGLU | parts of a decoder layer: scaling, marking the position by a rotation, feed-forward |
# | logits | the model's score for each candidate of the next token |
# | tensor parallelism (TP) | each layer is split over several cards; TP2 means 2 |
# | TFLOP/s, utilisation (MFU) | 10^12 operations a second; the share of it that the model's computing really reaches |
# | gloo, loopback | software that moves tensors between processes; a machine's network to itself |
# | CUDA event, page-locked memory | a time mark on the GPU; host memory that the GPU reads and writes directly (pageable memory takes one more copy) |
# | sidecar | a helper process beside a worker |
# | throttle | let fewer requests in |
# | critical path | the steps that decide the total time; a transfer that overlaps with compute is not among them |

# %% [markdown] tags=["zh"]
# ## Step 1 · 请求主要需要什么资源？
#
# **问题**：请求 A 有 6000 个提示词 token，生成 20 个；请求 B 有 200 个提示词 token，生成 900 个。你有一张算力强的卡和一张显存大、带宽高的卡。谁去哪里？

# %% [markdown] tags=["en"]
# ## Step 1 · What does a request need most?
#
# **Question**: request A has 6000 prompt tokens and generates 20; request B has 200 prompt tokens and generates 900. You own a card with strong compute, and a card with much memory and high bandwidth. Who goes where?

# %% [markdown] tags=["zh"]
# A 的工作几乎都在 prefill：一次处理 6000 个 token，看重算力，用户感受到的是 TTFT。B 的工作几乎都在 decode：900 次逐个生成，每次都要读一遍 KV cache，看重显存带宽，用户感受到的是 TPOT。所以 A 去算力强的卡，B 去显存大、带宽高的卡。
#
# | 对象 | 记录什么 | 影响什么决定 |
# | --- | --- | --- |
# | prefill 型请求 | 提示词多长，TTFT 最多多久 | 要不要派给算力强的池 |
# | decode 型请求 | 生成多少 token，KV 占多久显存，TPOT 最多多久 | 要不要派给显存大、带宽高的池 |
# | 资源池 | 算力、空闲显存、链路、会做哪些阶段 | 这一阶段能不能交给它 |
# | 服务目标 | P95 和 P99，最多等多久 | 可不可以等、降低质量、改走别处 |

# %% [markdown] tags=["en"]
# Nearly all of A's work is prefill: 6000 tokens at once, hungry for compute, felt as TTFT. Nearly all of B's work is decode: 900 steps, each reading the whole KV cache, hungry for memory bandwidth, felt as TPOT. So A goes to the card with strong compute, B to the one with memory and bandwidth.
#
# | object | what to record | which decision it affects |
# | --- | --- | --- |
# | prefill-heavy request | how long the prompt is, how long TTFT may be | whether to send it to the pool with strong compute |
# | decode-heavy request | how many tokens it generates, how long its KV takes up memory, how long TPOT may be | whether to send it to the pool with memory and bandwidth |
# | resource pool | compute, free memory, link, the stages it can do | whether this stage can be given to it |
# | service target | P95 and P99, how long one may wait | whether it may wait, lose quality or go elsewhere |

# %% [markdown] tags=["zh"]
# ### TODO 1 的约定 · `classify_resource_need`
#
# “长”是**严格大于**阈值；刚好等于阈值不算长。两个阈值都是参数。
#
# | 提示词长？ | 生成长？ | 返回 |
# | --- | --- | --- |
# | 是 | 否 | `"prefill"` |
# | 否 | 是 | `"decode"` |
# | 是 | 是 | `"shared"` |
# | 否 | 否 | `"shared"` |
#
# | 细节 | 规则 |
# | --- | --- |
# | 缺少 `prompt_tokens` | 当作 0 |
# | 缺少 `decode_tokens` | 当作 0 |
#
# 例：阈值 2048 和 256，提示词 2048、生成 300：提示词不长，生成长，所以是 `"decode"`。

# %% [markdown] tags=["en"]
# ### Contract of TODO 1 · `classify_resource_need`
#
# "Long" means **strictly greater** than the threshold; exactly the threshold is not long. Both thresholds are arguments.
#
# | prompt long? | output long? | return |
# | --- | --- | --- |
# | yes | no | `"prefill"` |
# | no | yes | `"decode"` |
# | yes | yes | `"shared"` |
# | no | no | `"shared"` |
#
# | detail | rule |
# | --- | --- |
# | `prompt_tokens` missing | counts as 0 |
# | `decode_tokens` missing | counts as 0 |
#
# Example: thresholds 2048 and 256, prompt 2048, output 300: the prompt is not long, the output is, so `"decode"`.

# %% nbgrader={"grade": false, "grade_id": "classify", "locked": false, "schema_version": 3, "solution": true, "task": false}
def classify_resource_need(request: dict[str, int], long_prompt_threshold: int, long_decode_threshold: int) -> str:
    """请求主要需要哪种资源 · Which resource a request needs most.

    request: prompt_tokens, decode_tokens（token 数，缺失为 0 · token counts, missing means 0）
    返回 · returns: "prefill", "decode", "shared"
    """
    # TODO 1: 先分别判断“提示词长？”“生成长？”，再查表。
    #         First decide "prompt long?" and "output long?", then read the table.
    ### BEGIN SOLUTION
    prompt_is_long = request.get("prompt_tokens", 0) > long_prompt_threshold
    decode_is_long = request.get("decode_tokens", 0) > long_decode_threshold
    if prompt_is_long and not decode_is_long:
        return "prefill"
    if decode_is_long and not prompt_is_long:
        return "decode"
    return "shared"
    ### END SOLUTION
    raise NotImplementedError("TODO 1 尚未完成 · TODO 1 is not done yet")

# %% nbgrader={"grade": true, "grade_id": "test_classify", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
HINT_PREFILL = "只有提示词长（各自与自己的阈值比）：prefill · only the prompt is long (each count against its own threshold): prefill"
HINT_DECODE = "只有生成长（各自与自己的阈值比）：decode · only the output is long (each count against its own threshold): decode"
HINT_SHORT = "两者都不长：shared · neither is long: shared"
HINT_EACH_OTHER = "两者都不长：各自与自己的阈值比，不是互相比 · neither is long: compare with the thresholds, not the lengths with each other"
HINT_LONGER = "各自与自己的阈值比，不是互相比 · compare with the thresholds, not the lengths with each other"
HINT_SWAPPED = "prefill 和 decode 对调了 · prefill and decode are swapped"
HINT_THRESHOLDS = "阈值是参数，第一个给提示词，第二个给生成 · the thresholds are arguments: the first is for the prompt, the second for the output"
check("test_classify", "classify_resource_need", [
    case({"prompt_tokens": 3000, "decode_tokens": 64}, 2048, 256, want="prefill", hint=HINT_PREFILL,
         mistakes=[("decode", HINT_SWAPPED)]),
    case({"prompt_tokens": 128, "decode_tokens": 512}, 2048, 256, want="decode", hint=HINT_DECODE,
         mistakes=[("prefill", HINT_SWAPPED)]),
    case({"prompt_tokens": 800, "decode_tokens": 128}, 2048, 256, want="shared", hint=HINT_SHORT,
         mistakes=[("prefill", HINT_EACH_OTHER)]),
    case({"prompt_tokens": 100, "decode_tokens": 200}, 2048, 256, want="shared", hint=HINT_SHORT,
         mistakes=[("decode", HINT_EACH_OTHER)]),
    case({"prompt_tokens": 800, "decode_tokens": 128}, 500, 150, want="prefill", hint=HINT_THRESHOLDS),
    case({"prompt_tokens": 3000, "decode_tokens": 64}, 4000, 50, want="decode", hint=HINT_THRESHOLDS,
         mistakes=[("prefill", HINT_LONGER)]),
    case({"prompt_tokens": 300, "decode_tokens": 800}, 400, 900, want="shared", hint=HINT_THRESHOLDS),
])
### BEGIN HIDDEN TESTS
HIDDEN_RNG = hidden_rng("test_classify")
HIDDEN_CLASS = {(1, 0): "prefill", (0, 1): "decode", (0, 0): "shared"}
HIDDEN_CASES = []
for hidden_longs in list(HIDDEN_CLASS) * 10:
    hidden_thresholds = [HIDDEN_RNG.randint(100, 3000) for _ in hidden_longs]
    hidden_tokens = [
        HIDDEN_RNG.randint(at + 5, 3 * at) if is_long else HIDDEN_RNG.randint(1, at - 5)
        for is_long, at in zip(hidden_longs, hidden_thresholds)
    ]
    HIDDEN_CASES.append(case(
        dict(zip(("prompt_tokens", "decode_tokens"), hidden_tokens)), *hidden_thresholds, want=HIDDEN_CLASS[hidden_longs],
        hint="换了数字就不对：请写规则，不要写死答案 · wrong on other numbers: write the rule, not remembered answers",
    ))
check("test_classify", "classify_resource_need", HIDDEN_CASES, hidden=True)
### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "test_classify_boundaries", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
HINT_PROMPT_AT = "提示词刚好等于阈值不算长，要严格大于 · a prompt exactly at its threshold is not long: strictly greater"
HINT_DECODE_AT = "生成刚好等于阈值不算长，要严格大于 · an output exactly at its threshold is not long: strictly greater"
HINT_ABOVE = "比阈值多 1 个就是长 · one token above the threshold is long"
check("test_classify_boundaries", "classify_resource_need", [
    case({"prompt_tokens": 2048, "decode_tokens": 300}, 2048, 256, want="decode", hint=HINT_PROMPT_AT),
    case({"prompt_tokens": 2048, "decode_tokens": 40}, 2048, 256, want="shared", hint=HINT_PROMPT_AT),
    case({"prompt_tokens": 2500, "decode_tokens": 256}, 2048, 256, want="prefill", hint=HINT_DECODE_AT),
    case({"prompt_tokens": 500, "decode_tokens": 256}, 2048, 256, want="shared", hint=HINT_DECODE_AT),
    case({"prompt_tokens": 2049, "decode_tokens": 256}, 2048, 256, want="prefill", hint=HINT_ABOVE),
    case({"prompt_tokens": 2048, "decode_tokens": 257}, 2048, 256, want="decode", hint=HINT_ABOVE),
])
### BEGIN HIDDEN TESTS
HIDDEN_RNG = hidden_rng("test_classify_boundaries")
HIDDEN_CASES = []
for _ in range(40):
    hidden_thresholds = HIDDEN_RNG.sample(range(2, 4000), 2)
    hidden_steps = HIDDEN_RNG.choice([(0, 1), (1, 0), (0, 0), (0, -1), (-1, 0), (1, -1), (-1, 1)])
    HIDDEN_CASES.append(case(
        {"prompt_tokens": hidden_thresholds[0] + hidden_steps[0], "decode_tokens": hidden_thresholds[1] + hidden_steps[1]},
        *hidden_thresholds, want={1: "prefill", 0: "shared", -1: "decode"}[(hidden_steps[0] > 0) - (hidden_steps[1] > 0)],
        hint="阈值附近：严格大于才算长 · near the thresholds: long is strictly greater",
    ))
check("test_classify_boundaries", "classify_resource_need", HIDDEN_CASES, hidden=True)
### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "test_classify_both_long", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
HINT_BOTH = "两者都长：shared · both are long: shared"
HINT_ONE = "只有一个长：不是 shared · only one is long: not shared"
check("test_classify_both_long", "classify_resource_need", [
    case({"prompt_tokens": 3000, "decode_tokens": 512}, 2048, 256, want="shared", hint=HINT_BOTH),
    case({"prompt_tokens": 2049, "decode_tokens": 9000}, 2048, 256, want="shared", hint=HINT_BOTH),
    case({"prompt_tokens": 9000, "decode_tokens": 257}, 2048, 256, want="shared", hint=HINT_BOTH),
    case({"prompt_tokens": 9000, "decode_tokens": 20}, 2048, 256, want="prefill", hint=HINT_ONE),
])
### BEGIN HIDDEN TESTS
HIDDEN_RNG = hidden_rng("test_classify_both_long")
HIDDEN_CASES = []
for _ in range(20):
    hidden_thresholds = HIDDEN_RNG.sample(range(2, 4000), 2)
    hidden_tokens = [at + HIDDEN_RNG.randint(1, 2000) for at in hidden_thresholds]
    HIDDEN_CASES.append(case(
        dict(zip(("prompt_tokens", "decode_tokens"), hidden_tokens)), *hidden_thresholds, want="shared", hint=HINT_BOTH,
    ))
check("test_classify_both_long", "classify_resource_need", HIDDEN_CASES, hidden=True)
### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "test_classify_defaults", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
HINT_MISSING = "缺少的字段当作 0 · a missing field counts as 0"
check("test_classify_defaults", "classify_resource_need", [
    case({"prompt_tokens": 3000}, 2048, 256, want="prefill", hint=HINT_MISSING),
    case({"decode_tokens": 512}, 2048, 256, want="decode", hint=HINT_MISSING),
    case({"decode_tokens": 512}, 0, 256, want="decode", hint=HINT_MISSING),
    case({"prompt_tokens": 3000}, 2048, 0, want="prefill", hint=HINT_MISSING),
    case({}, 2048, 256, want="shared", hint=HINT_MISSING),
])
### BEGIN HIDDEN TESTS
HIDDEN_RNG = hidden_rng("test_classify_defaults")
HIDDEN_CASES = []
for hidden_field, hidden_class in [("prompt_tokens", "prefill"), ("decode_tokens", "decode")] * 8:
    hidden_at = HIDDEN_RNG.randint(1, 3000)
    HIDDEN_CASES.append(case(
        {hidden_field: hidden_at + HIDDEN_RNG.randint(1, 3000)}, hidden_at, hidden_at, want=hidden_class, hint=HINT_MISSING,
    ))
    HIDDEN_CASES.append(case({hidden_field: hidden_at}, hidden_at, hidden_at, want="shared", hint=HINT_MISSING))
check("test_classify_defaults", "classify_resource_need", HIDDEN_CASES, hidden=True)
### END HIDDEN TESTS

# %% [markdown] tags=["zh"]
# ### 用真实流量试一试
#
# **问题**：写代码和对话，哪一份的 `"prefill"` 更多？先猜。
#
# 下面用**你写的**分类函数给 Azure 公开的请求记录（2023，写代码和对话各一份）上色：每个点是一个请求，横轴提示词 token，纵轴生成 token。两个滑块是两个阈值，下拉框换记录。连不上网时会换成按同样统计量生成的合成数据，图上会写明是哪一种。

# %% [markdown] tags=["en"]
# ### Try it on real traffic
#
# **Question**: coding or conversation, which has more `"prefill"`? Guess first.
#
# The next cell colours Azure's public request traces (2023, one of coding and one of conversation) with **your** classifier: a point is a request, prompt tokens across, generated tokens up. The two sliders are the thresholds, the list changes the trace. Without a network it uses synthetic data with the same statistics, and the picture says which it is.

# %% tags=["nbval-ignore-output"]
NEEDS = ("prefill", "decode", "shared")

with demo("T1"):
    traces = {kind: azure_trace(kind) for kind in ("code", "conversation")}
    count_needs = count_by(classify_resource_need, NEEDS)
    display(tiers_panel(traces, count_needs, NEEDS, "classify_resource_need"))

# %% [markdown] tags=["zh"]
# **想一想**：如果只有 10 台机器，这两份流量该用同样的 prefill / decode 配比吗？

# %% [markdown] tags=["en"]
# **Think**: with 10 machines in all, should both kinds of traffic get the same prefill / decode split?

# %% [markdown] tags=["zh", "answer"]
# **答**：不该。阈值 2048 和 256 下，公开记录里 prefill / decode / shared 的个数：写代码 3274 / 50 / 5495，对话 2681 / 6509 / 10176（对 Azure 2023 两个文件逐行计数）。写代码的记录几乎没有 decode 型请求，对话里约三分之一是。配比取决于流量；而且这里数的是请求个数，不是它们占用的时间。

# %% [markdown] tags=["en", "answer"]
# **Answer**: no. With thresholds 2048 and 256 the public traces hold, as prefill / decode / shared: coding 3274 / 50 / 5495, conversation 2681 / 6509 / 10176 (counted row by row in the two Azure 2023 files). The coding trace has almost no decode-heavy requests, in conversation about a third are. The split depends on the traffic; and these are counts of requests, not of the time they take.

# %% [markdown] tags=["zh"]
# ## Step 2 · KV cache 搬过去，还是重算？
#
# **问题**：prefill 完成了，KV cache 有 100 MB，链路 200 Gbps。decode 池重算要 12 ms。搬还是算？

# %% [markdown] tags=["en"]
# ## Step 2 · Move the KV cache, or compute it again?
#
# **Question**: prefill is done, the KV cache has 100 MB, the link runs at 200 Gbps. The decode pool would need 12 ms to compute it again. Move or compute?

# %% [markdown] tags=["zh"]
# 先对齐单位。MB 是 10^6 字节，1 字节是 8 位，Gbps 是每秒 10^9 位，也就是每毫秒 10^6 位：
#
# `transfer_ms = MB × 8 / Gbps = 100 × 8 / 200 = 4 ms`
#
# 4 ms 小于 12 ms：传输。换成 25 Gbps 的链路，传输要 32 ms：重算。
#
# | 方式 | 什么时候合适 | 代价 | 要记录 |
# | --- | --- | --- | --- |
# | 传输 KV | 链路快，两边 KV 兼容 | 传输时间、拥塞 | 字节数、handoff ms、P99 |
# | 重算 prefill | 链路慢，或 KV 不能共用 | 额外计算、TTFT | recompute ms、算力占用 |
# | 留在原池 | 交接太贵，或两边差别不大 | prefill 和 decode 又互相打扰 | 等了多久、池有多忙、P99 |
#
# 第三种方式（留在原池）不在 TODO 2 里。NVIDIA Dynamo 的文档把它叫作 conditional disaggregation：短的 prefill，或前缀命中多的 prefill，直接在 decode worker 上做。

# %% [markdown] tags=["en"]
# Units first. MB is 10^6 bytes, 1 byte is 8 bits, Gbps is 10^9 bits a second, which is 10^6 bits a millisecond:
#
# `transfer_ms = MB × 8 / Gbps = 100 × 8 / 200 = 4 ms`
#
# 4 ms is less than 12 ms: transfer. On a link of 25 Gbps the transfer takes 32 ms: recompute.
#
# | way | when it fits | price | record |
# | --- | --- | --- | --- |
# | transfer the KV | fast link, KV compatible on both sides | transfer time, congestion | bytes, handoff ms, P99 |
# | recompute the prefill | slow link, or KV that cannot be shared | extra compute, TTFT | recompute ms, compute used |
# | stay in the pool | handoff too dear, or pools hardly differ | prefill and decode disturb each other again | how long requests wait, how busy the pool is, P99 |
#
# The third way (stay) is not part of TODO 2. NVIDIA Dynamo's documentation calls it conditional disaggregation: short prefills, or those with many prefix hits, run on the decode worker itself.

# %% [markdown] tags=["zh"]
# ### TODO 2 的约定 · `choose_handoff_mode`
#
# | 字段 | 值 |
# | --- | --- |
# | `mode` | `"transfer"` 或 `"recompute"` |
# | `transfer_ms` | `cache_transfer_mb × 8 / link_gbps`，四舍五入到 4 位小数 |
# | `recompute_ms` | 原样返回，不舍入 |
#
# | 细节 | 规则 |
# | --- | --- |
# | 传输更快 | `"transfer"` |
# | 两者一样快 | `"transfer"` |
# | 重算更快 | `"recompute"` |
# | 比较和舍入的先后 | 先用**未舍入**的传输时间比较，再舍入 |
# | 链路小于等于 0 | `ValueError` |
# | 大小为负，或重算时间为负 | `ValueError` |
# | 大小为 0，或重算时间为 0 | 合法输入，照常计算 |
#
# 检查输入的几行已经写好，请保留。

# %% [markdown] tags=["en"]
# ### Contract of TODO 2 · `choose_handoff_mode`
#
# | field | value |
# | --- | --- |
# | `mode` | `"transfer"` or `"recompute"` |
# | `transfer_ms` | `cache_transfer_mb × 8 / link_gbps`, rounded to 4 decimals |
# | `recompute_ms` | returned as given, not rounded |
#
# | detail | rule |
# | --- | --- |
# | transfer is faster | `"transfer"` |
# | both take the same time | `"transfer"` |
# | recompute is faster | `"recompute"` |
# | order of comparing and rounding | compare the **unrounded** transfer time first, round afterwards |
# | link less than or equal to 0 | `ValueError` |
# | negative size, or negative recompute time | `ValueError` |
# | size 0, or recompute time 0 | valid input, computed as usual |
#
# The lines that check the input are given; keep them.

# %% nbgrader={"grade": false, "grade_id": "handoff", "locked": false, "schema_version": 3, "solution": true, "task": false}
def choose_handoff_mode(link_gbps: float, cache_transfer_mb: float, recompute_ms: float) -> dict[str, object]:
    """传输 KV 还是重算 · Transfer the KV cache or recompute it.

    link_gbps: 10^9 bit/s; cache_transfer_mb: 10^6 byte; recompute_ms: ms
    返回 · returns: {"mode", "transfer_ms", "recompute_ms"}
    输入不合法 · invalid input: ValueError
    """
    if link_gbps <= 0 or cache_transfer_mb < 0 or recompute_ms < 0:
        raise ValueError("链路须大于 0，大小和时间不能为负 · the link must be above 0, size and time not negative")
    # TODO 2: 算出传输时间（ms），比较，最后再舍入。
    #         Work out the transfer time in ms, compare, and round at the end.
    ### BEGIN SOLUTION
    transfer_ms = cache_transfer_mb * 8 / link_gbps
    return {
        "mode": "transfer" if transfer_ms <= recompute_ms else "recompute",
        "transfer_ms": round(transfer_ms, 4),
        "recompute_ms": recompute_ms,
    }
    ### END SOLUTION
    raise NotImplementedError("TODO 2 尚未完成 · TODO 2 is not done yet")

# %% nbgrader={"grade": true, "grade_id": "test_handoff", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
HINT_FORMULA = "transfer_ms = MB × 8 / Gbps"
HINT_MODE = "传输更快选 transfer，重算更快选 recompute · transfer where that is faster, recompute where that is faster"
HINT_BYTES = "链路按位计：1 字节是 8 位，要乘以 8 · the link counts bits, not bytes: times 8"
HINT_DIVIDED = "是乘以 8，不是除以 8 · multiply by 8, do not divide"
HINT_MIB = "MB 是 10^6 字节，不是 2^20 · MB is 10^6 bytes, not MiB"
HINT_DECIMAL = "这里都是十进制：1 GB 是 1000 MB，1 Gb 是 1000 Mb，不是 1024 · decimal units here: 1000, not 1024"
HINT_SECONDS = "这是秒，要毫秒 · these are seconds, ms are asked for"
HINT_MICRO = "大了 1000 倍，要毫秒 · 1000 times too large, ms are asked for"
HINT_MIN = "transfer_ms 总是传输时间，不是两者中较小的 · transfer_ms is always the transfer time, not the smaller of the two"
check("test_handoff", "choose_handoff_mode", [
    case(200, 100, 12, want={"transfer_ms": 4.0, "mode": "transfer", "recompute_ms": 12.0},
         hint=f"{HINT_FORMULA}; {HINT_MODE}",
         mistakes=[(0.5, HINT_BYTES), (0.0625, HINT_DIVIDED), (4.1943, HINT_MIB), (3.7253, HINT_DECIMAL),
                   (3.9062, HINT_DECIMAL), (4.096, HINT_DECIMAL), (0.004, HINT_SECONDS), (4000.0, HINT_MICRO)]),
    case(25, 100, 12, want={"transfer_ms": 32.0, "mode": "recompute", "recompute_ms": 12.0},
         hint=f"{HINT_FORMULA}; {HINT_MODE}", mistakes=[(12.0, HINT_MIN)]),
    case(100, 250, 30, want={"transfer_ms": 20.0, "mode": "transfer", "recompute_ms": 30.0}, hint=HINT_MODE),
])
### BEGIN HIDDEN TESTS
# Whole ms, built backwards from the answer, so that no right formula can round apart from another.
HIDDEN_RNG = hidden_rng("test_handoff")
HIDDEN_CASES = []
for _ in range(40):
    hidden_eighth = HIDDEN_RNG.randint(1, 50)  # of the link, in Gbps
    hidden_ms, hidden_recompute = HIDDEN_RNG.sample(range(1, 200), 2)
    HIDDEN_CASES.append(case(hidden_eighth * 8, hidden_eighth * hidden_ms, hidden_recompute, want={
        "transfer_ms": float(hidden_ms), "recompute_ms": float(hidden_recompute),
        "mode": min((hidden_ms, "transfer"), (hidden_recompute, "recompute"))[1],
    }, hint="换了数字就不对：请写公式，不要写死答案 · wrong on other numbers: write the formula, not remembered answers"))
check("test_handoff", "choose_handoff_mode", HIDDEN_CASES, hidden=True)
### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "test_handoff_units", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
HINT_FORMULA = "transfer_ms = MB × 8 / Gbps, MB = 10^6 byte"
HINT_WHOLE = "不要取整：MB 和 Gbps 可以有小数 · no whole-number division: MB and Gbps may have decimals"
check("test_handoff_units", "choose_handoff_mode", [
    case(10, 1.5, 2, want={"transfer_ms": 1.2, "mode": "transfer", "recompute_ms": 2.0}, hint=HINT_FORMULA,
         mistakes=[(1.0, HINT_WHOLE), (0.8, HINT_WHOLE), (1.6, HINT_WHOLE)]),
    case(2.5, 40, 90, want={"transfer_ms": 128.0, "mode": "recompute", "recompute_ms": 90.0}, hint=HINT_FORMULA,
         mistakes=[(160.0, HINT_WHOLE)]),
    case(400, 8000, 200, want={"transfer_ms": 160.0, "mode": "transfer", "recompute_ms": 200.0}, hint=HINT_FORMULA),
    case(40, 512, 90, want={"transfer_ms": 102.4, "mode": "recompute", "recompute_ms": 90.0}, hint=HINT_FORMULA),
])
### BEGIN HIDDEN TESTS
HIDDEN_RNG = hidden_rng("test_handoff_units")
HIDDEN_CASES = []
for _ in range(40):
    hidden_part = HIDDEN_RNG.randint(3, 500)  # twice the link: halves and sixteenths are exact
    hidden_ms, hidden_recompute = HIDDEN_RNG.sample(range(1, 200), 2)
    HIDDEN_CASES.append(case(hidden_part / 2, hidden_part * hidden_ms / 16, hidden_recompute, hint=HINT_FORMULA, want={
        "transfer_ms": float(hidden_ms), "recompute_ms": float(hidden_recompute),
        "mode": min((hidden_ms, "transfer"), (hidden_recompute, "recompute"))[1],
    }))
check("test_handoff_units", "choose_handoff_mode", HIDDEN_CASES, hidden=True)
### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "test_handoff_tie_and_rounding", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
HINT_TIE = "一样快时选 transfer · a tie goes to transfer"
HINT_FOUR = "transfer_ms 四舍五入到 4 位小数 · round transfer_ms to 4 decimals"
HINT_LATE = "先比较，后舍入：用未舍入的传输时间比较 · compare before rounding, with the unrounded transfer time"
HINT_AS_GIVEN = "recompute_ms 原样返回，不舍入 · recompute_ms is returned as given, not rounded"
HINT_FORMULA = "transfer_ms = MB × 8 / Gbps"
HINT_ZERO = "大小为 0 或重算时间为 0 是合法输入 · size 0 and recompute time 0 are valid"
HINT_SLOW = "0.5 Gbps 也是合法的链路 · a link of 0.5 Gbps is valid too"
check("test_handoff_tie_and_rounding", "choose_handoff_mode", [
    case(250, 100, 12, want={"mode": "transfer", "transfer_ms": 3.2, "recompute_ms": 12.0}, hint=HINT_FORMULA),
    case(200, 100, 4, want={"mode": "transfer", "transfer_ms": 4.0, "recompute_ms": 4.0}, hint=HINT_TIE),
    case(64, 96, 12, want={"mode": "transfer", "transfer_ms": 12.0, "recompute_ms": 12.0}, hint=HINT_TIE),
    case(30, 100, 40, want={"mode": "transfer", "transfer_ms": 26.6667, "recompute_ms": 40.0}, hint=HINT_FOUR),
    case(30, 50, 9, want={"mode": "recompute", "transfer_ms": 13.3333, "recompute_ms": 9.0}, hint=HINT_FOUR),
    # 100.001 MB: 4.00004 ms; 100.0015 MB: 4.00006 ms
    case(200, 100.001, 4, want={"mode": "recompute", "transfer_ms": 4.0, "recompute_ms": 4.0}, hint=HINT_LATE),
    case(200, 100.0015, 4.00008, want={"mode": "transfer", "transfer_ms": 4.0001, "recompute_ms": 4.00008}, hint=HINT_LATE,
         mistakes=[(4.0001, HINT_AS_GIVEN), (4.0, HINT_AS_GIVEN)]),
    case(200, 100, 3.99998, want={"mode": "recompute", "transfer_ms": 4.0, "recompute_ms": 3.99998}, hint=HINT_LATE,
         mistakes=[(4.0, HINT_AS_GIVEN)]),
    case(200, 100, 12.345678, want={"mode": "transfer", "transfer_ms": 4.0, "recompute_ms": 12.345678}, hint=HINT_AS_GIVEN),
    case(200, 100, 0, want={"mode": "recompute", "transfer_ms": 4.0, "recompute_ms": 0.0}, hint=HINT_ZERO),
    case(0.5, 100, 12, want={"mode": "recompute", "transfer_ms": 1600.0, "recompute_ms": 12.0}, hint=HINT_SLOW),
])
### BEGIN HIDDEN TESTS
from fractions import Fraction  # exact; inputs where right formulas could round apart are left out
HIDDEN_RNG = hidden_rng("test_handoff_tie_and_rounding")
HIDDEN_CASES = []
while len(HIDDEN_CASES) < 30:
    hidden_link, hidden_mb, hidden_recompute = (HIDDEN_RNG.randint(2, most) for most in (400, 3000, 200))
    hidden_ms = Fraction(hidden_mb * 8, hidden_link)
    if abs(hidden_ms * 10**4 % 1 - Fraction(1, 2)) > Fraction(1, 50) and abs(hidden_ms - hidden_recompute) > Fraction(1, 100):
        HIDDEN_CASES.append(case(hidden_link, hidden_mb, hidden_recompute, hint=HINT_FOUR, want={
            "mode": min((hidden_ms, "transfer"), (Fraction(hidden_recompute), "recompute"))[1],
            "transfer_ms": float(round(hidden_ms, 4)), "recompute_ms": float(hidden_recompute),
        }))
for _ in range(12):
    # A link of 2^k and whole ms: every formula is exact. The third decimal and below are made by hand.
    hidden_link, hidden_ms = HIDDEN_RNG.choice([16, 32, 64, 128, 256]), HIDDEN_RNG.choice([2, 3, 4, 5, 6, 8, 10, 12])
    hidden_mb = hidden_link * hidden_ms // 8
    hidden_units = HIDDEN_RNG.choice([1, 2, 3, 4])  # of 1e-5 ms: vanish when rounded
    hidden_long_mb = hidden_mb + hidden_units * hidden_link / 8e5
    HIDDEN_CASES += [
        case(hidden_link, hidden_mb, hidden_ms, hint=HINT_TIE,
             want={"mode": "transfer", "transfer_ms": float(hidden_ms), "recompute_ms": float(hidden_ms)}),
        case(hidden_link, hidden_long_mb, hidden_ms, hint=HINT_LATE,
             want={"mode": "recompute", "transfer_ms": float(hidden_ms), "recompute_ms": float(hidden_ms)}),
        case(hidden_link, hidden_mb, hidden_ms + 0.123456, hint=HINT_AS_GIVEN,
             want={"mode": "transfer", "transfer_ms": float(hidden_ms), "recompute_ms": hidden_ms + 0.123456}),
    ]
check("test_handoff_tie_and_rounding", "choose_handoff_mode", HIDDEN_CASES, hidden=True)
### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "test_handoff_invalid", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
HINT_LINK = "链路小于等于 0：ValueError · a link of 0 or below: ValueError"
HINT_NEGATIVE_SIZE = "大小为负：ValueError · a negative size: ValueError"
HINT_NEGATIVE_TIME = "重算时间为负：ValueError · a negative recompute time: ValueError"
HINT_ZERO = "大小为 0 或重算时间为 0 是合法输入 · size 0 and recompute time 0 are valid"
# No valid case here depends on the formula: whoever has the units wrong can still have this right.
check("test_handoff_invalid", "choose_handoff_mode", [
    case(0, 100, 12, raises=ValueError, hint=HINT_LINK),
    case(-25, 100, 12, raises=ValueError, hint=HINT_LINK),
    case(200, -100, 12, raises=ValueError, hint=HINT_NEGATIVE_SIZE),
    case(200, 100, -12, raises=ValueError, hint=HINT_NEGATIVE_TIME),
    case(200, 0, 12, want={"mode": "transfer", "transfer_ms": 0.0, "recompute_ms": 12.0}, hint=HINT_ZERO),
    case(0.5, 0, 0, want={"mode": "transfer", "transfer_ms": 0.0, "recompute_ms": 0.0}, hint=HINT_ZERO),
])
### BEGIN HIDDEN TESTS
HIDDEN_RNG = hidden_rng("test_handoff_invalid")
HIDDEN_CASES = []
for _ in range(8):
    hidden_valid = [HIDDEN_RNG.choice([16, 32, 64]), HIDDEN_RNG.randint(100, 200), HIDDEN_RNG.randint(1, 9)]
    HIDDEN_CASES.append(case(hidden_valid[0], 0, hidden_valid[2], hint=HINT_ZERO,
                             want={"mode": "transfer", "transfer_ms": 0.0, "recompute_ms": float(hidden_valid[2])}))
    for hidden_index, hidden_hint in enumerate((HINT_LINK, HINT_NEGATIVE_SIZE, HINT_NEGATIVE_TIME)):
        hidden_bad = list(hidden_valid)
        hidden_bad[hidden_index] *= -1
        HIDDEN_CASES.append(case(*hidden_bad, raises=ValueError, hint=hidden_hint))
check("test_handoff_invalid", "choose_handoff_mode", HIDDEN_CASES, hidden=True)
### END HIDDEN TESTS

# %% [markdown] tags=["zh"]
# > #### Field case · 现场案例：搬得碎，不如重算
# >
# > **现象**：vLLM 早期要处理被抢占的请求：把 KV 换出再换回，还是丢掉重算？他们先选了重算，因为许多小块的搬运比重算还慢。
# >
# > **问题**：你的公式说 100 MB 走 200 Gbps 只要 4 ms。公式漏了什么？
# >
# > 来源：[vllm-project/vllm pull 12](https://github.com/vllm-project/vllm/pull/12)
#
# 下面把同样的 100 MB 切成 1、100、10000 条消息。每条 0.01 ms 的固定开销是我们为演示选的数，不是报告里的数。

# %% [markdown] tags=["en"]
# > #### Field case · In small pieces, moving loses to computing
# >
# > **Symptom**: early vLLM had to handle preempted requests: swap their KV out and back in, or drop it and recompute? They chose recompute first, because many small moves were slower than computing again.
# >
# > **Question**: your formula says that 100 MB over 200 Gbps take only 4 ms. What does it leave out?
# >
# > Source: [vllm-project/vllm pull 12](https://github.com/vllm-project/vllm/pull/12)
#
# The next cell cuts the same 100 MB into 1, 100 and 10000 messages. The fixed cost of 0.01 ms a message is a number that we chose for the demonstration, not one from the report.

# %%
with demo("T2"):
    FIXED_MS_A_MESSAGE = 0.01
    for messages in (1, 100, 10_000):
        bytes_only = choose_handoff_mode(200, 100, 12)
        total_ms = bytes_only["transfer_ms"] + messages * FIXED_MS_A_MESSAGE
        better = "transfer" if total_ms <= bytes_only["recompute_ms"] else "recompute"
        print(f"{messages:>6} messages: {total_ms:7.2f} ms  your rule: {bytes_only['mode']}  with the fixed cost: {better}")

# %% [markdown] tags=["zh"]
# **机制**：每条消息有一份固定开销，和大小无关。公式只按总字节数计时，需要再加“消息数 × 固定开销”。

# %% [markdown] tags=["en"]
# **Mechanism**: each message has a fixed cost, whatever its size. The formula counts total bytes only; it needs "messages × fixed cost" on top.

# %% [markdown] tags=["zh"]
# ### 例题 · 链路要多快，传输才划算？
#
# 两种方式一样快时的带宽叫**交叉带宽**：`B* = MB × 8 / recompute_ms`。链路比它快就传输。上面的例子：`100 × 8 / 12 = 66.67 Gbps`。
#
# 重算发生在**目标池**，所以目标卡的算力决定 B*。下面用公开数字算 Llama-3.1-8B、4096 个 token：
#
# - 每个 token 的 KV 是 131072 字节（模型公开配置，bf16），共 536.87 MB；
# - n 个 token 各要用到 P 个权重，每个权重 1 次乘、1 次加，共 `2·P·n`；注意力让每个 token 再看一遍它前面的所有 token，所以第二项随 n² 增长。prefill 的运算量是 `2·P·n + 2·layers·heads·head_dim·n²`（层数、头数、头维度），P 取 6.98 × 10^9（不含词表两端）；
# - 算力取 bf16 稠密值 148（H20）和 989（H100）TFLOP/s，利用率（MFU，实际算力占规格算力的比例）假设为 0.45。H20 的数来自二手网页，请以厂商规格书为准。
#
# 这是由公开数字**算出**的，不是测出的。

# %% [markdown] tags=["en"]
# ### Worked example · How fast must a link be for transfer to pay?
#
# The bandwidth at which both ways take the same time is the **crossing bandwidth**: `B* = MB × 8 / recompute_ms`. A faster link transfers. In the example above: `100 × 8 / 12 = 66.67 Gbps`.
#
# Recompute happens on the **destination**, so its compute decides B*. The next cell uses published numbers for Llama-3.1-8B and 4096 tokens:
#
# - the KV of a token is 131072 bytes (public model configuration, bf16), 536.87 MB in all;
# - each of the n tokens uses each of the P weights in 1 multiplication and 1 addition: `2·P·n`; attention lets each token look at all tokens before it, so the second term grows with n². Prefill takes `2·P·n + 2·layers·heads·head_dim·n²` operations (layers, heads, size of a head), with P = 6.98 × 10^9 (without embedding and head);
# - compute is the dense bf16 figure, 148 (H20) and 989 (H100) TFLOP/s, with an assumed utilisation (MFU, the share of the specified compute that is really reached) of 0.45. The H20 figure comes from a secondary page: the vendor's datasheet is the source to check.
#
# This is **computed** from published numbers, not measured.

# %%
with demo("T2"):
    prompt_tokens = 4096
    kv_mb = 131_072 * prompt_tokens / 1e6
    prefill_flop = 2 * 6.98e9 * prompt_tokens + 2 * 32 * 32 * 128 * prompt_tokens**2
    for destination, tflops in (("H20", 148), ("H100", 989)):
        prefill_ms = prefill_flop / (tflops * 1e12 * 0.45) * 1e3
        on_10_gbps = choose_handoff_mode(10, kv_mb, prefill_ms)
        print(f"{destination:>5}: recompute {prefill_ms:6.1f} ms, B* = {kv_mb * 8 / prefill_ms:5.2f} Gbps; "
              f"on 10 Gbps transfer takes {on_10_gbps['transfer_ms']:.1f} ms -> {on_10_gbps['mode']}")

# %% [markdown] tags=["zh"]
# **想一想**：同一条 10 Gbps 链路，为什么一张卡该传输、另一张该重算？

# %% [markdown] tags=["en"]
# **Think**: on the same link of 10 Gbps, why should one card get a transfer and the other recompute?

# %% [markdown] tags=["zh", "answer"]
# **答**：传输时间与目标卡无关，都是 429.5 ms。H20 重算要 924.6 ms，H100 只要 138.4 ms。目标卡算得越快，重算越便宜，交叉带宽就越高：H20 约 4.65 Gbps，H100 约 31.04 Gbps，10 Gbps 正好在两者之间。这就是“异构”带来的区别。

# %% [markdown] tags=["en", "answer"]
# **Answer**: the transfer time does not depend on the destination: 429.5 ms for both. Recompute takes 924.6 ms on the H20 and only 138.4 ms on the H100. The faster the destination computes, the cheaper recompute is and the higher the crossing: about 4.65 Gbps for the H20, about 31.04 Gbps for the H100, and 10 Gbps lies between them. That is what "heterogeneous" changes.

# %% [markdown] tags=["zh"]
# ### 你的决定地图
#
# **问题**：横轴是链路，纵轴是提示词长度，每一点涂上你的函数的选择。两种颜色在哪里分界？如果有人忘了乘以 8，分界会往哪边移？
#
# 虚线是真正的分界 B*(n)，白色圆点是滑块所在的位置。写对时，颜色正好在虚线处变。
#
# 图的来历：每个格子调用一次你的函数，没有测量。传输时间按公式，重算时间由公开数字算出，利用率假设为 0.45。

# %% [markdown] tags=["en"]
# ### The map of your decisions
#
# **Question**: the link runs across, the prompt length runs up, and each point takes the colour of your function's choice. Where do the two colours meet? If somebody forgot the factor 8, which way would the border move?
#
# The dashed line is the true border B*(n), the white dot is where the sliders stand. When the function is right, the colours change exactly at the dashed line.
#
# How the picture is made: one call of your function per cell; nothing is measured. Transfer times follow the formula, recompute times are computed from published numbers with an assumed utilisation of 0.45.

# %%
with demo("T2"):
    display(decision_map_panel(choose_handoff_mode))

# %% [markdown] tags=["zh"]
# 图下面那行写着有百分之几的格子与真正的分界不符。忘了乘以 8 时，传输看起来快 8 倍，蓝色会越过虚线，向左多占 8 倍的带宽。再把重算的 GPU 从 H100 换成 H20：整条分界向左移，更慢的链路也值得传输。

# %% [markdown] tags=["en"]
# The line under the picture says which share of the cells disagrees with the true border. Without the factor 8 transfer looks 8 times as fast, and the blue crosses the dashed line to links 8 times slower. Now change the recompute GPU from H100 to H20: the whole border moves left, and slower links become worth a transfer.

# %% [markdown] tags=["zh"]
# ### 在这台机器上，真的搬一次
#
# **问题**：到这里为止，时间不是给定的就是算出的。把一个真的 KV cache 搬走，decode 还能接着算吗？
#
# 下面是一个很小、但五脏俱全的 decoder（RMSNorm、RoPE、分组注意力、SwiGLU；4 层，宽 256，权重随机）。它先 prefill 96 个 token，把得到的 KV cache 复制一份，再**从复制的那份**继续 decode。
#
# `KV_HEADS` 可以改：8 是 MHA，2 是 GQA，1 是 MQA。这一节的格子需要 torch；没有 torch 时各打印一行，其他内容照常。

# %% [markdown] tags=["en"]
# ### On this machine, move a real one
#
# **Question**: so far every time was either given or computed. If a real KV cache is moved away, can decode go on?
#
# Here is a decoder that is tiny but has all its parts (RMSNorm, RoPE, grouped attention, SwiGLU; 4 layers, width 256, random weights). It prefills 96 tokens, copies the KV cache that comes of it, and decodes on **from the copy**.
#
# `KV_HEADS` may be changed: 8 is MHA, 2 is GQA, 1 is MQA. The cells of this section need torch; without torch each prints one line, and all the rest works as usual.

# %% tags=["nbval-ignore-output"]
KV_HEADS = 8  #@param [8, 4, 2, 1] {type:"raw"}

measured = {}  # kv heads -> what was measured on this CPU
cuda_measured = []
if can_measure():
    decoder = Decoder(DecoderShape(kv_heads=KV_HEADS))
    prompt = random_tokens(96)
    first_logits, cache = decoder.prefill(prompt)
    first_token = int(first_logits.argmax())
    arrived = copy_in_memory(cache)
    second_logits, _ = decoder.decode(first_token, arrived)
    print(f"{len(cache)} layers; K of each (kv heads, tokens, head dim): {tuple(cache[0][0].shape)}")
    print(f"the whole cache: {cache_bytes(cache):,} bytes, {cache_bytes(cache) // len(prompt):,} a token")
    print(f"prefill says token {first_token}; decode from the moved cache goes on with {int(second_logits.argmax())}")

# %% [markdown] tags=["zh"]
# **问题**：它接着说了下去。这能说明搬对了吗？
#
# 核对有三项，比的是三样不同的东西：字节、下一步的数、说出的词。
#
# 1. `payload`：到达的 cache 每一位都相同；
# 2. `logits`：下一步的输出每个数都相同；
# 3. `tokens`：接下来的 12 个 token 相同。
#
# 先看正确的搬运：三项都应当 `equal`。

# %% [markdown] tags=["en"]
# **Question**: it went on talking. Does that show that the move was right?
#
# Three checks compare three different things: the bytes, the numbers of the next step, the words.
#
# 1. `payload`: the cache that arrived is equal in every bit;
# 2. `logits`: the output of the next step is equal in every number;
# 3. `tokens`: the next 12 tokens are equal.
#
# A right move first: all three should say `equal`.

# %% tags=["nbval-ignore-output"]
if can_measure():
    print(handoff_table({"right": verify_handoff(decoder, prompt)}))

# %% [markdown] tags=["zh"]
# 现在由你来弄坏它。
#
# | `BUG` | 弄坏了什么 |
# | --- | --- |
# | `last token missing` | 少了最后一个 token 的 K 和 V |
# | `position off by one` | cache 没有动，只是下一个 token 的位置多了 1 |
# | `bf16 on the wire` | 路上压成 bf16，到了再展开 |
# | `layers swapped` | 第 0 层和第 1 层对调 |
# | `slots permuted` | 各层的 token 槽位按同一个随机次序打乱 |
#
# **问题**：哪一个 `payload` 查不出来？哪几个 `tokens` 查不出来？先猜，再换 `BUG` 的值逐个运行。

# %% [markdown] tags=["en"]
# Now break it yourself.
#
# | `BUG` | what it breaks |
# | --- | --- |
# | `last token missing` | K and V of the last token are lost |
# | `position off by one` | the cache is untouched, but the next token's position is 1 too high |
# | `bf16 on the wire` | squeezed into bf16 for the way, expanded on arrival |
# | `layers swapped` | layers 0 and 1 change places |
# | `slots permuted` | the token slots of every layer are shuffled, all in the same order |
#
# **Question**: which of them does `payload` miss? Which does `tokens` miss? Guess, then change `BUG` and run them one by one.

# %% tags=["nbval-ignore-output"]
BUG = "position off by one"  #@param ["last token missing", "position off by one", "bf16 on the wire", "layers swapped", "slots permuted"]

if can_measure():
    print(handoff_table({BUG: verify_handoff(decoder, prompt, bug=BUG)}))

# %% [markdown] tags=["zh"]
# 全部 5 个并排：

# %% [markdown] tags=["en"]
# All 5 side by side:

# %% tags=["nbval-ignore-output"]
if can_measure():
    print(handoff_table({bug: verify_handoff(decoder, prompt, bug=bug) for bug in BUGS}))

# %% [markdown] tags=["zh"]
# - `position off by one`：payload 完全相同，logits 却不同；`KV_HEADS` 为 8 时，说出的 token 也变了（换成 2，12 个 token 一个没变）。**搬对了字节，不等于接对了状态。**
# - `bf16 on the wire`：12 个 token 一个没变，错误却已经在里面。“输出看起来一样”是很弱的检查。
# - `slots permuted`：payload 当然不同，可是 logits 只差约 10⁻⁶（加法次序不同的舍入），token 一个不变。

# %% [markdown] tags=["en"]
# - `position off by one`: the payload is equal, yet the logits differ, and with `KV_HEADS` at 8 the tokens too (with 2, not one of the 12 changes). **Right bytes are not yet a right state.**
# - `bf16 on the wire`: not one of the 12 tokens changes, and the error is in there all the same. "The output looks the same" is a weak check.
# - `slots permuted`: the payload differs, of course, yet the logits differ by about 10⁻⁶ only (rounding, from another order of adding), and no token changes.

# %% [markdown] tags=["zh"]
# **想一想**：打乱了所有槽位，为什么一个 token 都没变？

# %% [markdown] tags=["en"]
# **Think**: all slots were shuffled. Why did not a single token change?

# %% [markdown] tags=["zh", "answer"]
# **答**：RoPE 在写入 K 的时候就把位置转进了 K 里。注意力是对所有槽位的加权和，权重由 Q·K 决定，与槽位放在哪里无关。所以一个 token 的 K、V 可以放在任何一页，只要 K 和 V 一起放；这就是 paged KV 能成立的原因。相反，`position off by one` 改的正是新 token 的 Q 里的位置，它和所有 K 的距离都错了 1。

# %% [markdown] tags=["en", "answer"]
# **Answer**: RoPE turns the position into K at the moment K is written. Attention is a weighted sum over all slots, and its weights come from Q·K, wherever a slot lies. So a token's K and V may stand in any page as long as they stand there together; that is why paged KV works. `position off by one`, on the contrary, changes the position in the new token's Q: its distance to every K is wrong by 1.

# %% [markdown] tags=["zh"]
# ### 测一遍：32 到 2048 个 token
#
# **问题**：B* 随提示词变长，是一直升、一直降，还是先升后降？先猜。
#
# 怎样测，才能让明天的结果和今天一样：
#
# - 一个 torch 线程；第一遍热身不算；各个长度轮流测，慢的一刻就不会只落在一个长度上；
# - 取多次中**线程 CPU 时间**的最小值：打扰只会让时间变长。旁边列出墙钟时间，两者之比大于 1.1 时，下面会警告机器正忙；
# - 用 64、256、1024、2048 拟合 `recompute = c + d·n + e·n²`；其余长度不参加拟合（`held out`），只用来看误差。
#
# 约 9 秒。想停就按 notebook 的中断按钮 ■，已测的会保留。

# %% [markdown] tags=["en"]
# ### Measure it: 32 to 2048 tokens
#
# **Question**: as the prompt grows, does B* rise all the way, fall all the way, or rise first and then fall? Guess.
#
# How to measure so that tomorrow's result is today's:
#
# - one torch thread; a first pass warms up and does not count; the sizes take turns, so that a slow moment does not fall on one size alone;
# - the least **thread CPU time** of several runs: what disturbs a run only ever lengthens it. Wall time stands beside it, and where their ratio exceeds 1.1 a warning below says that the machine is busy;
# - `recompute = c + d·n + e·n²` is fitted at 64, 256, 1024 and 2048; the other sizes are kept out of the fit (`held out`) and only show its error.
#
# About 9 seconds. To stop, press the notebook's interrupt button ■; what is measured is kept.

# %% tags=["nbval-ignore-output"]
if can_measure():
    with progress_bar(f"prefill, kv heads = {KV_HEADS}") as progress:
        measured[KV_HEADS] = sweep(DecoderShape(kv_heads=KV_HEADS), progress=progress)
    print(sweep_report(measured[KV_HEADS]))

# %% [markdown] tags=["zh"]
# B* 是一个**驼峰**：`B* = 8κ / (c/n + d + e·n)`，κ 是每个 token 的 KV 字节数。很短时，固定开销 c 由少数 token 分摊；很长时，注意力的 e·n 变大；两头每个 token 的重算都贵，所以较慢的链路也值得传输。中间重算最便宜，峰在 `n = sqrt(c/e)`。
#
# 于是一条固定的链路可能与曲线交叉**两次**、一次，或者不交叉。拟合误差平时为百分之几，只有 32 落在拟合范围（64 到 2048）之外，可以差 20% 左右；机器忙的时候都会更大，先看警告再看数字。

# %% [markdown] tags=["en"]
# B* is a **hump**: `B* = 8κ / (c/n + d + e·n)`, where κ is the KV bytes of a token. When the prompt is very short, few tokens share the fixed cost c; when it is very long, attention's e·n grows. At both ends a token is dear to recompute, so even a slower link is worth a transfer. In between recompute is cheapest; the top lies at `n = sqrt(c/e)`.
#
# So a given link may cross **twice**, once, or not at all. The fit is usually off by a few percent; only 32 lies outside its range (64 to 2048) and may be off by about 20%. On a busy machine all errors grow: read the warning before the numbers.

# %% [markdown] tags=["zh"]
# **问题**：kv heads 从 8 减到 1，其他都不变。重算时间变多少？B* 变多少？

# %% [markdown] tags=["en"]
# **Question**: kv heads go from 8 down to 1, all else stays. How much does recompute time change? And B*?

# %% tags=["nbval-ignore-output"]
if can_measure():
    for kv_heads in (8, 2, 1):
        if kv_heads not in measured:
            with progress_bar(f"prefill, kv heads = {kv_heads}") as progress:
                measured[kv_heads] = sweep(DecoderShape(kv_heads=kv_heads), runs=3, seconds=3, progress=progress)
    print(kv_heads_table(measured.values()))

# %% [markdown] tags=["zh"]
# Query 的头一个没少，重算只快了一点；KV 却只有 1/8，所以 B* 也降到接近 1/8。一个旋钮让 B* 差近 8 倍：GQA 和 MQA 不但省显存，也让慢链路变得值得传输。

# %% [markdown] tags=["en"]
# Not one query head is gone, so recompute is only a little faster; but the KV is 1/8, so B* falls to nearly 1/8. One knob moves B* by a factor of nearly 8: GQA and MQA save memory, and they also make slow links worth a transfer.

# %% [markdown] tags=["zh"]
# **问题**：另一个进程就在这台机器上。把 KV 交给它要几毫秒？和重算比，差几倍？
#
# 三条路，都是真的搬，用墙钟计时：`torch.distributed` gloo（本机回环）、两个进程共享的内存，以及一条**限速**的链路：复制之后睡到那条链路该送达的时刻。限速只在 0.02 到 1 Gbps 之间有意义；更快时，睡眠本身的误差就比传输还大，请用公式。

# %% [markdown] tags=["en"]
# **Question**: another process lives on this very machine. How many ms does it take to hand it the KV? By which factor does that differ from recompute?
#
# Three routes that really move it, timed by the wall clock: `torch.distributed` gloo over loopback, memory that two processes share, and a **paced** link: copy, then sleep until that link would have delivered. Pacing makes sense from 0.02 to 1 Gbps; faster than that, the sleep's own error exceeds the transfer, and the formula is the better answer.

# %% tags=["nbval-ignore-output"]
LINK_GBPS = 0.5  #@param {type:"number"}

if can_measure() and KV_HEADS in measured:
    with progress_bar("paced link, gloo, shared memory") as progress:
        time_routes(measured[KV_HEADS], LINK_GBPS, progress)

# %% [markdown] tags=["zh"]
# 以表里的数为准。机器不忙、1,024 个 token 以上时，在同一台机器里搬比算快得多，要把链路放慢到零点几 Gbps 才有交叉点；token 很少或者机器忙时，进程之间的固定开销可能让搬更慢。限速的时间是睡出来的，所以下面的图把它标为 `simulated`；它和公式差的那一点，就是复制和睡眠的误差。

# %% [markdown] tags=["en"]
# The table's numbers count. On a quiet machine and from 1,024 tokens on, moving within it is far faster than computing, and it takes a link slowed to a fraction of a Gbps to see a crossing; with few tokens or on a busy machine, the fixed cost between processes may make moving the slower way. The paced time is slept, so the picture below calls it `simulated`; the little by which it misses the formula is the copy's and the sleep's own error.

# %% [markdown] tags=["zh"]
# ### 让数字留下来
#
# **问题**：一周以后，谁还知道这些数是在哪台机器、用什么版本测的？
#
# 下面把**每一个原始样本**和来历存成 JSON（`kv-profile/1`），放在当前文件夹，再读回来。读的时候逐项核对：少一个字段、换一个单位、换一种形状，都会被点名拒绝。

# %% [markdown] tags=["en"]
# ### Numbers that last
#
# **Question**: in a week, who will know on which machine and with which versions these were measured?
#
# The next cell saves **every raw sample** and its provenance as JSON (`kv-profile/1`) in the current folder, and reads it back. Reading checks item by item: a missing field, another unit or another shape is refused by name.

# %% tags=["nbval-ignore-output"]
if can_measure() and KV_HEADS in measured:
    profile_path = f"kv-profile-kv{KV_HEADS}.json"
    profile_json = write_profile(profile_path, measured[KV_HEADS])
    loaded = read_profile(profile_path, profile_json, DecoderShape(kv_heads=KV_HEADS))
    if loaded:
        for fact, value in loaded.provenance.items():
            print(f"{fact:>16}: {value}")
        print("in seconds:", end=" ")
        read_profile("", profile_json.replace('"unit": "ms"', '"unit": "s"'))

# %% [markdown] tags=["zh"]
# ### 有 GPU 就测 GPU
#
# 计时用工作流上的 CUDA event，最后只同步一次；copy 走设备内、锁页主机内存、可分页主机内存三条路；计算能力低于 8.0 用 fp16。没有 GPU 时只打印一行。
#
# **本课没有附带已记录的 GPU 数据**；写这一章时手边也没有 GPU，这一格只用替身时钟和替身设备测试过。

# %% [markdown] tags=["en"]
# ### A GPU, where there is one
#
# Times come from CUDA events on the working stream with a single synchronisation at the end; copies go three ways, within the device, through page-locked and through pageable host memory; below compute capability 8.0 it uses fp16. Without a GPU it prints one line.
#
# **No recorded GPU profile is shipped with this course**; nor was there a GPU at hand when this chapter was written, so this cell was only tested with a stand-in clock and device.

# %% tags=["nbval-ignore-output"]
if can_measure():
    gpu_ready, why_not = cuda_ready()
    if gpu_ready:
        with progress_bar("CUDA") as progress:
            cuda_measured = measure_cuda(progress)
        for one in cuda_measured:
            print(sweep_report(one))
    else:
        print(f"没有可测的 GPU，也没有附带已记录的数据 · no GPU to measure, and no recorded profile is shipped: {why_not}")

# %% [markdown] tags=["zh"]
# ### 交叉点在哪里？
#
# **问题**：慢慢加快左边的链路。交叉点从 0 个变成几个，又变回几个？右边把重算的卡从 H100 换成 H20，B* 是升还是降？
#
# 左图是 CPU 张量，用你刚测的数（没有测时用另一台机器上记录的例子）；右图是 CUDA 张量，没有 GPU 时由公开数字算出。橙色实线是重算，蓝色虚线是传输，底部两条色带说明每个长度上谁更快，竖点线是滑块选的提示词长度。每条曲线都写着自己的来历：`measured here`、`recorded`、`computed`、`simulated`。
#
# 别的机器的 profile 也可以放进来：`other_machines = [load_profile("文件名.json")]`。

# %% [markdown] tags=["en"]
# ### Where do they cross?
#
# **Question**: raise the link on the left step by step. From 0 crossings, how many do you get, and how many in the end? On the right, change the recompute card from H100 to H20: does B* rise or fall?
#
# The left plot is a CPU tensor with the numbers you have just measured (or, if nothing was measured, an example recorded on another machine); the right one is a CUDA tensor, computed from published numbers where there is no GPU. The solid orange line is recompute, the dashed blue one transfer, the two strips at the bottom say who is faster at each length, and the vertical dotted line is the prompt length of the slider. Each curve says where it comes from: `measured here`, `recorded`, `computed`, `simulated`.
#
# Another machine's profile fits in too: `other_machines = [load_profile("its file.json")]`.

# %% tags=["nbval-ignore-output"]
other_machines = []

crossover_panel(
    cpu=measured_sources(measured.values()) + recorded_sources(other_machines, "cpu"),
    cuda=measured_sources(cuda_measured) + recorded_sources(other_machines, "cuda"),
)

# %% [markdown] tags=["zh"]
# **看什么**
#
# - **两个交叉点**：链路落在驼峰的峰顶与两端之间时，短的和长的提示词该传输，中间的该重算。
# - **kv heads**：从 8 换到 1，B* 降到约 1/8，同一条链路上传输就赢了。
# - **目标卡**：4096 个 token，重算在 H100 上 B* 约 31 Gbps，在 H20 上约 4.65 Gbps（公开数字算出，利用率 0.45）。25 Gbps 的链路对一张卡太慢，对另一张绰绰有余。
# - **算出的和测过的**：再选 `H100 TP2`（真实测量），它也是驼峰；按公式算的只会下降，因为公式里没有固定开销。
#
# | 数 | 来源 | 可信程度 |
# | --- | --- | --- |
# | 模型形状，每个 token 的 KV | 各模型公开的配置文件 | DeepSeek-V3 有 2 处细节未核对 |
# | GPU 的稠密 bf16/fp16 算力 | 二手网页；要核对，请看厂商规格书 | H20、L40S、L4 标为 unverified（未核实） |
# | A100、H100 的 prefill 时间 | Patel 等，Splitwise，ISCA 2024，[splitwise-sim 的数据](https://github.com/Mutinifni/splitwise-sim) | 真机测量，Llama2-70B |
# | 利用率（MFU）0.45 | 我们的假设 | B* 与它成正比，自己拖动看 |

# %% [markdown] tags=["en"]
# **What to see**
#
# - **Two crossings**: with a link between the top of the hump and its ends, short and long prompts should be transferred, those in between recomputed.
# - **KV heads**: from 8 to 1, B* falls to about 1/8, and on the same link transfer wins.
# - **The destination card**: at 4096 tokens B* is about 31 Gbps when an H100 recomputes and about 4.65 Gbps on an H20 (computed from published numbers, utilisation 0.45). A link of 25 Gbps is too slow for the one and ample for the other.
# - **Computed and measured**: now choose `H100 TP2` (real measurements): a hump again; the computed curve only falls, because the formula has no fixed cost.
#
# | number | source | how far to trust it |
# | --- | --- | --- |
# | model shapes, KV of a token | the models' public configuration files | 2 details of DeepSeek-V3 not checked |
# | dense bf16/fp16 compute of GPUs | secondary pages; the vendor's datasheet is the source to check | H20, L40S and L4 are marked unverified |
# | prefill times of A100, H100 | Patel et al., Splitwise, ISCA 2024, [data of splitwise-sim](https://github.com/Mutinifni/splitwise-sim) | measured on real machines, Llama2-70B |
# | utilisation (MFU) 0.45 | our assumption | B* is proportional to it, drag and see |

# %% [markdown] tags=["zh"]
# **不能得出什么**
#
# - 随机权重、合成提示词、一个 CPU 线程：曲线的**形状**可以带走，毫秒数不能。
# - 复制、回环和共享内存都在一台机器里：没有真实网络，没有排队，没有别的请求，只是传输成本的**下界**。
# - 限速链路是睡出来的，GPU 曲线是算出来的：都不是 GPU 证据。

# %% [markdown] tags=["en"]
# **What may not be concluded**
#
# - Random weights, synthetic prompts, one CPU thread: take the **shape** of the curves with you, not the ms.
# - A copy, loopback and shared memory all stay within one machine: no real network, no queue, no other requests. They are **lower bounds** of the cost of a transfer.
# - The paced link is slept and the GPU curves are computed: neither is GPU evidence.

# %% [markdown] tags=["zh"]
# ## Step 3 · 这个池能接吗？
#
# **问题**：目标池健康、显存够、模型版本一致，只是 KV 的内存布局不同。它能接这个请求吗？

# %% [markdown] tags=["en"]
# ## Step 3 · Can this pool take it?
#
# **Question**: the target pool is healthy, has memory enough and the same model revision; only the memory layout of its KV differs. Can it take the request?

# %% [markdown] tags=["zh"]
# 这其实是两个问题：
#
# 1. **能执行吗？** 看健康、阶段、模型版本、显存。
# 2. **能直接接收已有的 KV 吗？** 先要能执行，再看 dtype 和布局。
#
# 布局不同只让第 2 个答案变成“否”。池仍然能运行请求，重算 prefill 就行。把两个答案混成一个，就会白白丢掉一个能用的池。
#
# | 信号 | 先做什么 | 保护什么 | 要记录 |
# | --- | --- | --- | --- |
# | KV dtype 或布局不兼容 | 留在这个池，重算 prefill | 可运行性 | 原因、recompute ms |
# | 池不健康、显存不足 | 换池；没有池就拒绝 | SLO、故障隔离 | 被拒绝的池和原因 |

# %% [markdown] tags=["en"]
# These are really two questions:
#
# 1. **Can it execute?** Look at health, stage, model revision, memory.
# 2. **Can it accept the existing KV?** It must be able to execute; then look at dtype and layout.
#
# Another layout turns only answer 2 into "no". The pool can still run the request, by recomputing the prefill. Mixing the two answers throws away a usable pool.
#
# | signal | first action | what it protects | record |
# | --- | --- | --- | --- |
# | KV dtype or layout incompatible | stay with this pool, recompute the prefill | that the request runs | reason, recompute ms |
# | pool unhealthy, memory short | other pool; without one, reject | SLO, fault isolation | refused pools and reasons |

# %% [markdown] tags=["zh"]
# ### TODO 3 的约定 · `evaluate_pool_capability`
#
# | 返回字段 | 值 |
# | --- | --- |
# | `pool_id` | 池的 `pool_id`；缺失时 `"unknown"` |
# | `can_execute` | 没有任何执行原因时 `True` |
# | `can_accept_kv` | `can_execute` 为真，并且没有任何 KV 原因时 `True` |
# | `reasons` | 列表：**所有**不满足的原因，按下表顺序；没有时是空列表 |
#
# | 顺序 | 何时加入 | 词 | 类别 |
# | --- | --- | --- | --- |
# | 1 | 池的 `healthy` 不是真 | `unhealthy` | 执行 |
# | 2 | 请求的 `stage` 不在池的 `supported_stages` 里（整个词相等才算） | `unsupported_stage` | 执行 |
# | 3 | 两边的 `model_revision` 不同 | `model_revision_mismatch` | 执行 |
# | 4 | 池的 `available_memory_gb` 小于请求的 `required_memory_gb` | `insufficient_memory` | 执行 |
# | 5 | 两边的 `kv_dtype` 不同 | `kv_dtype_mismatch` | KV |
# | 6 | 两边的 `kv_layout` 不同 | `kv_layout_mismatch` | KV |
#
# KV 原因总要列出，池不能执行时也一样。
#
# | 细节 | 规则 |
# | --- | --- |
# | 缺 `healthy` | 当作 `False` |
# | 缺 `supported_stages` | 一个阶段也不支持 |
# | 请求缺 `stage` | 当作 `"decode"` |
# | `model_revision`、`kv_dtype`、`kv_layout` 两边都缺 | 算相同 |
# | 这 3 个字段只有一边缺 | 算不同 |
# | 缺 `available_memory_gb` 或 `required_memory_gb` | 各自当作 0.0 |
# | 显存刚好够 | 够 |

# %% [markdown] tags=["en"]
# ### Contract of TODO 3 · `evaluate_pool_capability`
#
# | field returned | value |
# | --- | --- |
# | `pool_id` | the pool's `pool_id`; `"unknown"` when missing |
# | `can_execute` | `True` when there is no execution reason |
# | `can_accept_kv` | `True` when `can_execute` is true and there is no KV reason |
# | `reasons` | a list: **every** reason that applies, in the order of the next table; empty when there is none |
#
# | order | added when | word | kind |
# | --- | --- | --- | --- |
# | 1 | the pool's `healthy` is not true | `unhealthy` | execution |
# | 2 | the request's `stage` is not in the pool's `supported_stages` (the whole word must be equal) | `unsupported_stage` | execution |
# | 3 | `model_revision` differs between the two | `model_revision_mismatch` | execution |
# | 4 | the pool's `available_memory_gb` is less than the request's `required_memory_gb` | `insufficient_memory` | execution |
# | 5 | `kv_dtype` differs between the two | `kv_dtype_mismatch` | KV |
# | 6 | `kv_layout` differs between the two | `kv_layout_mismatch` | KV |
#
# KV reasons are always listed, also for a pool that cannot execute.
#
# | detail | rule |
# | --- | --- |
# | `healthy` missing | counts as `False` |
# | `supported_stages` missing | no stage is supported |
# | the request's `stage` missing | counts as `"decode"` |
# | `model_revision`, `kv_dtype`, `kv_layout` missing on both sides | counts as equal |
# | one of these 3 fields missing on one side only | counts as different |
# | `available_memory_gb` or `required_memory_gb` missing | each counts as 0.0 |
# | memory exactly enough | enough |

# %% nbgrader={"grade": false, "grade_id": "capability", "locked": false, "schema_version": 3, "solution": true, "task": false}
def evaluate_pool_capability(request: dict[str, object], pool: dict[str, object]) -> dict[str, object]:
    """池能否执行请求、能否接收已有的 KV · Whether a pool can execute a request, and accept its existing KV.

    request: stage, model_revision, kv_dtype, kv_layout, required_memory_gb
    pool: pool_id, healthy, supported_stages, model_revision, kv_dtype, kv_layout, available_memory_gb
    返回 · returns: {"pool_id", "can_execute", "can_accept_kv", "reasons"}
    """
    # TODO 3: 按表格顺序收集原因；执行原因和 KV 原因要分开。
    #         Collect the reasons in the table's order; keep execution reasons and KV reasons apart.
    ### BEGIN SOLUTION
    reasons = []
    if not pool.get("healthy", False):
        reasons.append("unhealthy")
    if request.get("stage", "decode") not in pool.get("supported_stages", []):
        reasons.append("unsupported_stage")
    if request.get("model_revision") != pool.get("model_revision"):
        reasons.append("model_revision_mismatch")
    if pool.get("available_memory_gb", 0.0) < request.get("required_memory_gb", 0.0):
        reasons.append("insufficient_memory")
    can_execute = not reasons
    kv_reasons = [f"{name}_mismatch" for name in ("kv_dtype", "kv_layout") if request.get(name) != pool.get(name)]
    return {
        "pool_id": pool.get("pool_id", "unknown"),
        "can_execute": can_execute,
        "can_accept_kv": can_execute and not kv_reasons,
        "reasons": reasons + kv_reasons,
    }
    ### END SOLUTION
    raise NotImplementedError("TODO 3 尚未完成 · TODO 3 is not done yet")

# %% nbgrader={"grade": true, "grade_id": "test_capability", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
TEST_REQUEST = {"stage": "decode", "model_revision": "rev-a", "kv_dtype": "float16", "kv_layout": "paged-v1",
                "required_memory_gb": 8}
TEST_POOL = {"pool_id": "decode-a", "supported_stages": ["decode"], "model_revision": "rev-a", "kv_dtype": "float16",
             "kv_layout": "paged-v1", "available_memory_gb": 16, "healthy": True}
HINT_ALL_GOOD = "没有问题的池：能执行，能接收 KV，原因是空列表 · nothing wrong: can execute, can accept KV, no reasons"
HINT_NO_KV = "有执行原因：can_execute 和 can_accept_kv 都是 False · with an execution reason both can_execute and can_accept_kv are False"
HINT_HEALTH = "healthy 不是真：unhealthy · healthy is not true: unhealthy"
HINT_STAGE = "阶段不在 supported_stages 里，整个词相等才算：unsupported_stage · stage not in supported_stages, whole words: unsupported_stage"
HINT_REVISION = "模型版本不同：model_revision_mismatch · another model revision: model_revision_mismatch"
HINT_MEMORY = "可用显存小于需要：insufficient_memory · less memory than required: insufficient_memory"
HINT_EXACT = "显存刚好够就是够；按原值比较，不取整 · exactly enough memory is enough; compare the numbers as they are"


def want_refused(word):
    return {"pool_id": "decode-a", "reasons": [word], "can_execute": False, "can_accept_kv": False}


WANT_ACCEPTED = {"pool_id": "decode-a", "reasons": [], "can_execute": True, "can_accept_kv": True}
check("test_capability", "evaluate_pool_capability", [
    case(TEST_REQUEST, TEST_POOL, want=WANT_ACCEPTED, hint=HINT_ALL_GOOD),
    case(TEST_REQUEST, {**TEST_POOL, "healthy": False}, want=want_refused("unhealthy"), hint=HINT_HEALTH,
         mistakes=[(True, HINT_NO_KV)]),
    case(TEST_REQUEST, {**TEST_POOL, "supported_stages": ["prefill", "decode-draft"]},
         want=want_refused("unsupported_stage"), hint=HINT_STAGE, mistakes=[(True, HINT_NO_KV)]),
    case({**TEST_REQUEST, "stage": "prefill"}, TEST_POOL, want=want_refused("unsupported_stage"), hint=HINT_STAGE),
    case({**TEST_REQUEST, "stage": "prefill"}, {**TEST_POOL, "supported_stages": ["decode", "prefill"]},
         want=WANT_ACCEPTED, hint=HINT_STAGE),
    case(TEST_REQUEST, {**TEST_POOL, "supported_stages": ["decode", "prefill"]}, want=WANT_ACCEPTED, hint=HINT_STAGE),
    *(case(TEST_REQUEST, {**TEST_POOL, "model_revision": other}, want=want_refused("model_revision_mismatch"),
           hint=HINT_REVISION) for other in ("rev-b", "rev", "rev-a2")),
    case(TEST_REQUEST, {**TEST_POOL, "available_memory_gb": 2}, want=want_refused("insufficient_memory"), hint=HINT_MEMORY),
    case(TEST_REQUEST, {**TEST_POOL, "available_memory_gb": 8}, want=WANT_ACCEPTED, hint=HINT_EXACT),
    case({**TEST_REQUEST, "required_memory_gb": 7.75}, {**TEST_POOL, "available_memory_gb": 7.5},
         want=want_refused("insufficient_memory"), hint=HINT_EXACT),
    case(TEST_REQUEST, {**TEST_POOL, "available_memory_gb": 7.96}, want=want_refused("insufficient_memory"), hint=HINT_EXACT),
])
### BEGIN HIDDEN TESTS
HIDDEN_RNG = hidden_rng("test_capability")
HIDDEN_CASES = []
for hidden_word in [None, "unhealthy", "unsupported_stage", "model_revision_mismatch", "insufficient_memory"] * 6:
    # A pool made to fit the request; then one thing is broken on purpose, so the answer is known.
    hidden_stage, hidden_other = HIDDEN_RNG.sample(["decode", "prefill", "encode"], 2)
    hidden_tag, hidden_memory = str(HIDDEN_RNG.randint(100, 999)), HIDDEN_RNG.randint(20, 900) / 10
    hidden_both = {"model_revision": "m" + hidden_tag, "kv_dtype": "d" + hidden_tag, "kv_layout": "l" + hidden_tag}
    hidden_pool = {"pool_id": "p" + hidden_tag, "healthy": True, "available_memory_gb": hidden_memory, **hidden_both,
                   "supported_stages": HIDDEN_RNG.choice([[hidden_stage], [hidden_other, hidden_stage]])}
    hidden_pool.update({
        None: {}, "unhealthy": {"healthy": False}, "unsupported_stage": {"supported_stages": [hidden_other]},
        "model_revision_mismatch": {"model_revision": "m" + hidden_tag + "x"},
        "insufficient_memory": {"available_memory_gb": hidden_memory - 0.5},
    }[hidden_word])
    HIDDEN_CASES.append(case(
        {"stage": hidden_stage, "required_memory_gb": hidden_memory, **hidden_both}, hidden_pool,
        want={"pool_id": "p" + hidden_tag, "reasons": [word for word in [hidden_word] if word],
              "can_execute": hidden_word is None, "can_accept_kv": hidden_word is None},
        hint="换了数据就不对：请比较两边的字段，不要写死答案 · wrong on other data: compare the fields, no remembered answers",
    ))
check("test_capability", "evaluate_pool_capability", HIDDEN_CASES, hidden=True)
### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "test_capability_kv", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
TEST_REQUEST = {"stage": "decode", "model_revision": "rev-a", "kv_dtype": "float16", "kv_layout": "paged-v1",
                "required_memory_gb": 8}
TEST_POOL = {"pool_id": "decode-a", "supported_stages": ["decode"], "model_revision": "rev-a", "kv_dtype": "float16",
             "kv_layout": "paged-v1", "available_memory_gb": 16, "healthy": True}
HINT_DTYPE = "KV dtype 不同：kv_dtype_mismatch · another KV dtype: kv_dtype_mismatch"
HINT_LAYOUT = "KV 布局不同：kv_layout_mismatch · another KV layout: kv_layout_mismatch"
HINT_BOTH_KV = "两个 KV 原因都要列出，先 dtype 后布局 · list both KV reasons, dtype before layout"
HINT_STILL_RUNS = "KV 原因不影响执行：can_execute 仍是 True · KV reasons are no execution reasons: can_execute stays True"
HINT_KV_NO = "有 KV 原因就不能接收 KV · with a KV reason it cannot accept the KV"


def want_runs_without_kv(*words):
    return {"pool_id": "decode-a", "can_execute": True, "reasons": list(words), "can_accept_kv": False}


check("test_capability_kv", "evaluate_pool_capability", [
    case(TEST_REQUEST, {**TEST_POOL, "kv_layout": "contiguous"}, want=want_runs_without_kv("kv_layout_mismatch"),
         hint=HINT_LAYOUT, mistakes=[(False, HINT_STILL_RUNS), (True, HINT_KV_NO)]),
    case(TEST_REQUEST, {**TEST_POOL, "kv_dtype": "bfloat16"}, want=want_runs_without_kv("kv_dtype_mismatch"),
         hint=HINT_DTYPE, mistakes=[(False, HINT_STILL_RUNS), (True, HINT_KV_NO)]),
    case(TEST_REQUEST, {**TEST_POOL, "kv_dtype": "bfloat16", "kv_layout": "contiguous"},
         want=want_runs_without_kv("kv_dtype_mismatch", "kv_layout_mismatch"), hint=HINT_BOTH_KV),
    *(case(TEST_REQUEST, {**TEST_POOL, "kv_dtype": other}, want=want_runs_without_kv("kv_dtype_mismatch"), hint=HINT_DTYPE)
      for other in ("float", "float16x")),
    *(case(TEST_REQUEST, {**TEST_POOL, "kv_layout": other}, want=want_runs_without_kv("kv_layout_mismatch"), hint=HINT_LAYOUT)
      for other in ("paged", "paged-v12")),
])
### BEGIN HIDDEN TESTS
HIDDEN_RNG = hidden_rng("test_capability_kv")
HIDDEN_CASES = []
for hidden_broken in [["kv_dtype"], ["kv_layout"], ["kv_dtype", "kv_layout"], []] * 6:
    hidden_tag = str(HIDDEN_RNG.randint(100, 999))
    hidden_both = {"model_revision": "m" + hidden_tag, "kv_dtype": "d" + hidden_tag, "kv_layout": "l" + hidden_tag}
    HIDDEN_CASES.append(case(
        {"stage": "decode", "required_memory_gb": 8, **hidden_both},
        {"pool_id": "p" + hidden_tag, "healthy": True, "available_memory_gb": 9, "supported_stages": ["decode"],
         **hidden_both, **{name: hidden_both[name] + "x" for name in hidden_broken}},
        want={"pool_id": "p" + hidden_tag, "can_execute": True, "can_accept_kv": hidden_broken == [],
              "reasons": [name + "_mismatch" for name in hidden_broken]},
        hint=HINT_STILL_RUNS,
    ))
check("test_capability_kv", "evaluate_pool_capability", HIDDEN_CASES, hidden=True)
### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "test_capability_several_reasons", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
TEST_REQUEST = {"stage": "decode", "model_revision": "rev-a", "kv_dtype": "float16", "kv_layout": "paged-v1",
                "required_memory_gb": 8}
TEST_POOL = {"pool_id": "decode-a", "supported_stages": ["decode"], "model_revision": "rev-a", "kv_dtype": "float16",
             "kv_layout": "paged-v1", "available_memory_gb": 16, "healthy": True}
HINT_EVERY = "列出所有原因，不要在第一个就返回 · list every reason, do not return at the first"
HINT_ORDER = "顺序：健康、阶段、版本、显存，然后 dtype、布局 · order: health, stage, revision, memory, then dtype, layout"
HINT_KV_TOO = "不能执行的池也要列出 KV 原因 · KV reasons are listed also for a pool that cannot execute"
HINT_NO_KV = "有执行原因：can_execute 和 can_accept_kv 都是 False · with an execution reason both can_execute and can_accept_kv are False"


def want_refused_for(*words):
    return {"pool_id": "decode-a", "reasons": list(words), "can_execute": False, "can_accept_kv": False}


check("test_capability_several_reasons", "evaluate_pool_capability", [
    case(TEST_REQUEST, {**TEST_POOL, "healthy": False, "kv_layout": "contiguous"},
         want=want_refused_for("unhealthy", "kv_layout_mismatch"), hint=HINT_ORDER,
         mistakes=[(["unhealthy"], HINT_KV_TOO), (True, HINT_NO_KV)]),
    case(TEST_REQUEST, {**TEST_POOL, "supported_stages": ["prefill"], "available_memory_gb": 2},
         want=want_refused_for("unsupported_stage", "insufficient_memory"), hint=HINT_ORDER,
         mistakes=[(["unsupported_stage"], HINT_EVERY), (["insufficient_memory"], HINT_EVERY)]),
    case(TEST_REQUEST, {**TEST_POOL, "healthy": False, "model_revision": "rev-b"},
         want=want_refused_for("unhealthy", "model_revision_mismatch"), hint=HINT_ORDER,
         mistakes=[(["unhealthy"], HINT_EVERY), (["model_revision_mismatch"], HINT_EVERY)]),
    case(TEST_REQUEST, {"pool_id": "decode-a", "supported_stages": ["prefill"], "model_revision": "rev-b",
                        "kv_dtype": "bfloat16", "kv_layout": "contiguous", "available_memory_gb": 2, "healthy": False},
         want=want_refused_for("unhealthy", "unsupported_stage", "model_revision_mismatch", "insufficient_memory",
                               "kv_dtype_mismatch", "kv_layout_mismatch"), hint=HINT_ORDER),
])
### BEGIN HIDDEN TESTS
HIDDEN_RNG = hidden_rng("test_capability_several_reasons")
HIDDEN_FAULTS = {  # in the order of the contract: what to change in a good pool
    "unhealthy": ("healthy", False), "unsupported_stage": ("supported_stages", ["encode"]),
    "model_revision_mismatch": ("model_revision", "rev-x"), "insufficient_memory": ("available_memory_gb", 3),
    "kv_dtype_mismatch": ("kv_dtype", "float8"), "kv_layout_mismatch": ("kv_layout", "paged-v9"),
}
HIDDEN_CASES = []
for _ in range(40):
    hidden_words = HIDDEN_RNG.sample(list(HIDDEN_FAULTS), HIDDEN_RNG.randint(2, 6))
    hidden_words.sort(key=list(HIDDEN_FAULTS).index)
    hidden_runs = not set(hidden_words) - {"kv_dtype_mismatch", "kv_layout_mismatch"}
    HIDDEN_CASES.append(case(
        TEST_REQUEST, {**TEST_POOL, **dict(HIDDEN_FAULTS[word] for word in hidden_words)},
        want={"pool_id": "decode-a", "reasons": hidden_words, "can_execute": hidden_runs, "can_accept_kv": False},
        hint=HINT_ORDER,
    ))
check("test_capability_several_reasons", "evaluate_pool_capability", HIDDEN_CASES, hidden=True)
### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "test_capability_defaults", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
TEST_REQUEST = {"stage": "decode", "model_revision": "rev-a", "kv_dtype": "float16", "kv_layout": "paged-v1",
                "required_memory_gb": 8}
TEST_POOL = {"pool_id": "decode-a", "supported_stages": ["decode"], "model_revision": "rev-a", "kv_dtype": "float16",
             "kv_layout": "paged-v1", "available_memory_gb": 16, "healthy": True}
HINT_NO_HEALTH = "缺 healthy 当作 False · healthy missing counts as False"
HINT_NO_STAGES = "缺 supported_stages：一个阶段也不支持 · supported_stages missing: no stage is supported"
HINT_NO_STAGE = "请求缺 stage 当作 decode · the request's stage missing counts as decode"
HINT_NO_ID = "缺 pool_id 时返回 unknown · pool_id missing: unknown"
HINT_NO_MEMORY = "缺少的显存字段当作 0.0 · a missing memory field counts as 0.0"
HINT_ONE_SIDE = "只有一边缺：算不同 · missing on one side only counts as different"
HINT_BOTH_SIDES = "两边都缺：算相同 · missing on both sides counts as equal"


def want_without(fields, name):
    return {field: value for field, value in fields.items() if field != name}


def want_result(*words, runs=True):
    return {"pool_id": "decode-a", "reasons": list(words), "can_execute": runs, "can_accept_kv": runs and not words}


check("test_capability_defaults", "evaluate_pool_capability", [
    case(TEST_REQUEST, want_without(TEST_POOL, "pool_id"), want={**want_result(), "pool_id": "unknown"}, hint=HINT_NO_ID),
    case(TEST_REQUEST, want_without(TEST_POOL, "healthy"), want=want_result("unhealthy", runs=False), hint=HINT_NO_HEALTH),
    case(TEST_REQUEST, want_without(TEST_POOL, "supported_stages"), want=want_result("unsupported_stage", runs=False),
         hint=HINT_NO_STAGES),
    case(want_without(TEST_REQUEST, "stage"), TEST_POOL, want=want_result(), hint=HINT_NO_STAGE),
    case(want_without(TEST_REQUEST, "stage"), {**TEST_POOL, "supported_stages": ["prefill"]},
         want=want_result("unsupported_stage", runs=False), hint=HINT_NO_STAGE),
    case({**TEST_REQUEST, "required_memory_gb": 0.5}, want_without(TEST_POOL, "available_memory_gb"),
         want=want_result("insufficient_memory", runs=False), hint=HINT_NO_MEMORY),
    case(want_without(TEST_REQUEST, "required_memory_gb"), {**TEST_POOL, "available_memory_gb": 0.5},
         want=want_result(), hint=HINT_NO_MEMORY),
    case(want_without(TEST_REQUEST, "required_memory_gb"), want_without(TEST_POOL, "available_memory_gb"),
         want=want_result(), hint=HINT_NO_MEMORY),
    *(
        one for name, runs in (("model_revision", False), ("kv_dtype", True), ("kv_layout", True)) for one in (
            case(want_without(TEST_REQUEST, name), TEST_POOL, want=want_result(f"{name}_mismatch", runs=runs), hint=HINT_ONE_SIDE),
            case(TEST_REQUEST, want_without(TEST_POOL, name), want=want_result(f"{name}_mismatch", runs=runs), hint=HINT_ONE_SIDE),
            case(want_without(TEST_REQUEST, name), want_without(TEST_POOL, name), want=want_result(), hint=HINT_BOTH_SIDES),
        )
    ),
])
### BEGIN HIDDEN TESTS
HIDDEN_RNG = hidden_rng("test_capability_defaults")
HIDDEN_WORDS = {  # missing field of the pool: reason when only the pool lacks it
    "healthy": "unhealthy", "supported_stages": "unsupported_stage", "model_revision": "model_revision_mismatch",
    "available_memory_gb": "insufficient_memory", "kv_dtype": "kv_dtype_mismatch", "kv_layout": "kv_layout_mismatch",
}
HIDDEN_CASES = []
for _ in range(30):
    hidden_missing = HIDDEN_RNG.sample(list(HIDDEN_WORDS), HIDDEN_RNG.randint(1, 5))
    hidden_words = [word for name, word in HIDDEN_WORDS.items() if name in hidden_missing]
    hidden_runs = all(word.startswith("kv_") for word in hidden_words)
    HIDDEN_CASES.append(case(
        {**TEST_REQUEST, "required_memory_gb": HIDDEN_RNG.randint(1, 15)},
        {name: value for name, value in TEST_POOL.items() if name not in hidden_missing},
        want={"pool_id": "decode-a", "reasons": hidden_words, "can_execute": hidden_runs, "can_accept_kv": False},
        hint="缺少的字段见细节表 · missing fields: see the table of details",
    ))
check("test_capability_defaults", "evaluate_pool_capability", HIDDEN_CASES, hidden=True)
### END HIDDEN TESTS

# %% [markdown] tags=["zh"]
# > #### Field case · 现场案例：字节一样，意思不同
# >
# > **现象**：TensorRT-LLM 里，prefill 和 decode 用了不同的张量并行，输出是错的。
# >
# > **问题**：传输没有报错，字节一个不少。错在哪里？
# >
# > 来源：[NVIDIA/TensorRT-LLM issue 6507](https://github.com/NVIDIA/TensorRT-LLM/issues/6507)
#
# 下面把一页 KV 按一种布局写入、按另一种读出，再看你的函数会不会拦住它。

# %% [markdown] tags=["en"]
# > #### Field case · Same bytes, other meaning
# >
# > **Symptom**: in TensorRT-LLM, outputs were wrong when prefill and decode used different tensor parallelism.
# >
# > **Question**: no transfer failed and no byte was lost. What went wrong?
# >
# > Source: [NVIDIA/TensorRT-LLM issue 6507](https://github.com/NVIDIA/TensorRT-LLM/issues/6507)
#
# The next cell writes a page of KV in one layout, reads it in the other, and then asks whether your function would have stopped it.

# %%
import numpy as np

written = np.arange(12).reshape(1, 2, 2, 3, 1)  # pages, K and V, kv_heads, page, head_dim
read_back = written.reshape(1, 2, 3, 2, 1)  # the same bytes as pages, K and V, page, kv_heads, head_dim
print("same bytes:", written.tobytes() == read_back.tobytes())
print("K of head 0, token 1: written", written[0, 0, 0, 1, 0], "read", read_back[0, 0, 1, 0, 0])
with demo("T3"):
    print(evaluate_pool_capability(
        {"stage": "decode", "kv_layout": "heads-then-page"},
        {"pool_id": "decode-tp2", "healthy": True, "supported_stages": ["decode"], "kv_layout": "page-then-heads"},
    ))

# %% [markdown] tags=["zh"]
# **机制**：KV 布局应为 `[pages, 2, kv_heads, page, head_dim]`，池里却是 `[pages, 2, page, kv_heads, head_dim]`。布局是 KV 兼容性的一部分。

# %% [markdown] tags=["en"]
# **Mechanism**: the KV layout expected was `[pages, 2, kv_heads, page, head_dim]`, the pool held `[pages, 2, page, kv_heads, head_dim]`. Layout is part of KV compatibility.

# %% [markdown] tags=["zh"]
# > #### Field case · 现场案例：说健康，其实还在加载
# >
# > **现象**：SGLang 的路由器报告健康，而第一个 prefill worker 还在加载。
# >
# > **问题**：进程活着，算健康吗？
# >
# > 来源：[sgl-project/sglang issue 33740](https://github.com/sgl-project/sglang/issues/33740)

# %% [markdown] tags=["en"]
# > #### Field case · Said to be healthy, still loading
# >
# > **Symptom**: SGLang's router reported healthy while the first prefill worker was still loading.
# >
# > **Question**: the process is alive. Is that healthy?
# >
# > Source: [sgl-project/sglang issue 33740](https://github.com/sgl-project/sglang/issues/33740)

# %%
with demo("T3"):
    loading_pool = {"pool_id": "prefill-a", "process_alive": True, "supported_stages": ["prefill"], "available_memory_gb": 60}
    print("loading:", evaluate_pool_capability({"stage": "prefill", "required_memory_gb": 20}, loading_pool))
    print("loaded: ", evaluate_pool_capability({"stage": "prefill", "required_memory_gb": 20}, {**loading_pool, "healthy": True}))

# %% [markdown] tags=["zh"]
# **机制**：“健康”的意思是**现在就能运行这个阶段**。所以约定里缺 `healthy` 就是 `False`：没有人确认过，就不算健康。

# %% [markdown] tags=["en"]
# **Mechanism**: "healthy" means **can run this stage now**. That is why a missing `healthy` is `False` in the contract: what nobody has confirmed is not healthy.

# %% [markdown] tags=["zh"]
# **想一想**：池都不能执行了，为什么还要列出 KV 原因？

# %% [markdown] tags=["en"]
# **Think**: the pool cannot execute anyway. Why list its KV reasons too?

# %% [markdown] tags=["zh", "answer"]
# **答**：记录是给人看的。只写 `unhealthy`，值班的人修好健康检查，池回来了，却发现 KV 仍然接不过去，请求全部改成重算。一次列全，一次修完。

# %% [markdown] tags=["en", "answer"]
# **Answer**: records are read by people. With `unhealthy` alone, somebody repairs the health check, the pool returns, and KV still cannot be accepted: every request is recomputed. List all, repair once.

# %% [markdown] tags=["zh"]
# ## Step 4 · 走哪条路？
#
# **问题**：主池跑得了这个请求，却接不了它的 KV。第一个回退池两样都行。请求去哪里？

# %% [markdown] tags=["en"]
# ## Step 4 · Which route?
#
# **Question**: the primary pool can execute, but cannot accept the KV. The first fallback can do both. Where does the request go?

# %% [markdown] tags=["zh"]
# 本章的规则：先主池，再按给定顺序试回退池，**第一个能执行的**就是它，不找“最好的”。所以请求留在主池，改为重算。
#
# ```text
# 主池 ──能执行──> primary      能接收 KV？ 是：按偏好    否：recompute
#   │不能
# 回退池 1, 2, … ──第一个能执行──> reroute   同上
#   │都不能
# reject
# ```
#
# 例：主池 `decode-a` 不健康且布局不同，回退池 `decode-b` dtype 不同，偏好 `transfer`。结果：选 `decode-b`，`reroute`，`recompute`，原因 `["kv_dtype_mismatch"]`，被拒绝的池 `{"decode-a": ["unhealthy", "kv_layout_mismatch"]}`。

# %% [markdown] tags=["en"]
# This chapter's rule: primary first, then the fallbacks in the given order, and **the first that can execute** is taken; nobody looks for "the best". So the request stays with the primary pool and is recomputed.
#
# ```text
# primary ──can execute──> primary      accepts KV?  yes: as preferred    no: recompute
#   │ cannot
# fallback 1, 2, … ──first that can──> reroute   likewise
#   │ none can
# reject
# ```
#
# Example: the primary `decode-a` is unhealthy and has another layout, the fallback `decode-b` has another dtype, `transfer` is preferred. Result: `decode-b` is selected, `reroute`, `recompute`, reasons `["kv_dtype_mismatch"]`, rejected pools `{"decode-a": ["unhealthy", "kv_layout_mismatch"]}`.

# %% [markdown] tags=["zh"]
# ### TODO 4 的约定 · `plan_route_with_fallback`
#
# | 返回字段 | 选中了池 | 没有池能执行 |
# | --- | --- | --- |
# | `selected_pool` | 选中的池的 `pool_id` | `"none"` |
# | `execution_mode` | 见下一张表 | `"none"` |
# | `decision` | 主池：`"primary"`；回退池：`"reroute"` | `"reject"` |
# | `reasons` | 选中的池自己的原因（只会有 KV 原因），偏好重算时也一样 | `["no_executable_pool"]` |
# | `rejected_pools` | 在它**之前**试过并拒绝的池：`{pool_id: 全部原因}` | 所有池：`{pool_id: 全部原因}` |
#
# | `preferred_handoff` | 选中的池能接收 KV | `execution_mode` |
# | --- | --- | --- |
# | `"transfer"` | 能 | `"transfer"` |
# | `"transfer"` | 不能 | `"recompute"` |
# | `"recompute"` | 能或不能 | `"recompute"` |
#
# | 细节 | 规则 |
# | --- | --- |
# | `preferred_handoff` 是其他词 | `ValueError`，没有池能执行时也一样 |
# | 尝试顺序 | 主池，然后按给定顺序的回退池；取第一个能执行的 |
# | 被拒绝的池的原因 | TODO 3 给出的全部原因，包括 KV 原因，顺序不变 |
# | 选中的池之后的池 | 不记录 |
# | 同一个 `pool_id` 被拒绝多次 | 保留最后一次的原因 |
# | 被拒绝的 `pool_id` 后来又被选中 | 拒绝记录保留；`decision` 看位置，不看名字 |
# | 池缺 `pool_id` | 名字是 `"unknown"`，见 TODO 3 |
# | 没有回退池 | 空列表 |
#
# 请在函数里调用 `evaluate_pool_capability`。如果 TODO 3 还不对，检查会再用记录好的正确答案试一次，TODO 4 不会因此失分。

# %% [markdown] tags=["en"]
# ### Contract of TODO 4 · `plan_route_with_fallback`
#
# | field returned | a pool is selected | no pool can execute |
# | --- | --- | --- |
# | `selected_pool` | the selected pool's `pool_id` | `"none"` |
# | `execution_mode` | see the next table | `"none"` |
# | `decision` | primary pool: `"primary"`; fallback: `"reroute"` | `"reject"` |
# | `reasons` | the selected pool's own reasons (these can only be KV reasons), also when recompute was preferred | `["no_executable_pool"]` |
# | `rejected_pools` | pools tried and refused **before** it: `{pool_id: all reasons}` | all pools: `{pool_id: all reasons}` |
#
# | `preferred_handoff` | selected pool accepts KV | `execution_mode` |
# | --- | --- | --- |
# | `"transfer"` | yes | `"transfer"` |
# | `"transfer"` | no | `"recompute"` |
# | `"recompute"` | yes or no | `"recompute"` |
#
# | detail | rule |
# | --- | --- |
# | `preferred_handoff` is another word | `ValueError`, also when no pool could execute |
# | order of trying | primary, then the fallbacks in the given order; the first that can execute |
# | reasons of a refused pool | all reasons of TODO 3, KV reasons included, in the same order |
# | pools after the selected one | not recorded |
# | the same `pool_id` refused several times | the last refusal's reasons stay |
# | a refused `pool_id` is selected later | the refusal stays on record; `decision` goes by position, not by name |
# | a pool without `pool_id` | its name is `"unknown"`, see TODO 3 |
# | no fallback pools | an empty list |
#
# Call `evaluate_pool_capability` in your function. If TODO 3 is not right yet, the check tries once more with recorded right answers, so TODO 4 loses no points for it.

# %% nbgrader={"grade": false, "grade_id": "routing", "locked": false, "schema_version": 3, "solution": true, "task": false}
def plan_route_with_fallback(
    request: dict[str, object],
    primary_pool: dict[str, object],
    fallback_pools: list[dict[str, object]],
    preferred_handoff: str,
) -> dict[str, object]:
    """主池、回退池或拒绝 · Primary pool, fallback or reject.

    preferred_handoff: "transfer", "recompute"；其他词 · other words: ValueError
    返回 · returns: {"selected_pool", "execution_mode", "decision", "reasons", "rejected_pools"}
    """
    # TODO 4: 依次询问每个池；第一个能执行的就是答案，之前被拒绝的要记下原因。
    #         Ask each pool in turn; the first that can execute is the answer, the refused ones before it go on record.
    ### BEGIN SOLUTION
    if preferred_handoff not in ("transfer", "recompute"):
        raise ValueError(f"preferred_handoff: transfer / recompute, got {preferred_handoff!r}")
    rejected_pools = {}
    for position, pool in enumerate([primary_pool, *fallback_pools]):
        capability = evaluate_pool_capability(request, pool)
        if capability["can_execute"]:
            return {
                "selected_pool": capability["pool_id"],
                "execution_mode": preferred_handoff if capability["can_accept_kv"] else "recompute",
                "decision": "reroute" if position else "primary",
                "reasons": capability["reasons"],
                "rejected_pools": rejected_pools,
            }
        rejected_pools[capability["pool_id"]] = capability["reasons"]
    return {
        "selected_pool": "none",
        "execution_mode": "none",
        "decision": "reject",
        "reasons": ["no_executable_pool"],
        "rejected_pools": rejected_pools,
    }
    ### END SOLUTION
    raise NotImplementedError("TODO 4 尚未完成 · TODO 4 is not done yet")

# %% nbgrader={"grade": true, "grade_id": "test_routing", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
TEST_REQUEST = {"stage": "decode", "model_revision": "rev-a", "kv_dtype": "float16", "kv_layout": "paged-v1",
                "required_memory_gb": 8}
TEST_POOL = {"supported_stages": ["decode"], "model_revision": "rev-a", "kv_dtype": "float16", "kv_layout": "paged-v1",
             "available_memory_gb": 16, "healthy": True}
# pool, can_execute, can_accept_kv, reasons: the right answers of TODO 3, used when yours differ
TEST_TABLE = {
    "good": ({**TEST_POOL, "pool_id": "decode-a"}, True, True, []),
    "layout": ({**TEST_POOL, "pool_id": "decode-a", "kv_layout": "contiguous"}, True, False, ["kv_layout_mismatch"]),
    "ill": ({**TEST_POOL, "pool_id": "decode-a", "healthy": False}, False, False, ["unhealthy"]),
    "small": ({**TEST_POOL, "pool_id": "decode-a", "available_memory_gb": 2}, False, False, ["insufficient_memory"]),
    "spare": ({**TEST_POOL, "pool_id": "decode-b"}, True, True, []),
}
TEST_POOLS = {name: row[0] for name, row in TEST_TABLE.items()}
TEST_ANSWERS = [
    ((TEST_REQUEST, pool), {"pool_id": pool["pool_id"], "can_execute": runs, "can_accept_kv": accepts, "reasons": reasons})
    for pool, runs, accepts, reasons in TEST_TABLE.values()
]
HINT_PRIMARY = "主池能执行就用主池 · the primary pool is taken when it can execute"
HINT_RECOMPUTE = "跑得了、接不了 KV：留在这个池，改为 recompute · can execute but not accept KV: stay, and recompute"
HINT_KV_RUNS = "KV 原因不是执行原因，不能因此换池或拒绝 · KV reasons are no execution reasons: no other pool, no reject"
HINT_REROUTE = "主池不能执行：取第一个能执行的回退池，decision 是 reroute · primary cannot execute: first fallback that can, decision reroute"
HINT_REJECTED = "rejected_pools 记录之前被拒绝的池和原因 · rejected_pools holds the pools refused before, with reasons"
HINT_NOT_LISTED = "选中的池不在 rejected_pools 里 · the selected pool is not in rejected_pools"
HINT_REJECT = ('没有池能执行：none、none、reject、["no_executable_pool"]，rejected_pools 记录每个池'
               ' · no pool can execute: none, none, reject, ["no_executable_pool"], and rejected_pools has every pool')
check("test_routing", "plan_route_with_fallback", [
    case(TEST_REQUEST, TEST_POOLS["good"], [], "transfer", hint=HINT_PRIMARY, mistakes=[(["decode-a"], HINT_NOT_LISTED)], want={
        "selected_pool": "decode-a", "execution_mode": "transfer", "decision": "primary", "reasons": [], "rejected_pools": {}}),
    case(TEST_REQUEST, TEST_POOLS["layout"], [], "transfer", hint=HINT_RECOMPUTE,
         mistakes=[("none", HINT_KV_RUNS), (["decode-a"], HINT_NOT_LISTED)], want={
        "selected_pool": "decode-a", "execution_mode": "recompute", "decision": "primary",
        "reasons": ["kv_layout_mismatch"], "rejected_pools": {}}),
    case(TEST_REQUEST, TEST_POOLS["ill"], [TEST_POOLS["spare"]], "transfer", hint=HINT_REROUTE,
         mistakes=[([], HINT_REJECTED), (["decode-a", "decode-b"], HINT_NOT_LISTED)], want={
             "selected_pool": "decode-b", "execution_mode": "transfer", "decision": "reroute",
             "reasons": [], "rejected_pools": {"decode-a": ["unhealthy"]}}),
    case(TEST_REQUEST, TEST_POOLS["small"], [], "transfer", hint=HINT_REJECT, mistakes=[([], HINT_REJECT)], want={
        "selected_pool": "none", "execution_mode": "none", "decision": "reject",
        "reasons": ["no_executable_pool"], "rejected_pools": {"decode-a": ["insufficient_memory"]}}),
], stand_ins={"evaluate_pool_capability(request, pool)": TEST_ANSWERS})
### BEGIN HIDDEN TESTS
HINT_HIDDEN = "换了数据就不对：请写规则，不要写死答案 · wrong on other data: write the rule, not remembered answers"
# Good pools get faults put into them, so every pool's answer is known without a capability function.
HIDDEN_FAULTS = {
    "unhealthy": {"healthy": False}, "unsupported_stage": {"supported_stages": ["prefill"]},
    "model_revision_mismatch": {"model_revision": "rev-b"}, "insufficient_memory": {"available_memory_gb": 5},
    "kv_dtype_mismatch": {"kv_dtype": "bfloat16"}, "kv_layout_mismatch": {"kv_layout": "contiguous"},
}
HIDDEN_ORDER = list(HIDDEN_FAULTS)
HIDDEN_RNG = hidden_rng("test_routing")
HIDDEN_CASES, HIDDEN_ANSWERS = [], []
for hidden_turn in range(40):
    HIDDEN_NAMES = [f"pool-{number}" for number in HIDDEN_RNG.sample(range(100, 999), 6)]
    hidden_preferred = "transfer"
    hidden_stop, hidden_kv = [HIDDEN_RNG.choice(HIDDEN_ORDER[:3])], [HIDDEN_RNG.choice(HIDDEN_ORDER[4:])]
    hidden_words = ([[]], [hidden_kv], [hidden_stop], [["insufficient_memory"]], [hidden_stop, []])[hidden_turn % 5]
    hidden_ids = HIDDEN_NAMES[:len(hidden_words)]
    hidden_pools = [dict(TEST_POOL) if name is None else {**TEST_POOL, "pool_id": name} for name in hidden_ids]
    for hidden_pool, hidden_faults in zip(hidden_pools, hidden_words):
        for hidden_fault in hidden_faults:
            hidden_pool.update(HIDDEN_FAULTS[hidden_fault])
    hidden_ids = [name or "unknown" for name in hidden_ids]
    hidden_runs = [HIDDEN_ORDER.index((words or HIDDEN_ORDER[4:])[0]) >= 4 for words in hidden_words]
    HIDDEN_ANSWERS += [
        ((TEST_REQUEST, pool), {"pool_id": name, "can_execute": runs, "can_accept_kv": words == [], "reasons": words})
        for name, pool, runs, words in zip(hidden_ids, hidden_pools, hidden_runs, hidden_words)
    ]
    hidden_at = [*hidden_runs, True].index(True)
    HIDDEN_CASES.append(case(TEST_REQUEST, hidden_pools[0], hidden_pools[1:], hidden_preferred, hint=HINT_HIDDEN, want={
        "selected_pool": [*hidden_ids, "none"][hidden_at],
        "execution_mode": [*(("recompute", hidden_preferred)[words == []] for words in hidden_words), "none"][hidden_at],
        "decision": ["primary", *["reroute"] * (len(hidden_ids) - 1), "reject"][hidden_at],
        "reasons": [*hidden_words, ["no_executable_pool"]][hidden_at],
        "rejected_pools": dict(list(zip(hidden_ids, hidden_words))[:hidden_at]),
    }))
check("test_routing", "plan_route_with_fallback", HIDDEN_CASES, hidden=True,
      stand_ins={"evaluate_pool_capability(request, pool)": HIDDEN_ANSWERS})
### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "test_routing_recompute", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
TEST_REQUEST = {"stage": "decode", "model_revision": "rev-a", "kv_dtype": "float16", "kv_layout": "paged-v1",
                "required_memory_gb": 8}
TEST_POOL = {"supported_stages": ["decode"], "model_revision": "rev-a", "kv_dtype": "float16", "kv_layout": "paged-v1",
             "available_memory_gb": 16, "healthy": True}
# pool, can_execute, can_accept_kv, reasons: the right answers of TODO 3, used when yours differ
TEST_TABLE = {
    "good": ({**TEST_POOL, "pool_id": "decode-a"}, True, True, []),
    "dtype": ({**TEST_POOL, "pool_id": "decode-a", "kv_dtype": "bfloat16"}, True, False, ["kv_dtype_mismatch"]),
    "both": ({**TEST_POOL, "pool_id": "decode-a", "kv_dtype": "bfloat16", "kv_layout": "contiguous"}, True, False,
             ["kv_dtype_mismatch", "kv_layout_mismatch"]),
    "ill": ({**TEST_POOL, "pool_id": "decode-a", "healthy": False}, False, False, ["unhealthy"]),
    "spare": ({**TEST_POOL, "pool_id": "decode-b", "kv_layout": "contiguous"}, True, False, ["kv_layout_mismatch"]),
}
TEST_POOLS = {name: row[0] for name, row in TEST_TABLE.items()}
TEST_ANSWERS = [
    ((TEST_REQUEST, pool), {"pool_id": pool["pool_id"], "can_execute": runs, "can_accept_kv": accepts, "reasons": reasons})
    for pool, runs, accepts, reasons in TEST_TABLE.values()
]
HINT_WANTED = "偏好 recompute 时，执行方式总是 recompute · recompute preferred: the execution mode is recompute"
HINT_KEEP = "选中的池的 KV 原因要保留，偏好 recompute 时也一样 · keep the selected pool's KV reasons, also when recompute was preferred"
HINT_OWN = "reasons 只有选中的池自己的原因 · reasons holds only the selected pool's own reasons"
HINT_RECOMPUTE = "跑得了、接不了 KV：改为 recompute，回退池也一样 · can execute but not accept KV: recompute, on a fallback too"
check("test_routing_recompute", "plan_route_with_fallback", [
    case(TEST_REQUEST, TEST_POOLS["dtype"], [], "recompute", hint=HINT_WANTED, mistakes=[([], HINT_KEEP)], want={
        "selected_pool": "decode-a", "execution_mode": "recompute", "decision": "primary",
        "reasons": ["kv_dtype_mismatch"], "rejected_pools": {}}),
    case(TEST_REQUEST, TEST_POOLS["good"], [], "recompute", hint=HINT_WANTED, want={
        "selected_pool": "decode-a", "execution_mode": "recompute", "decision": "primary", "reasons": [], "rejected_pools": {}}),
    case(TEST_REQUEST, TEST_POOLS["both"], [], "transfer", hint=HINT_RECOMPUTE, mistakes=[([], HINT_KEEP)], want={
        "selected_pool": "decode-a", "execution_mode": "recompute", "decision": "primary",
        "reasons": ["kv_dtype_mismatch", "kv_layout_mismatch"], "rejected_pools": {}}),
    case(TEST_REQUEST, TEST_POOLS["ill"], [TEST_POOLS["spare"]], "transfer", hint=HINT_RECOMPUTE,
         mistakes=[(["unhealthy", "kv_layout_mismatch"], HINT_OWN), (["unhealthy"], HINT_OWN), ([], HINT_KEEP)], want={
             "selected_pool": "decode-b", "execution_mode": "recompute", "decision": "reroute",
             "reasons": ["kv_layout_mismatch"], "rejected_pools": {"decode-a": ["unhealthy"]}}),
], stand_ins={"evaluate_pool_capability(request, pool)": TEST_ANSWERS})
### BEGIN HIDDEN TESTS
HINT_HIDDEN = "偏好 recompute：执行方式是 recompute，原因照样保留 · recompute preferred: mode recompute, reasons kept all the same"
# Good pools get faults put into them, so every pool's answer is known without a capability function.
HIDDEN_FAULTS = {
    "unhealthy": {"healthy": False}, "unsupported_stage": {"supported_stages": ["prefill"]},
    "model_revision_mismatch": {"model_revision": "rev-b"}, "insufficient_memory": {"available_memory_gb": 5},
    "kv_dtype_mismatch": {"kv_dtype": "bfloat16"}, "kv_layout_mismatch": {"kv_layout": "contiguous"},
}
HIDDEN_ORDER = list(HIDDEN_FAULTS)
HIDDEN_RNG = hidden_rng("test_routing_recompute")
HIDDEN_CASES, HIDDEN_ANSWERS = [], []
for _ in range(40):
    HIDDEN_NAMES = [f"pool-{number}" for number in HIDDEN_RNG.sample(range(100, 999), 6)]
    hidden_preferred = "recompute"
    hidden_words = [HIDDEN_RNG.choice([[], HIDDEN_ORDER[4:5], HIDDEN_ORDER[5:], HIDDEN_ORDER[4:]])]
    if HIDDEN_RNG.random() < 0.5:
        hidden_words.insert(0, [HIDDEN_RNG.choice(HIDDEN_ORDER[:3])])
    hidden_ids = HIDDEN_NAMES[:len(hidden_words)]
    hidden_pools = [dict(TEST_POOL) if name is None else {**TEST_POOL, "pool_id": name} for name in hidden_ids]
    for hidden_pool, hidden_faults in zip(hidden_pools, hidden_words):
        for hidden_fault in hidden_faults:
            hidden_pool.update(HIDDEN_FAULTS[hidden_fault])
    hidden_ids = [name or "unknown" for name in hidden_ids]
    hidden_runs = [HIDDEN_ORDER.index((words or HIDDEN_ORDER[4:])[0]) >= 4 for words in hidden_words]
    HIDDEN_ANSWERS += [
        ((TEST_REQUEST, pool), {"pool_id": name, "can_execute": runs, "can_accept_kv": words == [], "reasons": words})
        for name, pool, runs, words in zip(hidden_ids, hidden_pools, hidden_runs, hidden_words)
    ]
    hidden_at = [*hidden_runs, True].index(True)
    HIDDEN_CASES.append(case(TEST_REQUEST, hidden_pools[0], hidden_pools[1:], hidden_preferred, hint=HINT_HIDDEN, want={
        "selected_pool": [*hidden_ids, "none"][hidden_at],
        "execution_mode": [*(("recompute", hidden_preferred)[words == []] for words in hidden_words), "none"][hidden_at],
        "decision": ["primary", *["reroute"] * (len(hidden_ids) - 1), "reject"][hidden_at],
        "reasons": [*hidden_words, ["no_executable_pool"]][hidden_at],
        "rejected_pools": dict(list(zip(hidden_ids, hidden_words))[:hidden_at]),
    }))
check("test_routing_recompute", "plan_route_with_fallback", HIDDEN_CASES, hidden=True,
      stand_ins={"evaluate_pool_capability(request, pool)": HIDDEN_ANSWERS})
### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "test_routing_order", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
TEST_REQUEST = {"stage": "decode", "model_revision": "rev-a", "kv_dtype": "float16", "kv_layout": "paged-v1",
                "required_memory_gb": 8}
TEST_POOL = {"supported_stages": ["decode"], "model_revision": "rev-a", "kv_dtype": "float16", "kv_layout": "paged-v1",
             "available_memory_gb": 16, "healthy": True}
# pool, can_execute, can_accept_kv, reasons: the right answers of TODO 3, used when yours differ
TEST_TABLE = {
    "a-good": ({**TEST_POOL, "pool_id": "decode-a"}, True, True, []),
    "a-layout": ({**TEST_POOL, "pool_id": "decode-a", "kv_layout": "contiguous"}, True, False, ["kv_layout_mismatch"]),
    "a-ill": ({**TEST_POOL, "pool_id": "decode-a", "healthy": False, "kv_dtype": "bfloat16"}, False, False,
              ["unhealthy", "kv_dtype_mismatch"]),
    "a-old": ({**TEST_POOL, "pool_id": "decode-a", "model_revision": "rev-b"}, False, False, ["model_revision_mismatch"]),
    "b-large": ({**TEST_POOL, "pool_id": "decode-b", "available_memory_gb": 80}, True, True, []),
    "c": ({**TEST_POOL, "pool_id": "decode-c"}, True, True, []),
    "d-stage": ({**TEST_POOL, "pool_id": "decode-d", "supported_stages": ["prefill"]}, False, False, ["unsupported_stage"]),
    "e-layout": ({**TEST_POOL, "pool_id": "decode-e", "kv_layout": "contiguous"}, True, False, ["kv_layout_mismatch"]),
    "f-small": ({**TEST_POOL, "pool_id": "decode-f", "available_memory_gb": 2}, False, False, ["insufficient_memory"]),
}
TEST_POOLS = {name: row[0] for name, row in TEST_TABLE.items()}
TEST_ANSWERS = [
    ((TEST_REQUEST, pool), {"pool_id": pool["pool_id"], "can_execute": runs, "can_accept_kv": accepts, "reasons": reasons})
    for pool, runs, accepts, reasons in TEST_TABLE.values()
]
HINT_PRIMARY = "主池能执行就用主池，别的池再好也不换 · the primary pool is taken when it can execute, however good another is"
HINT_FIRST = "按给定顺序取第一个能执行的，不是最好的，也不是最后一个 · the first that can execute in the given order, not the best, not the last"
HINT_ALL_BEFORE = "之前被拒绝的池全部记录，附全部原因 · every pool refused before is on record, with all its reasons"
HINT_KV_TOO = "被拒绝的池也要写出它的 KV 原因 · a refused pool's KV reasons belong on record too"
HINT_NOT_AFTER = "选中的池和它之后的池不在 rejected_pools 里 · the selected pool and those after it are not in rejected_pools"
check("test_routing_order", "plan_route_with_fallback", [
    case(TEST_REQUEST, TEST_POOLS["a-good"], [TEST_POOLS["b-large"]], "transfer", hint=HINT_PRIMARY, want={
        "selected_pool": "decode-a", "execution_mode": "transfer", "decision": "primary", "reasons": [], "rejected_pools": {}}),
    case(TEST_REQUEST, TEST_POOLS["a-layout"], [TEST_POOLS["c"]], "transfer", hint=HINT_FIRST, want={
        "selected_pool": "decode-a", "execution_mode": "recompute", "decision": "primary",
        "reasons": ["kv_layout_mismatch"], "rejected_pools": {}}),
    case(TEST_REQUEST, TEST_POOLS["a-old"], [TEST_POOLS["d-stage"], TEST_POOLS["c"], TEST_POOLS["b-large"]], "transfer",
         hint=HINT_FIRST, mistakes=[(["decode-a"], HINT_ALL_BEFORE), (["decode-d"], HINT_ALL_BEFORE)], want={
             "selected_pool": "decode-c", "execution_mode": "transfer", "decision": "reroute", "reasons": [],
             "rejected_pools": {"decode-a": ["model_revision_mismatch"], "decode-d": ["unsupported_stage"]}}),
    case(TEST_REQUEST, TEST_POOLS["a-old"], [TEST_POOLS["e-layout"], TEST_POOLS["c"]], "transfer", hint=HINT_FIRST, want={
        "selected_pool": "decode-e", "execution_mode": "recompute", "decision": "reroute",
        "reasons": ["kv_layout_mismatch"], "rejected_pools": {"decode-a": ["model_revision_mismatch"]}}),
    case(TEST_REQUEST, TEST_POOLS["a-ill"], [TEST_POOLS["c"]], "transfer", hint=HINT_ALL_BEFORE,
         mistakes=[(["unhealthy"], HINT_KV_TOO)], want={
             "selected_pool": "decode-c", "execution_mode": "transfer", "decision": "reroute",
             "reasons": [], "rejected_pools": {"decode-a": ["unhealthy", "kv_dtype_mismatch"]}}),
    case(TEST_REQUEST, TEST_POOLS["a-old"], [TEST_POOLS["c"], TEST_POOLS["f-small"]], "transfer", hint=HINT_NOT_AFTER,
         mistakes=[(["decode-a", "decode-f"], HINT_NOT_AFTER), (["decode-a", "decode-c"], HINT_NOT_AFTER)], want={
        "selected_pool": "decode-c", "execution_mode": "transfer", "decision": "reroute",
        "reasons": [], "rejected_pools": {"decode-a": ["model_revision_mismatch"]}}),
], stand_ins={"evaluate_pool_capability(request, pool)": TEST_ANSWERS})
### BEGIN HIDDEN TESTS
HINT_HIDDEN = "给定顺序中第一个能执行的；之前的池记录全部原因 · the first that can execute in the given order; all reasons of those before"
# Good pools get faults put into them, so every pool's answer is known without a capability function.
HIDDEN_FAULTS = {
    "unhealthy": {"healthy": False}, "unsupported_stage": {"supported_stages": ["prefill"]},
    "model_revision_mismatch": {"model_revision": "rev-b"}, "insufficient_memory": {"available_memory_gb": 5},
    "kv_dtype_mismatch": {"kv_dtype": "bfloat16"}, "kv_layout_mismatch": {"kv_layout": "contiguous"},
}
HIDDEN_ORDER = list(HIDDEN_FAULTS)
HIDDEN_RNG = hidden_rng("test_routing_order")
HIDDEN_CASES, HIDDEN_ANSWERS = [], []
for _ in range(40):
    HIDDEN_NAMES = [f"pool-{number}" for number in HIDDEN_RNG.sample(range(100, 999), 6)]
    hidden_preferred = "transfer"
    hidden_words = [
        sorted(HIDDEN_RNG.sample(HIDDEN_ORDER, HIDDEN_RNG.randint(0, 3)), key=HIDDEN_ORDER.index)
        for _ in range(HIDDEN_RNG.randint(3, 6))
    ]
    hidden_ids = HIDDEN_NAMES[:len(hidden_words)]
    hidden_pools = [dict(TEST_POOL) if name is None else {**TEST_POOL, "pool_id": name} for name in hidden_ids]
    for hidden_pool, hidden_faults in zip(hidden_pools, hidden_words):
        for hidden_fault in hidden_faults:
            hidden_pool.update(HIDDEN_FAULTS[hidden_fault])
    hidden_ids = [name or "unknown" for name in hidden_ids]
    hidden_runs = [HIDDEN_ORDER.index((words or HIDDEN_ORDER[4:])[0]) >= 4 for words in hidden_words]
    HIDDEN_ANSWERS += [
        ((TEST_REQUEST, pool), {"pool_id": name, "can_execute": runs, "can_accept_kv": words == [], "reasons": words})
        for name, pool, runs, words in zip(hidden_ids, hidden_pools, hidden_runs, hidden_words)
    ]
    hidden_at = [*hidden_runs, True].index(True)
    HIDDEN_CASES.append(case(TEST_REQUEST, hidden_pools[0], hidden_pools[1:], hidden_preferred, hint=HINT_HIDDEN, want={
        "selected_pool": [*hidden_ids, "none"][hidden_at],
        "execution_mode": [*(("recompute", hidden_preferred)[words == []] for words in hidden_words), "none"][hidden_at],
        "decision": ["primary", *["reroute"] * (len(hidden_ids) - 1), "reject"][hidden_at],
        "reasons": [*hidden_words, ["no_executable_pool"]][hidden_at],
        "rejected_pools": dict(list(zip(hidden_ids, hidden_words))[:hidden_at]),
    }))
check("test_routing_order", "plan_route_with_fallback", HIDDEN_CASES, hidden=True,
      stand_ins={"evaluate_pool_capability(request, pool)": HIDDEN_ANSWERS})
### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "test_routing_reject", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
TEST_REQUEST = {"stage": "decode", "model_revision": "rev-a", "kv_dtype": "float16", "kv_layout": "paged-v1",
                "required_memory_gb": 8}
TEST_POOL = {"supported_stages": ["decode"], "model_revision": "rev-a", "kv_dtype": "float16", "kv_layout": "paged-v1",
             "available_memory_gb": 16, "healthy": True}
# pool, can_execute, can_accept_kv, reasons: the right answers of TODO 3, used when yours differ
TEST_TABLE = {
    "good": ({**TEST_POOL, "pool_id": "decode-a"}, True, True, []),
    "ill": ({**TEST_POOL, "pool_id": "decode-a", "healthy": False}, False, False, ["unhealthy"]),
    "small": ({**TEST_POOL, "pool_id": "decode-b", "available_memory_gb": 2, "kv_layout": "contiguous"}, False, False,
              ["insufficient_memory", "kv_layout_mismatch"]),
    "stage": ({**TEST_POOL, "pool_id": "decode-c", "supported_stages": ["prefill"]}, False, False, ["unsupported_stage"]),
}
TEST_POOLS = {name: row[0] for name, row in TEST_TABLE.items()}
TEST_ANSWERS = [
    ((TEST_REQUEST, pool), {"pool_id": pool["pool_id"], "can_execute": runs, "can_accept_kv": accepts, "reasons": reasons})
    for pool, runs, accepts, reasons in TEST_TABLE.values()
]
HINT_REJECT = '拒绝时：none、none、reject、["no_executable_pool"] · a reject is none, none, reject, ["no_executable_pool"]'
HINT_EVERY_POOL = "拒绝时 rejected_pools 有每个池和它的全部原因 · on reject, rejected_pools has every pool with all its reasons"
HINT_WORD = "preferred_handoff 不是 transfer 或 recompute：ValueError · preferred_handoff other than transfer or recompute: ValueError"
HINT_WHOLE_WORD = "整个词要和 transfer 或 recompute 完全相同，否则 ValueError · the whole word must be transfer or recompute, else ValueError"
HINT_WORD_FIRST = "没有池能执行时也要 ValueError：先检查这个词 · ValueError also when no pool can execute: check the word first"
check("test_routing_reject", "plan_route_with_fallback", [
    case(TEST_REQUEST, TEST_POOLS["ill"], [TEST_POOLS["small"], TEST_POOLS["stage"]], "transfer", hint=HINT_REJECT,
         mistakes=[([], HINT_EVERY_POOL), (["decode-a"], HINT_EVERY_POOL), (["decode-c"], HINT_EVERY_POOL),
                   (["insufficient_memory"], HINT_EVERY_POOL)], want={
             "selected_pool": "none", "execution_mode": "none", "decision": "reject", "reasons": ["no_executable_pool"],
             "rejected_pools": {"decode-a": ["unhealthy"], "decode-b": ["insufficient_memory", "kv_layout_mismatch"],
                                "decode-c": ["unsupported_stage"]}}),
    case(TEST_REQUEST, TEST_POOLS["stage"], [TEST_POOLS["ill"]], "recompute", hint=HINT_REJECT, want={
        "selected_pool": "none", "execution_mode": "none", "decision": "reject", "reasons": ["no_executable_pool"],
        "rejected_pools": {"decode-c": ["unsupported_stage"], "decode-a": ["unhealthy"]}}),
    case(TEST_REQUEST, TEST_POOLS["good"], [], "stay", raises=ValueError, hint=HINT_WORD),
    case(TEST_REQUEST, TEST_POOLS["ill"], [TEST_POOLS["stage"]], "stay", raises=ValueError, hint=HINT_WORD_FIRST),
    *(case(TEST_REQUEST, TEST_POOLS["good"], [], word, raises=ValueError, hint=HINT_WHOLE_WORD)
      for word in ("none", "", "trans", "Transfer", " recompute", "transfers", "reject")),
], stand_ins={"evaluate_pool_capability(request, pool)": TEST_ANSWERS})
### BEGIN HIDDEN TESTS
HINT_HIDDEN = "没有池能执行：none、none、reject，记录每个池的全部原因 · no pool can execute: none, none, reject, all reasons of every pool"
# Good pools get faults put into them, so every pool's answer is known without a capability function.
HIDDEN_FAULTS = {
    "unhealthy": {"healthy": False}, "unsupported_stage": {"supported_stages": ["prefill"]},
    "model_revision_mismatch": {"model_revision": "rev-b"}, "insufficient_memory": {"available_memory_gb": 5},
    "kv_dtype_mismatch": {"kv_dtype": "bfloat16"}, "kv_layout_mismatch": {"kv_layout": "contiguous"},
}
HIDDEN_ORDER = list(HIDDEN_FAULTS)
HIDDEN_RNG = hidden_rng("test_routing_reject")
HIDDEN_CASES, HIDDEN_ANSWERS = [], []
for _ in range(40):
    HIDDEN_NAMES = [f"pool-{number}" for number in HIDDEN_RNG.sample(range(100, 999), 6)]
    hidden_preferred = HIDDEN_RNG.choice(["transfer", "recompute"])
    hidden_words = [
        sorted({HIDDEN_RNG.choice(HIDDEN_ORDER[:4]), *HIDDEN_RNG.sample(HIDDEN_ORDER, 2)}, key=HIDDEN_ORDER.index)
        for _ in range(HIDDEN_RNG.randint(1, 4))
    ]
    hidden_ids = HIDDEN_NAMES[:len(hidden_words)]
    hidden_pools = [dict(TEST_POOL) if name is None else {**TEST_POOL, "pool_id": name} for name in hidden_ids]
    for hidden_pool, hidden_faults in zip(hidden_pools, hidden_words):
        for hidden_fault in hidden_faults:
            hidden_pool.update(HIDDEN_FAULTS[hidden_fault])
    hidden_ids = [name or "unknown" for name in hidden_ids]
    hidden_runs = [HIDDEN_ORDER.index((words or HIDDEN_ORDER[4:])[0]) >= 4 for words in hidden_words]
    HIDDEN_ANSWERS += [
        ((TEST_REQUEST, pool), {"pool_id": name, "can_execute": runs, "can_accept_kv": words == [], "reasons": words})
        for name, pool, runs, words in zip(hidden_ids, hidden_pools, hidden_runs, hidden_words)
    ]
    hidden_at = [*hidden_runs, True].index(True)
    HIDDEN_CASES.append(case(TEST_REQUEST, hidden_pools[0], hidden_pools[1:], hidden_preferred, hint=HINT_HIDDEN, want={
        "selected_pool": [*hidden_ids, "none"][hidden_at],
        "execution_mode": [*(("recompute", hidden_preferred)[words == []] for words in hidden_words), "none"][hidden_at],
        "decision": ["primary", *["reroute"] * (len(hidden_ids) - 1), "reject"][hidden_at],
        "reasons": [*hidden_words, ["no_executable_pool"]][hidden_at],
        "rejected_pools": dict(list(zip(hidden_ids, hidden_words))[:hidden_at]),
    }))
check("test_routing_reject", "plan_route_with_fallback", HIDDEN_CASES, hidden=True,
      stand_ins={"evaluate_pool_capability(request, pool)": HIDDEN_ANSWERS})
### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "test_routing_repeated_ids", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
TEST_REQUEST = {"stage": "decode", "model_revision": "rev-a", "kv_dtype": "float16", "kv_layout": "paged-v1",
                "required_memory_gb": 8}
TEST_POOL = {"supported_stages": ["decode"], "model_revision": "rev-a", "kv_dtype": "float16", "kv_layout": "paged-v1",
             "available_memory_gb": 16, "healthy": True}
# pool, can_execute, can_accept_kv, reasons: the right answers of TODO 3, used when yours differ
TEST_TABLE = {
    "a-ill": ({**TEST_POOL, "pool_id": "decode-a", "healthy": False}, False, False, ["unhealthy"]),
    "a-small": ({**TEST_POOL, "pool_id": "decode-a", "available_memory_gb": 2}, False, False, ["insufficient_memory"]),
    "a-good": ({**TEST_POOL, "pool_id": "decode-a"}, True, True, []),
    "b-good": ({**TEST_POOL, "pool_id": "decode-b"}, True, True, []),
    "nameless": (TEST_POOL, True, True, []),
}
TEST_POOLS = {name: row[0] for name, row in TEST_TABLE.items()}
TEST_ANSWERS = [
    ((TEST_REQUEST, pool),
     {"pool_id": pool.get("pool_id", "unknown"), "can_execute": runs, "can_accept_kv": accepts, "reasons": reasons})
    for pool, runs, accepts, reasons in TEST_TABLE.values()
]
HINT_UNKNOWN = "缺 pool_id 的池叫 unknown · a pool without pool_id is called unknown"
HINT_LAST = "同一个 pool_id 被拒绝多次：保留最后一次的原因 · a repeated pool id keeps the last refusal"
HINT_POSITION = "decision 看位置，不看名字：回退池就是 reroute · decision goes by position, not by name: a fallback is reroute"
HINT_STAYS = "先被拒绝后被选中的 pool_id 仍留在 rejected_pools 里 · an id refused first and selected later stays in rejected_pools"
check("test_routing_repeated_ids", "plan_route_with_fallback", [
    case(TEST_REQUEST, TEST_POOLS["a-ill"], [TEST_POOLS["a-small"], TEST_POOLS["b-good"]], "transfer", hint=HINT_LAST,
         mistakes=[(["decode-a", "decode-a-1"], HINT_LAST)], want={
        "selected_pool": "decode-b", "execution_mode": "transfer", "decision": "reroute",
        "reasons": [], "rejected_pools": {"decode-a": ["insufficient_memory"]}}),
    case(TEST_REQUEST, TEST_POOLS["a-small"], [TEST_POOLS["a-good"]], "transfer", hint=HINT_POSITION,
         mistakes=[([], HINT_STAYS)], want={
             "selected_pool": "decode-a", "execution_mode": "transfer", "decision": "reroute",
             "reasons": [], "rejected_pools": {"decode-a": ["insufficient_memory"]}}),
    case(TEST_REQUEST, TEST_POOLS["a-small"], [TEST_POOLS["a-ill"]], "transfer", hint=HINT_LAST, want={
        "selected_pool": "none", "execution_mode": "none", "decision": "reject",
        "reasons": ["no_executable_pool"], "rejected_pools": {"decode-a": ["unhealthy"]}}),
    case(TEST_REQUEST, TEST_POOLS["a-ill"], [TEST_POOLS["nameless"]], "transfer", hint=HINT_UNKNOWN, want={
        "selected_pool": "unknown", "execution_mode": "transfer", "decision": "reroute",
        "reasons": [], "rejected_pools": {"decode-a": ["unhealthy"]}}),
], stand_ins={"evaluate_pool_capability(request, pool)": TEST_ANSWERS})
### BEGIN HIDDEN TESTS
HINT_HIDDEN = "同名的池：保留最后一次拒绝，decision 看位置；缺 pool_id 就叫 unknown · same names: the last refusal stays, decision by position; without pool_id the name is unknown"
# Good pools get faults put into them, so every pool's answer is known without a capability function.
HIDDEN_FAULTS = {
    "unhealthy": {"healthy": False}, "unsupported_stage": {"supported_stages": ["prefill"]},
    "model_revision_mismatch": {"model_revision": "rev-b"}, "insufficient_memory": {"available_memory_gb": 5},
    "kv_dtype_mismatch": {"kv_dtype": "bfloat16"}, "kv_layout_mismatch": {"kv_layout": "contiguous"},
}
HIDDEN_ORDER = list(HIDDEN_FAULTS)
HIDDEN_RNG = hidden_rng("test_routing_repeated_ids")
HIDDEN_CASES, HIDDEN_ANSWERS = [], []
for _ in range(40):
    HIDDEN_NAMES = [f"pool-{number}" for number in HIDDEN_RNG.sample(range(100, 999), 6)]
    hidden_preferred = "transfer"
    hidden_words = [
        sorted(HIDDEN_RNG.sample(HIDDEN_ORDER, HIDDEN_RNG.randint(0, 3)), key=HIDDEN_ORDER.index)
        for _ in range(HIDDEN_RNG.randint(3, 6))
    ]
    hidden_ids = HIDDEN_RNG.choices([*HIDDEN_NAMES[:2], None], k=len(hidden_words))
    hidden_pools = [dict(TEST_POOL) if name is None else {**TEST_POOL, "pool_id": name} for name in hidden_ids]
    for hidden_pool, hidden_faults in zip(hidden_pools, hidden_words):
        for hidden_fault in hidden_faults:
            hidden_pool.update(HIDDEN_FAULTS[hidden_fault])
    hidden_ids = [name or "unknown" for name in hidden_ids]
    hidden_runs = [HIDDEN_ORDER.index((words or HIDDEN_ORDER[4:])[0]) >= 4 for words in hidden_words]
    HIDDEN_ANSWERS += [
        ((TEST_REQUEST, pool), {"pool_id": name, "can_execute": runs, "can_accept_kv": words == [], "reasons": words})
        for name, pool, runs, words in zip(hidden_ids, hidden_pools, hidden_runs, hidden_words)
    ]
    hidden_at = [*hidden_runs, True].index(True)
    HIDDEN_CASES.append(case(TEST_REQUEST, hidden_pools[0], hidden_pools[1:], hidden_preferred, hint=HINT_HIDDEN, want={
        "selected_pool": [*hidden_ids, "none"][hidden_at],
        "execution_mode": [*(("recompute", hidden_preferred)[words == []] for words in hidden_words), "none"][hidden_at],
        "decision": ["primary", *["reroute"] * (len(hidden_ids) - 1), "reject"][hidden_at],
        "reasons": [*hidden_words, ["no_executable_pool"]][hidden_at],
        "rejected_pools": dict(list(zip(hidden_ids, hidden_words))[:hidden_at]),
    }))
check("test_routing_repeated_ids", "plan_route_with_fallback", HIDDEN_CASES, hidden=True,
      stand_ins={"evaluate_pool_capability(request, pool)": HIDDEN_ANSWERS})
### END HIDDEN TESTS

# %% [markdown] tags=["zh"]
# ### 同一个请求，三个池
#
# **问题**：池 A（H100）不健康，B（H20）的 KV 布局不同，C（L40S）样样合适。按 A、B、C 的次序问，你的路由选谁？传输还是重算？
#
# 三个池都调用你的 `evaluate_pool_capability` 和 `plan_route_with_fallback`；星号是你的路由选的方式。偏好的方式由 A 上更快的那个决定。
#
# 图的来历：时间由公开数字算出（Llama-3.1-8B，利用率 0.45；H20 和 L40S 的算力未核实），没有测量。

# %% [markdown] tags=["en"]
# ### One request, three pools
#
# **Question**: pool A (H100) is not healthy, B (H20) has another KV layout, C (L40S) fits in every way. Asked in the order A, B, C, which does your route choose? Transfer or recompute?
#
# All three are judged by your `evaluate_pool_capability` and `plan_route_with_fallback`; the star is the way that your route takes. The preferred way is the faster one on pool A.
#
# How the picture is made: times are computed from published numbers (Llama-3.1-8B, utilisation 0.45; the compute of H20 and L40S is unverified); nothing is measured.

# %%
with demo("T3", "T4"):
    display(destinations_panel(evaluate_pool_capability, plan_route_with_fallback))

# %% [markdown] tags=["zh"]
# 路由选了 B，在那里重算要约 2 秒；而 C 能接收 KV，传过去只要约 0.34 秒。**第一个能执行的，不一定是最快的**：约定就是这样，下面的现场案例还会谈到它。
#
# 一次只动一个，先猜再动：
#
# 1. 把 B 的 layout 换成 `paged-v1`：重算变成传输了吗？（偏好仍由 A 决定。把链路加快再看。）
# 2. 勾上 A 的 healthy：请求回到 A。
# 3. 把请求的 dtype 换成 `float8`：三个池还有谁能接收 KV？
# 4. 把三个池的可用显存都设为 0：记录里有没有每个池的原因？

# %% [markdown] tags=["en"]
# The route takes B, where recompute needs about 2 seconds; C could accept the KV, and the transfer would take about 0.34 seconds. **The first that can execute need not be the fastest**: that is the contract, and a field case below returns to it.
#
# Move one thing at a time, and guess first:
#
# 1. Set B's layout to `paged-v1`: does recompute turn into transfer? (Pool A still decides the preference. Raise the link and look again.)
# 2. Tick A's healthy: the request returns to A.
# 3. Set the request's dtype to `float8`: which of the three can still accept the KV?
# 4. Set the free memory of all three to 0: does the record hold a reason for each pool?

# %% [markdown] tags=["zh"]
# > #### Field case · 现场案例：没有可用的 worker
# >
# > **现象**：SGLang 在高请求率下报错：没有可用的 prefill worker，所有熔断器都打开了。
# >
# > **问题**：看到这一行，你知道该修哪个 worker 吗？
# >
# > 来源：[sgl-project/sglang issue 12355](https://github.com/sgl-project/sglang/issues/12355)

# %% [markdown] tags=["en"]
# > #### Field case · No available worker
# >
# > **Symptom**: at a high request rate SGLang reported that no prefill worker was available and all circuits were open.
# >
# > **Question**: does that line tell you which worker to repair?
# >
# > Source: [sgl-project/sglang issue 12355](https://github.com/sgl-project/sglang/issues/12355)

# %%
with demo("T4", "T3"):
    refused = plan_route_with_fallback(
        {"stage": "prefill", "model_revision": "rev-a", "required_memory_gb": 20},
        {"pool_id": "prefill-a", "healthy": False, "supported_stages": ["prefill"], "model_revision": "rev-a",
         "available_memory_gb": 60},
        [{"pool_id": "prefill-b", "healthy": True, "supported_stages": ["prefill"], "model_revision": "rev-a",
          "available_memory_gb": 12}],
        "transfer",
    )
    print(refused["decision"], refused["reasons"])
    for refused_id, refused_reasons in refused["rejected_pools"].items():
        print(f"  {refused_id}: {', '.join(refused_reasons)}")

# %% [markdown] tags=["zh"]
# **机制**：拒绝要带原因，还要说清**哪些池被拒绝、为什么**。

# %% [markdown] tags=["en"]
# **Mechanism**: a reject needs a reason, and it must say **which pools were refused and why**.

# %% [markdown] tags=["zh"]
# > #### Field case · 现场案例：拒绝没有传到客户端
# >
# > **现象**：llm-d 里，两边的并行度不同，传输时才被拒绝；错误只到了 sidecar，客户端一直等。
# >
# > **问题**：这个检查该放在什么时候？结果该交给谁？
# >
# > 来源：[llm-d/llm-d issue 2433](https://github.com/llm-d/llm-d/issues/2433)
#
# 下面把并行度写进布局的名字（这是我们的写法）。搬运还没开始，你的路由就知道答案，并把它返回给调用者。

# %% [markdown] tags=["en"]
# > #### Field case · The refusal never reached the client
# >
# > **Symptom**: in llm-d, unequal parallelism was refused only at transfer time; the error reached a sidecar, and the client hung.
# >
# > **Question**: when should this be checked, and who must learn the result?
# >
# > Source: [llm-d/llm-d issue 2433](https://github.com/llm-d/llm-d/issues/2433)
#
# The next cell writes the parallelism into the layout's name (our own notation). Before anything moves, your route knows the answer and returns it to the caller.

# %%
with demo("T4", "T3"):
    print(plan_route_with_fallback(
        {"stage": "decode", "kv_layout": "paged-v1/tp4"},
        {"pool_id": "decode-a", "healthy": True, "supported_stages": ["decode"], "kv_layout": "paged-v1/tp2"},
        [],
        "transfer",
    ))

# %% [markdown] tags=["zh"]
# **机制**：在交接**之前**判断能力；拒绝或改道必须回到调用者手里。

# %% [markdown] tags=["en"]
# **Mechanism**: decide capability **before** the handoff; a refusal or a change of plan must reach the caller.

# %% [markdown] tags=["zh"]
# > #### Field case · 现场案例：该不该悄悄重算？
# >
# > **现象**：vLLM 有人提议：KV 没有到，默认应当失败，而不是重算。
# >
# > **问题**：重算能让这个请求继续，坏在哪里？
# >
# > 来源：[vllm-project/vllm issue 32200](https://github.com/vllm-project/vllm/issues/32200)
#
# 下面的数是我们选的：传输 160 ms，重算 150 ms，目标池里有 40 个请求正在 decode。假设重算期间它们全部停下。

# %% [markdown] tags=["en"]
# > #### Field case · Recompute in silence?
# >
# > **Symptom**: a proposal for vLLM: when the KV does not arrive, the default should be to fail, not to recompute.
# >
# > **Question**: recompute keeps this request going. What is bad about it?
# >
# > Source: [vllm-project/vllm issue 32200](https://github.com/vllm-project/vllm/issues/32200)
#
# The next numbers are our choice: transfer 160 ms, recompute 150 ms, and 40 requests decoding on the target pool. Assume that all of them stop during the recompute.

# %%
with demo("T2"):
    local_choice = choose_handoff_mode(25, 500, 150)
    saved_ms = local_choice["transfer_ms"] - local_choice["recompute_ms"]
    print(f"your rule: {local_choice['mode']}, saves this request {saved_ms:.0f} ms")
    print(f"the 40 others wait {40 * local_choice['recompute_ms']:.0f} ms in all")

# %% [markdown] tags=["zh"]
# **机制**：在 decode 实例上重算，会拖慢那里正在 decode 的每个请求，还会掩盖坏掉的链路。“哪个快选哪个”只看了自己。

# %% [markdown] tags=["en"]
# **Mechanism**: recompute on a decode instance slows every request that decodes there, and it hides a broken link. "Take the faster one" looks at itself only.

# %% [markdown] tags=["zh"]
# **想一想**：主池跑得了、接不了 KV，有一个回退池两样都行。“第一个能执行的”什么时候是坏主意？

# %% [markdown] tags=["en"]
# **Think**: the primary can execute but not accept the KV, a fallback can do both. When is "the first that can execute" a bad idea?

# %% [markdown] tags=["zh", "answer"]
# **答**：重算很贵而传输很便宜的时候，例如很长的提示词、很快的链路、算力弱的主池。本章的规则简单、可预期，容易复查；代价是它不比较两个池的总时间。要比较，就得知道每个池的重算时间、链路和队列，这些本章的输入里没有。

# %% [markdown] tags=["en", "answer"]
# **Answer**: when recompute is dear and transfer cheap: a very long prompt, a fast link, a primary with weak compute. This chapter's rule is simple, predictable and easy to review; its price is that it never compares the total time of two pools. Comparing needs each pool's recompute time, link and queue, which are not among this chapter's inputs.

# %% [markdown] tags=["zh"]
# ## 整条链
#
# 下面两个函数已经写好。`select_serving_action` 按当前压力选动作，显存优先于队列：
#
# | 按顺序看 | `action` | `protect` |
# | --- | --- | --- |
# | `memory_pressure > 0.9` | `fallback_to_shared` | `residency` |
# | `queue_delay_ms > slo_queue_budget_ms` | `route_or_throttle` | `latency` |
# | 其他 | `keep_heterogeneous_route` | `throughput` |
#
# `build_route_record` 把各步的结果收成一条记录，不再做判断；请求缺 `resource_need` 时记为 `shared`。它不抄原因：哪些池被拒绝、为什么，留在 TODO 4 的结果里，请两样一起保存。

# %% [markdown] tags=["en"]
# ## The whole chain
#
# The next two functions are given. `select_serving_action` picks an action from the present pressure, memory before queue:
#
# | in this order | `action` | `protect` |
# | --- | --- | --- |
# | `memory_pressure > 0.9` | `fallback_to_shared` | `residency` |
# | `queue_delay_ms > slo_queue_budget_ms` | `route_or_throttle` | `latency` |
# | otherwise | `keep_heterogeneous_route` | `throughput` |
#
# `build_route_record` gathers the results into a record and decides nothing; a request without `resource_need` is recorded as `shared`. It copies no reasons: which pools were refused, and why, stays in TODO 4's result; keep the two together.

# %% nbgrader={"grade": false, "grade_id": "given", "locked": true, "schema_version": 3, "solution": false, "task": false}
def select_serving_action(memory_pressure: float, queue_delay_ms: float, slo_queue_budget_ms: float) -> dict[str, str]:
    """当前压力下的服务动作 · The serving action under the present pressure.

    memory_pressure: 0..1; queue_delay_ms, slo_queue_budget_ms: ms
    """
    action, protect = "keep_heterogeneous_route", "throughput"
    if queue_delay_ms > slo_queue_budget_ms:
        action, protect = "route_or_throttle", "latency"
    if memory_pressure > 0.9:  # last, so that memory wins over the queue
        action, protect = "fallback_to_shared", "residency"
    return {"action": action, "protect": protect}


def build_route_record(request: dict[str, object], route: dict[str, object], action: dict[str, str]) -> dict[str, str]:
    """一条可以复查的路由记录 · A route record that somebody can review."""
    return {
        "resource_need": str(request.get("resource_need", "shared")),
        "selected_pool": str(route["selected_pool"]),
        "execution_mode": str(route["execution_mode"]),
        "route_decision": str(route["decision"]),
        "service_action": action["action"],
        "protect": action["protect"],
    }

# %% [markdown] tags=["zh"]
# 把 4 个 TODO 连起来：分类，选交接方式，选池，选动作，记录。改一改数字，看记录怎样变。

# %% [markdown] tags=["en"]
# Join the 4 TODOs: classify, choose the handoff, choose the pool, choose the action, record. Change some numbers and watch the record.

# %%
with demo("T1", "T2", "T3", "T4"):
    chain_request = {
        "prompt_tokens": 128, "decode_tokens": 512, "stage": "decode", "model_revision": "rev-a",
        "kv_dtype": "float16", "kv_layout": "paged-v1", "required_memory_gb": 8,
    }
    chain_pool = {
        "pool_id": "decode-a", "healthy": True, "supported_stages": ["decode"], "model_revision": "rev-a",
        "kv_dtype": "float16", "kv_layout": "paged-v1", "available_memory_gb": 16,
    }
    chain_need = classify_resource_need(chain_request, 2048, 256)
    chain_handoff = choose_handoff_mode(200, 100, 12)
    chain_route = plan_route_with_fallback(chain_request, chain_pool, [], chain_handoff["mode"])
    chain_action = select_serving_action(0.4, 120, 80)
    for chain_field, chain_value in build_route_record(
        {**chain_request, "resource_need": chain_need}, chain_route, chain_action
    ).items():
        print(f"{chain_field:>15}: {chain_value}")

# %% [markdown] tags=["zh"]
# ## 简化了什么，不能得出什么
#
# **简化**
#
# - 传输没有每条消息的固定开销，没有排队，链路独占；
# - 传输和计算不重叠：这里的时间是完整的传输时间，不是暴露在关键路径上的那部分；
# - 重算时间是给定的数，不看目标池有多忙，也不看它打扰了谁；
# - 池的状态是一张快照，检查之后可能就变了。
#
# **不能得出**
#
# - 本章搬的 KV、算的矩阵都是编出来的，只给出成本的**下界**：真机上还有网络、排队的 worker、打包和解包、backend 之间的等待。它们不是 GPU 证据；
# - 检查通过说明规则写对了，不说明异构 PD 更快。要说它更快，得真有两种池，让同一个模型用同样的路由规则跑同一批请求，再比较 TTFT、TPOT、吞吐、排队时间、交接时间和失败次数；这是 70 和 81 的内容（尚未发布）。

# %% [markdown] tags=["en"]
# ## What was simplified, and what may not be concluded
#
# **Simplified**
#
# - a transfer has no fixed cost per message, no queue, and the link to itself;
# - transfer and compute do not overlap: the times here are whole transfer times, not the part exposed on the critical path;
# - the recompute time is a given number, whatever the target pool is busy with and whomever it disturbs;
# - a pool's state is a snapshot and may change right after the check.
#
# **Not to be concluded**
#
# - the KV moved and the matrices computed here are made up and give only **lower bounds** of the cost: real machines add a network, workers with queues, packing and unpacking, and backends that wait for each other. They are no GPU evidence;
# - passing checks say that the rules are right, not that heterogeneous PD is faster. To call it faster one needs two real kinds of pools, runs the same requests on the same model under the same routing rule, and compares TTFT, TPOT, throughput, time in the queue, time of the handoff and failures: that belongs to 70 and 81 (not yet published).

# %% [markdown] tags=["zh"]
# ## 得分
#
# 可见检查的得分。批改时还会运行隐藏检查：同样的规则，随机的输入。

# %% [markdown] tags=["en"]
# ## Scorecard
#
# Points from the visible checks. Grading runs hidden checks as well: the same rules, random inputs.

# %%
scorecard()

# %% [markdown] tags=["zh"]
# ## 解答版
#
# <!-- solved twin -->

# %% [markdown] tags=["en"]
# ## Solved version
#
# <!-- solved twin -->

# %% [markdown] tags=["zh"]
# ## 相关阅读
#
# - [DistServe 论文](https://arxiv.org/abs/2401.09670)：把 prefill 和 decode 分开，以 goodput 为目标
# - [SGLang 的 PD 分离文档](https://docs.sglang.ai/advanced_features/pd_disaggregation.html)
# - [vLLM](https://github.com/vllm-project/vllm)
# - 70 · 服务调度基准（尚未发布）
# - 79–81 · 分布式推理项目（尚未发布）

# %% [markdown] tags=["en"]
# ## Related reading
#
# - [The DistServe paper](https://arxiv.org/abs/2401.09670): prefill and decode apart, with goodput as the aim
# - [SGLang's documentation of PD disaggregation](https://docs.sglang.ai/advanced_features/pd_disaggregation.html)
# - [vLLM](https://github.com/vllm-project/vllm)
# - 70 · Serving scheduler benchmark (not yet published)
# - 79–81 · Distributed inference projects (not yet published)

# %% tags=["wrong"] todo="classify" name="prompt-threshold-inclusive" hint="a prompt exactly at its threshold" edits=[["request.get(\"prompt_tokens\", 0) > long_prompt_threshold", "request.get(\"prompt_tokens\", 0) >= long_prompt_threshold"]]

# %% tags=["wrong"] todo="classify" name="decode-threshold-inclusive" hint="an output exactly at its threshold" edits=[["request.get(\"decode_tokens\", 0) > long_decode_threshold", "request.get(\"decode_tokens\", 0) >= long_decode_threshold"]]

# %% tags=["wrong"] todo="classify" name="both-inclusive" hint="a prompt exactly at its threshold" edits=[["request.get(\"prompt_tokens\", 0) > long_prompt_threshold", "request.get(\"prompt_tokens\", 0) >= long_prompt_threshold"], ["request.get(\"decode_tokens\", 0) > long_decode_threshold", "request.get(\"decode_tokens\", 0) >= long_decode_threshold"]]

# %% tags=["wrong"] todo="classify" name="prompt-inclusive-when-prefill" hint="a prompt exactly at its threshold" edits=[["if prompt_is_long and not decode_is_long:", "if request.get(\"prompt_tokens\", 0) >= long_prompt_threshold and not decode_is_long:"]]

# %% tags=["wrong"] todo="classify" name="prompt-inclusive-when-decode" hint="a prompt exactly at its threshold" edits=[["if decode_is_long and not prompt_is_long:", "if decode_is_long and request.get(\"prompt_tokens\", 0) < long_prompt_threshold:"]]

# %% tags=["wrong"] todo="classify" name="decode-inclusive-when-prefill" hint="an output exactly at its threshold" edits=[["if prompt_is_long and not decode_is_long:", "if prompt_is_long and request.get(\"decode_tokens\", 0) < long_decode_threshold:"]]

# %% tags=["wrong"] todo="classify" name="decode-inclusive-when-decode" hint="an output exactly at its threshold" edits=[["if decode_is_long and not prompt_is_long:", "if request.get(\"decode_tokens\", 0) >= long_decode_threshold and not prompt_is_long:"]]

# %% tags=["wrong"] todo="classify" name="one-above-is-short" hint="one token above" edits=[["request.get(\"prompt_tokens\", 0) > long_prompt_threshold", "request.get(\"prompt_tokens\", 0) > long_prompt_threshold + 1"], ["request.get(\"decode_tokens\", 0) > long_decode_threshold", "request.get(\"decode_tokens\", 0) > long_decode_threshold + 1"]]

# %% tags=["wrong"] todo="classify" name="prompt-one-above-is-short" hint="one token above" edits=[["request.get(\"prompt_tokens\", 0) > long_prompt_threshold", "request.get(\"prompt_tokens\", 0) > long_prompt_threshold + 1"]]

# %% tags=["wrong"] todo="classify" name="decode-one-above-is-short" hint="one token above" edits=[["request.get(\"decode_tokens\", 0) > long_decode_threshold", "request.get(\"decode_tokens\", 0) > long_decode_threshold + 1"]]

# %% tags=["wrong"] todo="classify" name="both-long-is-prefill" hint="both are long" edits=[[" and not decode_is_long", ""]]

# %% tags=["wrong"] todo="classify" name="both-long-is-decode" hint="both are long" edits=[[" and not prompt_is_long", ""]]

# %% tags=["wrong"] todo="classify" name="both-long-by-larger-count" hint="both are long" edits=[["if prompt_is_long and not decode_is_long:", "if prompt_is_long and (not decode_is_long or request.get(\"prompt_tokens\", 0) > request.get(\"decode_tokens\", 0)):"]]

# %% tags=["wrong"] todo="classify" name="swapped-words" hint="are swapped" edits=[["if prompt_is_long and not decode_is_long:\n        return \"prefill\"", "if prompt_is_long and not decode_is_long:\n        return \"decode\""], ["if decode_is_long and not prompt_is_long:\n        return \"decode\"", "if decode_is_long and not prompt_is_long:\n        return \"prefill\""]]

# %% tags=["wrong"] todo="classify" name="swapped-thresholds" hint="against its own threshold" edits=[["request.get(\"prompt_tokens\", 0) > long_prompt_threshold", "request.get(\"prompt_tokens\", 0) > long_decode_threshold"], ["request.get(\"decode_tokens\", 0) > long_decode_threshold", "request.get(\"decode_tokens\", 0) > long_prompt_threshold"]]

# %% tags=["wrong"] todo="classify" name="fixed-thresholds" hint="the thresholds are arguments" edits=[["> long_prompt_threshold", "> 2048"], ["> long_decode_threshold", "> 256"]]

# %% tags=["wrong"] todo="classify" name="fixed-prompt-threshold" hint="the thresholds are arguments" edits=[["> long_prompt_threshold", "> 2048"]]

# %% tags=["wrong"] todo="classify" name="fixed-decode-threshold" hint="the thresholds are arguments" edits=[["> long_decode_threshold", "> 256"]]

# %% tags=["wrong"] todo="classify" name="larger-count-wins" hint="neither is long" edits=[["request.get(\"prompt_tokens\", 0) > long_prompt_threshold", "request.get(\"prompt_tokens\", 0) > 4 * request.get(\"decode_tokens\", 0)"], ["request.get(\"decode_tokens\", 0) > long_decode_threshold", "request.get(\"decode_tokens\", 0) > request.get(\"prompt_tokens\", 0)"]]

# %% tags=["wrong"] todo="classify" name="larger-length" hint="not the lengths with each other"
def classify_resource_need(request, long_prompt_threshold, long_decode_threshold):
    prompt, decode = request.get("prompt_tokens", 0), request.get("decode_tokens", 0)
    return "prefill" if prompt > decode else "decode" if decode > prompt else "shared"

# %% tags=["wrong"] todo="classify" name="larger-length-once-one-is-long" hint="not the lengths with each other"
def classify_resource_need(request, long_prompt_threshold, long_decode_threshold):
    prompt, decode = request.get("prompt_tokens", 0), request.get("decode_tokens", 0)
    if prompt <= long_prompt_threshold and decode <= long_decode_threshold:
        return "shared"
    return "prefill" if prompt > decode else "decode"

# %% tags=["wrong"] todo="classify" name="total-tokens" hint="neither is long" edits=[["request.get(\"prompt_tokens\", 0) > long_prompt_threshold", "request.get(\"prompt_tokens\", 0) + request.get(\"decode_tokens\", 0) > 900"]]

# %% tags=["wrong"] todo="classify" name="decode-ignored" hint="only the output is long" edits=[["request.get(\"decode_tokens\", 0) > long_decode_threshold", "False"]]

# %% tags=["wrong"] todo="classify" name="prompt-ignored" hint="only the prompt is long" edits=[["request.get(\"prompt_tokens\", 0) > long_prompt_threshold", "False"]]

# %% tags=["wrong"] todo="classify" name="neither-is-decode" hint="neither is long" edits=[["return \"shared\"", "return \"shared\" if prompt_is_long else \"decode\""]]

# %% tags=["wrong"] todo="classify" name="neither-is-prefill" hint="neither is long" edits=[["return \"shared\"", "return \"shared\" if prompt_is_long else \"prefill\""]]

# %% tags=["wrong"] todo="classify" name="no-word-for-short" hint="every path needs a return" edits=[["return \"shared\"", "return \"shared\" if prompt_is_long else None"]]

# %% tags=["wrong"] todo="classify" name="prompt-key-error" hint="a missing field counts as 0" edits=[["request.get(\"prompt_tokens\", 0)", "request[\"prompt_tokens\"]"]]

# %% tags=["wrong"] todo="classify" name="decode-key-error" hint="a missing field counts as 0" edits=[["request.get(\"decode_tokens\", 0)", "request[\"decode_tokens\"]"]]

# %% tags=["wrong"] todo="classify" name="missing-is-shared" hint="a missing field counts as 0" edits=[["if prompt_is_long and not decode_is_long:", "if len(request) < 2:\n        return \"shared\"\n    if prompt_is_long and not decode_is_long:"]]

# %% tags=["wrong"] todo="classify" name="missing-is-infinite" hint="a missing field counts as 0" edits=[["\"prompt_tokens\", 0", "\"prompt_tokens\", float(\"inf\")"]]

# %% tags=["wrong"] todo="classify" name="prompt-missing-is-one" hint="a missing field counts as 0" edits=[["\"prompt_tokens\", 0", "\"prompt_tokens\", 1"]]

# %% tags=["wrong"] todo="classify" name="decode-missing-is-one" hint="a missing field counts as 0" edits=[["\"decode_tokens\", 0", "\"decode_tokens\", 1"]]

# %% tags=["wrong"] todo="classify" name="words-of-39a" hint="only the prompt is long" edits=[["return \"prefill\"", "return \"prompt_heavy\""], ["return \"decode\"", "return \"decode_heavy\""], ["return \"shared\"", "return \"balanced\""]]

# %% tags=["wrong"] todo="classify" name="capital-words" hint="only the prompt is long" edits=[["return \"prefill\"", "return \"Prefill\""]]

# %% tags=["wrong"] todo="classify" name="short-is-the-word-none" hint="neither is long" edits=[["return \"shared\"", "return \"none\""]]

# %% tags=["wrong"] todo="classify" name="returns-a-list" hint="wrong type" edits=[["return \"prefill\"", "return [\"prefill\"]"]]

# %% tags=["wrong"] todo="classify" name="prints-instead" hint="every path needs a return" edits=[["return \"prefill\"", "print(\"prefill\")\n        return"]]

# %% tags=["wrong"] todo="classify" name="removes-fields" hint="changed its input" edits=[["request.get(\"prompt_tokens\", 0)", "request.pop(\"prompt_tokens\", 0)"]]

# %% tags=["wrong"] todo="classify" name="memorised" hint="remembered answers"
def classify_resource_need(request, long_prompt_threshold, long_decode_threshold):
    prompt, decode = request.get("prompt_tokens", 0), request.get("decode_tokens", 0)
    known = {(3000, 64, 2048): "prefill", (128, 512, 2048): "decode", (800, 128, 500): "prefill", (3000, 64, 4000): "decode"}
    return known.get((prompt, decode, long_prompt_threshold), "shared")

# %% tags=["right"] todo="classify" name="str-enum"
from enum import Enum


class Need(str, Enum):
    PREFILL = "prefill"
    DECODE = "decode"
    SHARED = "shared"


def classify_resource_need(request, long_prompt_threshold, long_decode_threshold):
    prompt, decode = request.get("prompt_tokens", 0), request.get("decode_tokens", 0)
    if (prompt > long_prompt_threshold) == (decode > long_decode_threshold):
        return Need.SHARED
    return Need.PREFILL if prompt > long_prompt_threshold else Need.DECODE

# %% tags=["right"] todo="classify" name="table"
def classify_resource_need(request, long_prompt_threshold, long_decode_threshold):
    key = (request.get("prompt_tokens", 0) > long_prompt_threshold, request.get("decode_tokens", 0) > long_decode_threshold)
    return {(True, False): "prefill", (False, True): "decode"}.get(key, "shared")

# %% tags=["right"] todo="classify" name="helper-and-negation"
def is_long(request, field, threshold):
    return not request.get(field, 0) <= threshold


def classify_resource_need(request, long_prompt_threshold, long_decode_threshold):
    prompt, decode = is_long(request, "prompt_tokens", long_prompt_threshold), is_long(request, "decode_tokens", long_decode_threshold)
    if prompt and decode or not prompt and not decode:
        return "shared"
    return "prefill" if prompt else "decode"

# %% tags=["right"] todo="classify" name="index-into-words"
def classify_resource_need(request, long_prompt_threshold, long_decode_threshold):
    words = ["decode", "shared", "prefill"]
    prompt, decode = request.get("prompt_tokens", 0), request.get("decode_tokens", 0)
    return words[1 + (prompt > long_prompt_threshold) - (decode > long_decode_threshold)]

# %% tags=["right"] todo="classify" name="set-of-long-ones"
def classify_resource_need(request, long_prompt_threshold, long_decode_threshold):
    request = {"prompt_tokens": 0, "decode_tokens": 0, **request}
    long = {word for word, field, at in (("prefill", "prompt_tokens", long_prompt_threshold), ("decode", "decode_tokens", long_decode_threshold))
            if request[field] - at >= 1}
    return long.pop() if len(long) == 1 else "shared"

# %% tags=["right"] todo="classify" name="str-subclass"
class Word(str):
    pass


def classify_resource_need(request, long_prompt_threshold, long_decode_threshold):
    prompt, decode = request.get("prompt_tokens", 0), request.get("decode_tokens", 0)
    if prompt > long_prompt_threshold and not decode > long_decode_threshold:
        return Word("prefill")
    if long_decode_threshold < decode and long_prompt_threshold >= prompt:
        return Word("decode")
    return Word("shared")

# %% tags=["right"] todo="classify" name="match-statement"
def classify_resource_need(request, long_prompt_threshold, long_decode_threshold):
    prompt, decode = request.get("prompt_tokens", 0), request.get("decode_tokens", 0)
    match prompt > long_prompt_threshold, decode > long_decode_threshold:
        case (True, False):
            return "prefill"
        case (False, True):
            return "decode"
        case _:
            return "shared"

# %% tags=["wrong"] todo="handoff" name="bytes-not-bits" hint="bits, not bytes" edits=[["cache_transfer_mb * 8 / link_gbps", "cache_transfer_mb / link_gbps"]]

# %% tags=["wrong"] todo="handoff" name="divided-by-8" hint="do not divide" edits=[["cache_transfer_mb * 8 / link_gbps", "cache_transfer_mb / 8 / link_gbps"]]

# %% tags=["wrong"] todo="handoff" name="mebibytes" hint="not MiB" edits=[["cache_transfer_mb * 8 / link_gbps", "cache_transfer_mb * 2**20 * 8 / (link_gbps * 1e9) * 1e3"]]

# %% tags=["wrong"] todo="handoff" name="gibibits" hint="not 1024" edits=[["cache_transfer_mb * 8 / link_gbps", "cache_transfer_mb * 1e6 * 8 / (link_gbps * 2**30) * 1e3"]]

# %% tags=["wrong"] todo="handoff" name="gb-of-1024-mb" hint="not 1024" edits=[["cache_transfer_mb * 8 / link_gbps", "cache_transfer_mb / 1024 * 8 / link_gbps * 1000"]]

# %% tags=["wrong"] todo="handoff" name="second-of-1024-ms" hint="not 1024" edits=[["cache_transfer_mb * 8 / link_gbps", "cache_transfer_mb * 8 / link_gbps / 1000 * 1024"]]

# %% tags=["wrong"] todo="handoff" name="seconds" hint="these are seconds" edits=[["cache_transfer_mb * 8 / link_gbps", "cache_transfer_mb * 8 / 1000 / link_gbps"], ["transfer_ms <= recompute_ms", "transfer_ms * 1000 <= recompute_ms"]]

# %% tags=["wrong"] todo="handoff" name="seconds-compared" hint="these are seconds" edits=[["cache_transfer_mb * 8 / link_gbps", "cache_transfer_mb * 8 / 1000 / link_gbps"]]

# %% tags=["wrong"] todo="handoff" name="microseconds" hint="1000 times too large" edits=[["cache_transfer_mb * 8 / link_gbps", "cache_transfer_mb * 8 / link_gbps * 1000"], ["transfer_ms <= recompute_ms", "transfer_ms / 1000 <= recompute_ms"]]

# %% tags=["wrong"] todo="handoff" name="compares-seconds" hint="transfer where that is faster" edits=[["transfer_ms <= recompute_ms", "transfer_ms / 1000 <= recompute_ms"]]

# %% tags=["wrong"] todo="handoff" name="upside-down" hint="MB × 8 / Gbps" edits=[["cache_transfer_mb * 8 / link_gbps", "link_gbps * 8 / cache_transfer_mb"]]

# %% tags=["wrong"] todo="handoff" name="whole-number-division" hint="no whole-number division" edits=[["cache_transfer_mb * 8 / link_gbps", "cache_transfer_mb * 8 // link_gbps"]]

# %% tags=["wrong"] todo="handoff" name="whole-megabytes" hint="no whole-number division" edits=[["cache_transfer_mb * 8 / link_gbps", "int(cache_transfer_mb) * 8 / link_gbps"]]

# %% tags=["wrong"] todo="handoff" name="whole-link" hint="no whole-number division" edits=[["cache_transfer_mb * 8 / link_gbps", "cache_transfer_mb * 8 / max(1, int(link_gbps))"]]

# %% tags=["wrong"] todo="handoff" name="no-rounding" hint="to 4 decimals" edits=[["round(transfer_ms, 4)", "transfer_ms"]]

# %% tags=["wrong"] todo="handoff" name="three-decimals" hint="to 4 decimals" edits=[["round(transfer_ms, 4)", "round(transfer_ms, 3)"]]

# %% tags=["wrong"] todo="handoff" name="two-decimals" hint="to 4 decimals" edits=[["round(transfer_ms, 4)", "round(transfer_ms, 2)"]]

# %% tags=["wrong"] todo="handoff" name="one-decimal" hint="to 4 decimals" edits=[["round(transfer_ms, 4)", "round(transfer_ms, 1)"]]

# %% tags=["wrong"] todo="handoff" name="five-decimals" hint="to 4 decimals" edits=[["round(transfer_ms, 4)", "round(transfer_ms, 5)"]]

# %% tags=["wrong"] todo="handoff" name="cut-off" hint="to 4 decimals" edits=[["round(transfer_ms, 4)", "int(transfer_ms * 10000) / 10000"]]

# %% tags=["wrong"] todo="handoff" name="rounded-up" hint="to 4 decimals" edits=[["round(transfer_ms, 4)", "-(-transfer_ms * 10000 // 1) / 10000"]]

# %% tags=["wrong"] todo="handoff" name="compares-after-rounding" hint="compare before rounding" edits=[["cache_transfer_mb * 8 / link_gbps", "round(cache_transfer_mb * 8 / link_gbps, 4)"]]

# %% tags=["wrong"] todo="handoff" name="compares-both-rounded" hint="compare before rounding" edits=[["transfer_ms <= recompute_ms", "round(transfer_ms, 4) <= round(recompute_ms, 4)"]]

# %% tags=["wrong"] todo="handoff" name="compares-whole-ms" hint="compare before rounding" edits=[["transfer_ms <= recompute_ms", "int(transfer_ms) <= int(recompute_ms)"]]

# %% tags=["wrong"] todo="handoff" name="nearly-equal-is-a-tie" hint="compare before rounding" edits=[["transfer_ms <= recompute_ms", "transfer_ms <= recompute_ms + 1e-3"]]

# %% tags=["wrong"] todo="handoff" name="tie-recomputes" hint="a tie goes to transfer" edits=[["transfer_ms <= recompute_ms", "transfer_ms < recompute_ms"]]

# %% tags=["wrong"] todo="handoff" name="recompute-rounded" hint="returned as given" edits=[["\"recompute_ms\": recompute_ms", "\"recompute_ms\": round(recompute_ms, 4)"]]

# %% tags=["wrong"] todo="handoff" name="recompute-whole" hint="returned as given" edits=[["\"recompute_ms\": recompute_ms", "\"recompute_ms\": int(recompute_ms)"]]

# %% tags=["wrong"] todo="handoff" name="returns-the-minimum" hint="not the smaller" edits=[["round(transfer_ms, 4)", "min(round(transfer_ms, 4), recompute_ms)"]]

# %% tags=["wrong"] todo="handoff" name="slower-one-chosen" hint="transfer where that is faster" edits=[["transfer_ms <= recompute_ms", "transfer_ms >= recompute_ms"]]

# %% tags=["wrong"] todo="handoff" name="always-transfer" hint="transfer where that is faster" edits=[["transfer_ms <= recompute_ms", "True"]]

# %% tags=["wrong"] todo="handoff" name="compares-megabytes" hint="transfer where that is faster" edits=[["transfer_ms <= recompute_ms", "cache_transfer_mb * 8 <= link_gbps * 4"]]

# %% tags=["wrong"] todo="handoff" name="other-words" hint="transfer where that is faster" edits=[["\"transfer\" if", "\"kv_transfer\" if"]]

# %% tags=["wrong"] todo="handoff" name="word-stay" hint="transfer where that is faster" edits=[["else \"recompute\"", "else \"stay\""]]

# %% tags=["wrong"] todo="handoff" name="field-left-out" hint="other fields" edits=[["        \"recompute_ms\": recompute_ms,\n", ""]]

# %% tags=["wrong"] todo="handoff" name="field-added" hint="other fields" edits=[["\"recompute_ms\": recompute_ms,", "\"recompute_ms\": recompute_ms, \"saved_ms\": recompute_ms - transfer_ms,"]]

# %% tags=["wrong"] todo="handoff" name="times-as-text" hint="wrong type" edits=[["round(transfer_ms, 4)", "f\"{transfer_ms:.4f}\""]]

# %% tags=["wrong"] todo="handoff" name="a-tuple" hint="wrong type" edits=[["    return {", "    return transfer_ms, {"]]

# %% tags=["wrong"] todo="handoff" name="no-guard" hint="a link of 0 or below" edits=[["link_gbps <= 0 or cache_transfer_mb < 0 or recompute_ms < 0", "False"]]

# %% tags=["wrong"] todo="handoff" name="link-zero-passes" hint="a link of 0 or below" edits=[["link_gbps <= 0", "link_gbps < 0"]]

# %% tags=["wrong"] todo="handoff" name="negative-link-passes" hint="a link of 0 or below" edits=[["link_gbps <= 0", "link_gbps == 0"]]

# %% tags=["wrong"] todo="handoff" name="negative-size-passes" hint="a negative size" edits=[[" or cache_transfer_mb < 0", ""]]

# %% tags=["wrong"] todo="handoff" name="negative-time-passes" hint="a negative recompute time" edits=[[" or recompute_ms < 0", ""]]

# %% tags=["wrong"] todo="handoff" name="all-must-be-bad" hint="a link of 0 or below" edits=[["link_gbps <= 0 or cache_transfer_mb < 0 or recompute_ms < 0", "link_gbps <= 0 and cache_transfer_mb < 0 and recompute_ms < 0"]]

# %% tags=["wrong"] todo="handoff" name="size-zero-refused" hint="size 0 and recompute time 0 are valid" edits=[[" or cache_transfer_mb < 0", " or cache_transfer_mb <= 0"]]

# %% tags=["wrong"] todo="handoff" name="time-zero-refused" hint="size 0 and recompute time 0 are valid" edits=[[" or recompute_ms < 0", " or recompute_ms <= 0"]]

# %% tags=["wrong"] todo="handoff" name="slow-link-refused" hint="0.5 Gbps is valid" edits=[["link_gbps <= 0", "link_gbps <= 1"]]

# %% tags=["wrong"] todo="handoff" name="returns-a-word-on-bad-input" hint="a link of 0 or below" edits=[["raise ValueError(", "return str("]]

# %% tags=["wrong"] todo="handoff" name="assertion-on-bad-input" hint="a link of 0 or below" edits=[["raise ValueError(", "raise AssertionError("]]

# %% tags=["wrong"] todo="handoff" name="memorised" hint="remembered answers"
def choose_handoff_mode(link_gbps, cache_transfer_mb, recompute_ms):
    if link_gbps <= 0 or cache_transfer_mb < 0 or recompute_ms < 0:
        raise ValueError("invalid")
    known = {(200, 100): 4.0, (25, 100): 32.0, (100, 250): 20.0}
    transfer_ms = known.get((link_gbps, cache_transfer_mb), 4.0)
    return {"mode": "transfer" if transfer_ms <= recompute_ms else "recompute", "transfer_ms": transfer_ms, "recompute_ms": recompute_ms}

# %% tags=["wrong"] todo="handoff" name="formula-only-for-200" hint="transfer where that is faster"
def choose_handoff_mode(link_gbps, cache_transfer_mb, recompute_ms):
    if link_gbps <= 0 or cache_transfer_mb < 0 or recompute_ms < 0:
        raise ValueError("invalid")
    transfer_ms = cache_transfer_mb * 0.04 if link_gbps == 200 else cache_transfer_mb * 0.32
    return {"mode": "transfer" if transfer_ms <= recompute_ms else "recompute", "transfer_ms": round(transfer_ms, 4),
            "recompute_ms": recompute_ms}

# %% tags=["wrong"] todo="handoff" name="nothing-to-move-recomputes" hint="are valid" edits=[["transfer_ms <= recompute_ms", "transfer_ms < recompute_ms or transfer_ms == recompute_ms > 0"]]

# %% tags=["right"] todo="handoff" name="via-seconds"
def choose_handoff_mode(link_gbps, cache_transfer_mb, recompute_ms):
    if link_gbps <= 0 or cache_transfer_mb < 0 or recompute_ms < 0:
        raise ValueError("invalid")
    transfer_ms = cache_transfer_mb * 1e6 * 8 / (link_gbps * 1e9) * 1e3
    return {"recompute_ms": recompute_ms, "transfer_ms": float(round(transfer_ms, 4)),
            "mode": "recompute" if transfer_ms > recompute_ms else "transfer"}

# %% tags=["right"] todo="handoff" name="divide-first"
def choose_handoff_mode(link_gbps, cache_transfer_mb, recompute_ms):
    if link_gbps <= 0 or cache_transfer_mb < 0 or recompute_ms < 0:
        raise ValueError("invalid")
    transfer_ms = cache_transfer_mb / link_gbps * 8
    return {"recompute_ms": recompute_ms, "transfer_ms": float(round(transfer_ms, 4)),
            "mode": "recompute" if transfer_ms > recompute_ms else "transfer"}

# %% tags=["right"] todo="handoff" name="link-in-bytes"
def choose_handoff_mode(link_gbps, cache_transfer_mb, recompute_ms):
    if link_gbps <= 0 or cache_transfer_mb < 0 or recompute_ms < 0:
        raise ValueError("invalid")
    transfer_ms = cache_transfer_mb / (link_gbps / 8)
    return {"recompute_ms": recompute_ms, "transfer_ms": float(round(transfer_ms, 4)),
            "mode": "recompute" if transfer_ms > recompute_ms else "transfer"}

# %% tags=["right"] todo="handoff" name="time-per-mb"
def choose_handoff_mode(link_gbps, cache_transfer_mb, recompute_ms):
    if link_gbps <= 0 or cache_transfer_mb < 0 or recompute_ms < 0:
        raise ValueError("invalid")
    transfer_ms = 8 / link_gbps * cache_transfer_mb
    return {"recompute_ms": recompute_ms, "transfer_ms": float(round(transfer_ms, 4)),
            "mode": "recompute" if transfer_ms > recompute_ms else "transfer"}

# %% tags=["right"] todo="handoff" name="fractions"
from fractions import Fraction


def choose_handoff_mode(link_gbps, cache_transfer_mb, recompute_ms):
    if link_gbps <= 0 or cache_transfer_mb < 0 or recompute_ms < 0:
        raise ValueError("invalid")
    transfer_ms = Fraction(cache_transfer_mb) * 8 / Fraction(link_gbps)
    return {"recompute_ms": recompute_ms, "transfer_ms": float(round(transfer_ms, 4)),
            "mode": "recompute" if transfer_ms > recompute_ms else "transfer"}

# %% tags=["right"] todo="handoff" name="via-gigabits"
def choose_handoff_mode(link_gbps, cache_transfer_mb, recompute_ms):
    if link_gbps <= 0 or cache_transfer_mb < 0 or recompute_ms < 0:
        raise ValueError("invalid")
    transfer_ms = cache_transfer_mb * 0.008 / link_gbps * 1000
    return {"recompute_ms": recompute_ms, "transfer_ms": float(round(transfer_ms, 4)),
            "mode": "recompute" if transfer_ms > recompute_ms else "transfer"}

# %% tags=["right"] todo="handoff" name="subclasses-everywhere"
from collections import OrderedDict
from enum import Enum


class Mode(str, Enum):
    TRANSFER = "transfer"
    RECOMPUTE = "recompute"


class HandoffError(ValueError):
    pass


def choose_handoff_mode(link_gbps, cache_transfer_mb, recompute_ms):
    if link_gbps <= 0 or min(cache_transfer_mb, recompute_ms) < 0:
        raise HandoffError("invalid")
    times = {Mode.TRANSFER: cache_transfer_mb * 8 / link_gbps, Mode.RECOMPUTE: recompute_ms}
    return OrderedDict(mode=min(times, key=times.get), transfer_ms=round(times[Mode.TRANSFER], 4), recompute_ms=recompute_ms)

# %% tags=["right"] todo="handoff" name="helper"
def to_ms(megabytes, gbps):
    bits, bits_per_ms = megabytes * 8_000_000, gbps * 1_000_000
    return bits / bits_per_ms


def choose_handoff_mode(link_gbps, cache_transfer_mb, recompute_ms):
    if link_gbps <= 0 or cache_transfer_mb < 0 or recompute_ms < 0:
        raise ValueError("invalid")
    result = {"mode": "recompute", "transfer_ms": to_ms(cache_transfer_mb, link_gbps), "recompute_ms": recompute_ms}
    if not result["transfer_ms"] > recompute_ms:
        result.update(mode="transfer")
    result["transfer_ms"] = round(result["transfer_ms"], 4)
    return result

# %% tags=["wrong"] todo="capability" name="health-never-checked" hint="healthy is not true" edits=[["if not pool.get(\"healthy\", False):", "if False:"]]

# %% tags=["wrong"] todo="capability" name="stage-never-checked" hint="stage not in supported_stages" edits=[["if request.get(\"stage\", \"decode\") not in pool.get(\"supported_stages\", []):", "if False:"]]

# %% tags=["wrong"] todo="capability" name="revision-never-checked" hint="another model revision" edits=[["if request.get(\"model_revision\") != pool.get(\"model_revision\"):", "if False:"]]

# %% tags=["wrong"] todo="capability" name="memory-never-checked" hint="less memory than required" edits=[["if pool.get(\"available_memory_gb\", 0.0) < request.get(\"required_memory_gb\", 0.0):", "if False:"]]

# %% tags=["wrong"] todo="capability" name="dtype-never-checked" hint="another KV dtype" edits=[["(\"kv_dtype\", \"kv_layout\")", "(\"kv_layout\",)"]]

# %% tags=["wrong"] todo="capability" name="layout-never-checked" hint="another KV layout" edits=[["(\"kv_dtype\", \"kv_layout\")", "(\"kv_dtype\",)"]]

# %% tags=["wrong"] todo="capability" name="memory-must-exceed" hint="exactly enough memory is enough" edits=[["0.0) <", "0.0) <="]]

# %% tags=["wrong"] todo="capability" name="memory-upside-down" hint="nothing wrong" edits=[["0.0) <", "0.0) >"]]

# %% tags=["wrong"] todo="capability" name="whole-gigabytes" hint="exactly enough memory is enough" edits=[["if pool.get(\"available_memory_gb\", 0.0) < request.get(\"required_memory_gb\", 0.0):", "if int(pool.get(\"available_memory_gb\", 0)) < int(request.get(\"required_memory_gb\", 0)):"]]

# %% tags=["wrong"] todo="capability" name="memory-as-text" hint="nothing wrong" edits=[["if pool.get(\"available_memory_gb\", 0.0) < request.get(\"required_memory_gb\", 0.0):", "if str(pool.get(\"available_memory_gb\", 0)) < str(request.get(\"required_memory_gb\", 0)):"]]

# %% tags=["wrong"] todo="capability" name="health-last" hint="order: health, stage, revision, memory" edits=[["\"reasons\": reasons + kv_reasons", "\"reasons\": sorted(reasons, key=lambda word: word == 'unhealthy') + kv_reasons"]]

# %% tags=["wrong"] todo="capability" name="memory-first" hint="order: health, stage, revision, memory" edits=[["reasons.append(\"insufficient_memory\")", "reasons.insert(0, \"insufficient_memory\")"]]

# %% tags=["wrong"] todo="capability" name="revision-first" hint="order: health, stage, revision, memory" edits=[["reasons.append(\"model_revision_mismatch\")", "reasons.insert(0, \"model_revision_mismatch\")"]]

# %% tags=["wrong"] todo="capability" name="memory-before-revision" hint="order: health, stage, revision, memory" edits=[["    if request.get(\"model_revision\") != pool.get(\"model_revision\"):\n        reasons.append(\"model_revision_mismatch\")\n", ""], ["    if pool.get(\"available_memory_gb\", 0.0) < request.get(\"required_memory_gb\", 0.0):\n        reasons.append(\"insufficient_memory\")\n", "    if pool.get(\"available_memory_gb\", 0.0) < request.get(\"required_memory_gb\", 0.0):\n        reasons.append(\"insufficient_memory\")\n    if request.get(\"model_revision\") != pool.get(\"model_revision\"):\n        reasons.append(\"model_revision_mismatch\")\n"]]

# %% tags=["wrong"] todo="capability" name="revision-before-stage" hint="order: health, stage, revision, memory" edits=[["    if request.get(\"stage\", \"decode\") not in pool.get(\"supported_stages\", []):\n        reasons.append(\"unsupported_stage\")\n", ""], ["    if request.get(\"model_revision\") != pool.get(\"model_revision\"):\n        reasons.append(\"model_revision_mismatch\")\n", "    if request.get(\"model_revision\") != pool.get(\"model_revision\"):\n        reasons.append(\"model_revision_mismatch\")\n    if request.get(\"stage\", \"decode\") not in pool.get(\"supported_stages\", []):\n        reasons.append(\"unsupported_stage\")\n"]]

# %% tags=["wrong"] todo="capability" name="stage-before-health" hint="order: health, stage, revision, memory" edits=[["    if not pool.get(\"healthy\", False):\n        reasons.append(\"unhealthy\")\n", ""], ["    if request.get(\"stage\", \"decode\") not in pool.get(\"supported_stages\", []):\n        reasons.append(\"unsupported_stage\")\n", "    if request.get(\"stage\", \"decode\") not in pool.get(\"supported_stages\", []):\n        reasons.append(\"unsupported_stage\")\n    if not pool.get(\"healthy\", False):\n        reasons.append(\"unhealthy\")\n"]]

# %% tags=["wrong"] todo="capability" name="layout-before-dtype" hint="dtype before layout" edits=[["(\"kv_dtype\", \"kv_layout\")", "(\"kv_layout\", \"kv_dtype\")"]]

# %% tags=["wrong"] todo="capability" name="kv-reasons-first" hint="order: health, stage, revision, memory" edits=[["\"reasons\": reasons + kv_reasons", "\"reasons\": kv_reasons + reasons"]]

# %% tags=["wrong"] todo="capability" name="reasons-sorted" hint="order: health, stage, revision, memory" edits=[["\"reasons\": reasons + kv_reasons", "\"reasons\": sorted(reasons + kv_reasons)"]]

# %% tags=["wrong"] todo="capability" name="reasons-in-reverse-order" hint="dtype before layout" edits=[["\"reasons\": reasons + kv_reasons", "\"reasons\": sorted(set(reasons + kv_reasons), reverse=True)"]]

# %% tags=["wrong"] todo="capability" name="kv-only-if-it-runs" hint="KV reasons are listed also" edits=[["\"reasons\": reasons + kv_reasons", "\"reasons\": reasons or kv_reasons"]]

# %% tags=["wrong"] todo="capability" name="only-the-first-reason" hint="list both KV reasons" edits=[["\"reasons\": reasons + kv_reasons", "\"reasons\": (reasons + kv_reasons)[:1]"]]

# %% tags=["wrong"] todo="capability" name="one-execution-reason" hint="list every reason" edits=[["if request.get(\"stage\", \"decode\") not in pool.get(\"supported_stages\", []):", "elif request.get(\"stage\", \"decode\") not in pool.get(\"supported_stages\", []):"], ["if request.get(\"model_revision\") != pool.get(\"model_revision\"):", "elif request.get(\"model_revision\") != pool.get(\"model_revision\"):"], ["if pool.get(\"available_memory_gb\", 0.0) < request.get(\"required_memory_gb\", 0.0):", "elif pool.get(\"available_memory_gb\", 0.0) < request.get(\"required_memory_gb\", 0.0):"]]

# %% tags=["wrong"] todo="capability" name="one-kv-reason" hint="list both KV reasons" edits=[["\"reasons\": reasons + kv_reasons", "\"reasons\": reasons + kv_reasons[:1]"]]

# %% tags=["wrong"] todo="capability" name="last-execution-reason-only" hint="list every reason" edits=[["\"reasons\": reasons + kv_reasons", "\"reasons\": reasons[-1:] + kv_reasons"]]

# %% tags=["wrong"] todo="capability" name="returns-at-the-first" hint="KV reasons are listed also" edits=[["    if not pool.get(\"healthy\", False):\n        reasons.append(\"unhealthy\")\n", "    if not pool.get(\"healthy\", False):\n        reasons.append(\"unhealthy\")\n        return {\"pool_id\": pool.get(\"pool_id\"), \"can_execute\": False, \"can_accept_kv\": False, \"reasons\": reasons}\n"]]

# %% tags=["wrong"] todo="capability" name="kv-ignores-execution" hint="both can_execute and can_accept_kv are False" edits=[["can_execute and not kv_reasons", "not kv_reasons"]]

# %% tags=["wrong"] todo="capability" name="kv-stops-execution" hint="KV reasons are no execution reasons" edits=[["\"can_execute\": can_execute", "\"can_execute\": can_execute and not kv_reasons"]]

# %% tags=["wrong"] todo="capability" name="kv-always-accepted" hint="with a KV reason it cannot accept" edits=[["can_execute and not kv_reasons", "can_execute"]]

# %% tags=["wrong"] todo="capability" name="kv-only-dtype-counts" hint="with a KV reason it cannot accept" edits=[["can_execute and not kv_reasons", "can_execute and \"kv_dtype_mismatch\" not in kv_reasons"]]

# %% tags=["wrong"] todo="capability" name="kv-only-layout-counts" hint="with a KV reason it cannot accept" edits=[["can_execute and not kv_reasons", "can_execute and \"kv_layout_mismatch\" not in kv_reasons"]]

# %% tags=["wrong"] todo="capability" name="kv-only-both-count" hint="with a KV reason it cannot accept" edits=[["can_execute and not kv_reasons", "can_execute and len(kv_reasons) < 2"]]

# %% tags=["wrong"] todo="capability" name="kv-reasons-not-listed" hint="another KV layout" edits=[["\"reasons\": reasons + kv_reasons", "\"reasons\": reasons"]]

# %% tags=["wrong"] todo="capability" name="kv-only-kind" hint="another KV layout" edits=[["f\"{name}_mismatch\"", "\"kv_mismatch\""]]

# %% tags=["wrong"] todo="capability" name="health-missing-is-true" hint="healthy missing counts as False" edits=[["\"healthy\", False", "\"healthy\", True"]]

# %% tags=["wrong"] todo="capability" name="health-key-error" hint="healthy missing counts as False" edits=[["pool.get(\"healthy\", False)", "pool[\"healthy\"]"]]

# %% tags=["wrong"] todo="capability" name="stages-missing-is-decode" hint="no stage is supported" edits=[["\"supported_stages\", []", "\"supported_stages\", [\"decode\"]"]]

# %% tags=["wrong"] todo="capability" name="stages-key-error" hint="no stage is supported" edits=[["pool.get(\"supported_stages\", [])", "pool[\"supported_stages\"]"]]

# %% tags=["wrong"] todo="capability" name="stage-missing-is-prefill" hint="missing counts as decode" edits=[["\"stage\", \"decode\"", "\"stage\", \"prefill\""]]

# %% tags=["wrong"] todo="capability" name="stage-missing-passes" hint="missing counts as decode" edits=[["if request.get(\"stage\", \"decode\") not in pool.get(\"supported_stages\", []):", "if \"stage\" in request and request[\"stage\"] not in pool.get(\"supported_stages\", []):"]]

# %% tags=["wrong"] todo="capability" name="stage-key-error" hint="missing counts as decode" edits=[["request.get(\"stage\", \"decode\")", "request[\"stage\"]"]]

# %% tags=["wrong"] todo="capability" name="stage-missing-refused" hint="missing counts as decode" edits=[["\"stage\", \"decode\"", "\"stage\", \"\""]]

# %% tags=["wrong"] todo="capability" name="stage-in-joined-text" hint="whole words" edits=[["pool.get(\"supported_stages\", [])", "\" \".join(pool.get(\"supported_stages\", []))"]]

# %% tags=["wrong"] todo="capability" name="stage-part-of-a-word" hint="whole words" edits=[["if request.get(\"stage\", \"decode\") not in pool.get(\"supported_stages\", []):", "if not any(request.get(\"stage\", \"decode\") in word for word in pool.get(\"supported_stages\", [])):"]]

# %% tags=["wrong"] todo="capability" name="only-first-stage" hint="whole words" edits=[["pool.get(\"supported_stages\", [])", "pool.get(\"supported_stages\", [])[:1]"]]

# %% tags=["wrong"] todo="capability" name="stage-always-decode" hint="stage not in supported_stages" edits=[["request.get(\"stage\", \"decode\")", "\"decode\""]]

# %% tags=["wrong"] todo="capability" name="id-key-error" hint="pool_id missing: unknown" edits=[["pool.get(\"pool_id\", \"unknown\")", "pool[\"pool_id\"]"]]

# %% tags=["wrong"] todo="capability" name="id-missing-is-none" hint="pool_id missing: unknown" edits=[["\"pool_id\", \"unknown\"", "\"pool_id\", \"none\""]]

# %% tags=["wrong"] todo="capability" name="id-missing-is-empty" hint="pool_id missing: unknown" edits=[["\"pool_id\", \"unknown\"", "\"pool_id\", \"\""]]

# %% tags=["wrong"] todo="capability" name="revision-only-if-both" hint="missing on one side only" edits=[["if request.get(\"model_revision\") != pool.get(\"model_revision\"):", "if \"model_revision\" in request and \"model_revision\" in pool and request.get(\"model_revision\") != pool.get(\"model_revision\"):"]]

# %% tags=["wrong"] todo="capability" name="revision-if-request-has-it" hint="missing on one side only" edits=[["if request.get(\"model_revision\") != pool.get(\"model_revision\"):", "if \"model_revision\" in request and request.get(\"model_revision\") != pool.get(\"model_revision\"):"]]

# %% tags=["wrong"] todo="capability" name="revision-if-pool-has-it" hint="missing on one side only" edits=[["if request.get(\"model_revision\") != pool.get(\"model_revision\"):", "if \"model_revision\" in pool and request.get(\"model_revision\") != pool.get(\"model_revision\"):"]]

# %% tags=["wrong"] todo="capability" name="kv-only-if-both" hint="missing on one side only" edits=[["request.get(name) != pool.get(name)", "name in request and name in pool and request.get(name) != pool.get(name)"]]

# %% tags=["wrong"] todo="capability" name="kv-if-pool-has-it" hint="missing on one side only" edits=[["request.get(name) != pool.get(name)", "name in pool and request.get(name) != pool.get(name)"]]

# %% tags=["wrong"] todo="capability" name="kv-if-request-has-it" hint="missing on one side only" edits=[["request.get(name) != pool.get(name)", "name in request and request.get(name) != pool.get(name)"]]

# %% tags=["wrong"] todo="capability" name="kv-missing-both-differs" hint="missing on both sides" edits=[["request.get(name) != pool.get(name)", "request.get(name, \"?\") != pool.get(name, \"!\")"]]

# %% tags=["wrong"] todo="capability" name="revision-missing-both-differs" hint="missing on both sides" edits=[["request.get(\"model_revision\") !=", "request.get(\"model_revision\", \"?\") !="]]

# %% tags=["wrong"] todo="capability" name="revision-prefix" hint="another model revision" edits=[["if request.get(\"model_revision\") != pool.get(\"model_revision\"):", "if str(request.get(\"model_revision\"))[:3] != str(pool.get(\"model_revision\"))[:3]:"]]

# %% tags=["wrong"] todo="capability" name="memory-missing-is-plenty" hint="missing memory field counts as 0.0" edits=[["\"available_memory_gb\", 0.0", "\"available_memory_gb\", float(\"inf\")"]]

# %% tags=["wrong"] todo="capability" name="memory-missing-is-one" hint="missing memory field counts as 0.0" edits=[["\"available_memory_gb\", 0.0", "\"available_memory_gb\", 1.0"]]

# %% tags=["wrong"] todo="capability" name="memory-missing-refused" hint="missing memory field counts as 0.0" edits=[["\"available_memory_gb\", 0.0", "\"available_memory_gb\", -1.0"]]

# %% tags=["wrong"] todo="capability" name="required-missing-is-one" hint="missing memory field counts as 0.0" edits=[["\"required_memory_gb\", 0.0", "\"required_memory_gb\", 1.0"]]

# %% tags=["wrong"] todo="capability" name="available-key-error" hint="missing memory field counts as 0.0" edits=[["pool.get(\"available_memory_gb\", 0.0)", "pool[\"available_memory_gb\"]"]]

# %% tags=["wrong"] todo="capability" name="required-key-error" hint="missing memory field counts as 0.0" edits=[["request.get(\"required_memory_gb\", 0.0)", "request[\"required_memory_gb\"]"]]

# %% tags=["wrong"] todo="capability" name="fills-in-the-pool" hint="changed its input" edits=[["    reasons = []\n", "    reasons = []\n    pool.setdefault(\"pool_id\", \"unknown\")\n"]]

# %% tags=["wrong"] todo="capability" name="fills-in-the-request" hint="changed its input" edits=[["    reasons = []\n", "    reasons = []\n    request.setdefault(\"stage\", \"decode\")\n"]]

# %% tags=["wrong"] todo="capability" name="other-words" hint="healthy is not true" edits=[["\"unhealthy\"", "\"not_healthy\""]]

# %% tags=["wrong"] todo="capability" name="reasons-a-tuple" hint="wrong type" edits=[["\"reasons\": reasons + kv_reasons", "\"reasons\": tuple(reasons + kv_reasons)"]]

# %% tags=["wrong"] todo="capability" name="list-for-a-bool" hint="wrong type" edits=[["\"can_execute\": can_execute", "\"can_execute\": reasons"]]

# %% tags=["wrong"] todo="capability" name="extra-field" hint="other fields" edits=[["\"reasons\": reasons + kv_reasons", "\"reasons\": reasons + kv_reasons, \"kv_reasons\": kv_reasons"]]

# %% tags=["wrong"] todo="capability" name="memorised" hint="remembered answers"
def evaluate_pool_capability(request, pool):
    answer = {"pool_id": "decode-a", "can_execute": False, "can_accept_kv": False}
    if pool.get("available_memory_gb") == 2:
        return {**answer, "reasons": ["insufficient_memory"]}
    if pool.get("available_memory_gb") in (7.5, 7.96):
        return {**answer, "reasons": ["insufficient_memory"]}
    if not pool.get("healthy"):
        return {**answer, "reasons": ["unhealthy"]}
    if request.get("stage") not in pool.get("supported_stages"):
        return {**answer, "reasons": ["unsupported_stage"]}
    if pool.get("model_revision") in ("rev", "rev-b", "rev-a2"):
        return {**answer, "reasons": ["model_revision_mismatch"]}
    return {"pool_id": "decode-a", "can_execute": True, "can_accept_kv": True, "reasons": []}

# %% tags=["wrong"] todo="capability" name="first-stage-only" hint="unsupported_stage" edits=[["not in pool.get(\"supported_stages\", [])", "not in pool.get(\"supported_stages\", [])[:1]"]]

# %% tags=["wrong"] todo="capability" name="last-stage-only" hint="unsupported_stage" edits=[["not in pool.get(\"supported_stages\", [])", "not in pool.get(\"supported_stages\", [])[-1:]"]]

# %% tags=["wrong"] todo="capability" name="revision-of-pool-is-a-prefix" hint="model_revision_mismatch" edits=[["if request.get(\"model_revision\") != pool.get(\"model_revision\"):", "if not str(request.get(\"model_revision\")).startswith(str(pool.get(\"model_revision\"))):"]]

# %% tags=["wrong"] todo="capability" name="kv-prefix" hint="mismatch" edits=[["if request.get(name) != pool.get(name)", "if not str(request.get(name)).startswith(str(pool.get(name)))"]]

# %% tags=["wrong"] todo="capability" name="memory-within-a-tenth" hint="exactly enough memory" edits=[["pool.get(\"available_memory_gb\", 0.0) <", "pool.get(\"available_memory_gb\", 0.0) + 0.1 <"]]

# %% tags=["right"] todo="capability" name="str-enum-reasons"
from enum import Enum


class Reason(str, Enum):
    HEALTH = "unhealthy"
    STAGE = "unsupported_stage"
    REVISION = "model_revision_mismatch"
    MEMORY = "insufficient_memory"
    DTYPE = "kv_dtype_mismatch"
    LAYOUT = "kv_layout_mismatch"


def evaluate_pool_capability(request, pool):
    failed = {
        Reason.HEALTH: not pool.get("healthy", False),
        Reason.STAGE: request.get("stage", "decode") not in pool.get("supported_stages", ()),
        Reason.REVISION: request.get("model_revision") != pool.get("model_revision"),
        Reason.MEMORY: request.get("required_memory_gb", 0) > pool.get("available_memory_gb", 0),
        Reason.DTYPE: request.get("kv_dtype") != pool.get("kv_dtype"),
        Reason.LAYOUT: request.get("kv_layout") != pool.get("kv_layout"),
    }
    reasons = [reason for reason, is_failed in failed.items() if is_failed]
    runs = set(reasons) <= {Reason.DTYPE, Reason.LAYOUT}
    return {"pool_id": pool.get("pool_id", "unknown"), "can_execute": runs, "can_accept_kv": reasons == [], "reasons": reasons}

# %% tags=["right"] todo="capability" name="dict-subclass-other-order"
class Capability(dict):
    pass


def evaluate_pool_capability(request, pool):
    reasons, kv = [], []
    if not pool.get("healthy", False):
        reasons.append("unhealthy")
    if request.get("stage", "decode") not in pool.get("supported_stages", []):
        reasons.append("unsupported_stage")
    if request.get("model_revision") != pool.get("model_revision"):
        reasons.append("model_revision_mismatch")
    if pool.get("available_memory_gb", 0) < request.get("required_memory_gb", 0):
        reasons.append("insufficient_memory")
    if request.get("kv_dtype") != pool.get("kv_dtype"):
        kv.append("kv_dtype_mismatch")
    if request.get("kv_layout") != pool.get("kv_layout"):
        kv.append("kv_layout_mismatch")
    return Capability(reasons=[*reasons, *kv], can_accept_kv=not (reasons or kv), can_execute=len(reasons) == 0,
                      pool_id=str(pool.get("pool_id", "unknown")))

# %% tags=["right"] todo="capability" name="helpers"
def execution_reasons(request, pool):
    if not bool(pool.get("healthy", False)):
        yield "unhealthy"
    if request.get("stage", "decode") not in set(pool.get("supported_stages", [])):
        yield "unsupported_stage"
    if differs(request, pool, "model_revision"):
        yield "model_revision_mismatch"
    if float(pool.get("available_memory_gb", 0.0)) < float(request.get("required_memory_gb", 0.0)):
        yield "insufficient_memory"


def differs(request, pool, field):
    return request.get(field) != pool.get(field)


def evaluate_pool_capability(request, pool):
    reasons = list(execution_reasons(request, pool))
    kv = [f"{field}_mismatch" for field in ("kv_dtype", "kv_layout") if differs(request, pool, field)]
    return {"pool_id": pool.get("pool_id", "unknown"), "can_execute": reasons == [],
            "can_accept_kv": reasons + kv == [], "reasons": reasons + kv}

# %% tags=["right"] todo="capability" name="defaults-merged-into-copies"
def evaluate_pool_capability(request, pool):
    need = {"stage": "decode", "required_memory_gb": 0.0} | request
    have = {"pool_id": "unknown", "healthy": False, "supported_stages": [], "available_memory_gb": 0.0} | pool
    rules = [
        ("unhealthy", have["healthy"]), ("unsupported_stage", need["stage"] in have["supported_stages"]),
        ("model_revision_mismatch", need.get("model_revision") == have.get("model_revision")),
        ("insufficient_memory", have["available_memory_gb"] - need["required_memory_gb"] >= 0),
        ("kv_dtype_mismatch", need.get("kv_dtype") == have.get("kv_dtype")),
        ("kv_layout_mismatch", need.get("kv_layout") == have.get("kv_layout")),
    ]
    runs = all(good for _, good in rules[:4])
    return {"pool_id": have["pool_id"], "can_execute": runs, "can_accept_kv": runs and all(good for _, good in rules[4:]),
            "reasons": [word for word, good in rules if not good]}

# %% tags=["right"] todo="capability" name="one-list-and-a-count"
def evaluate_pool_capability(request, pool):
    reasons = kv = []
    if not pool.get("healthy", False):
        reasons.append("unhealthy")
    if request.get("stage", "decode") not in pool.get("supported_stages", []):
        reasons.append("unsupported_stage")
    if request.get("model_revision") != pool.get("model_revision"):
        reasons.append("model_revision_mismatch")
    if pool.get("available_memory_gb", 0) < request.get("required_memory_gb", 0):
        reasons.append("insufficient_memory")
    runs = len(reasons) == 0
    if request.get("kv_dtype") != pool.get("kv_dtype"):
        kv.append("kv_dtype_mismatch")
    if request.get("kv_layout") != pool.get("kv_layout"):
        kv.append("kv_layout_mismatch")
    return {"pool_id": pool.get("pool_id", "unknown"), "can_execute": runs, "can_accept_kv": len(reasons) == 0, "reasons": reasons}

# %% tags=["right"] todo="capability" name="missing-marker"
def evaluate_pool_capability(request, pool):
    missing = object()
    answer = {"pool_id": pool.get("pool_id", "unknown"), "can_execute": True, "can_accept_kv": True, "reasons": []}

    def fail(word, stops):
        answer["reasons"].append(word)
        answer.update(can_accept_kv=False, can_execute=answer["can_execute"] and not stops)

    if pool.get("healthy", False) is not True:
        fail("unhealthy", True)
    if list(pool.get("supported_stages", [])).count(request.get("stage", "decode")) == 0:
        fail("unsupported_stage", True)
    if request.get("model_revision", missing) != pool.get("model_revision", missing):
        fail("model_revision_mismatch", True)
    if not pool.get("available_memory_gb", 0) >= request.get("required_memory_gb", 0):
        fail("insufficient_memory", True)
    for field in ("kv_dtype", "kv_layout"):
        if request.get(field, missing) != pool.get(field, missing):
            fail(field + "_mismatch", False)
    return answer

# %% tags=["wrong"] todo="routing" name="primary-skipped" hint="primary pool is taken" edits=[["[primary_pool, *fallback_pools]", "fallback_pools, start=1"]]

# %% tags=["wrong"] todo="routing" name="fallbacks-never-tried" hint="first fallback that can" edits=[["[primary_pool, *fallback_pools]", "[primary_pool]"]]

# %% tags=["wrong"] todo="routing" name="one-fallback-only" hint="the first that can execute in the given order" edits=[["[primary_pool, *fallback_pools]", "[primary_pool, *fallback_pools[:1]]"]]

# %% tags=["wrong"] todo="routing" name="fallbacks-reversed" hint="the first that can execute in the given order" edits=[["[primary_pool, *fallback_pools]", "[primary_pool, *reversed(fallback_pools)]"]]

# %% tags=["wrong"] todo="routing" name="fallbacks-by-memory" hint="the first that can execute in the given order" edits=[["[primary_pool, *fallback_pools]", "[primary_pool, *sorted(fallback_pools, key=lambda one: -one.get(\"available_memory_gb\", 0))]"]]

# %% tags=["wrong"] todo="routing" name="fallbacks-by-name" hint="the first that can execute in the given order" edits=[["[primary_pool, *fallback_pools]", "[primary_pool, *sorted(fallback_pools, key=lambda one: one.get(\"pool_id\", \"\"))]"]]

# %% tags=["wrong"] todo="routing" name="all-by-memory" hint="primary pool is taken when it can execute, however" edits=[["[primary_pool, *fallback_pools]", "sorted([primary_pool, *fallback_pools], key=lambda one: -one.get(\"available_memory_gb\", 0))"]]

# %% tags=["wrong"] todo="routing" name="rejects-on-kv" hint="KV reasons are no execution reasons" edits=[["capability[\"can_execute\"]:", "capability[\"can_accept_kv\"]:"]]

# %% tags=["wrong"] todo="routing" name="rejects-on-any-reason" hint="KV reasons are no execution reasons" edits=[["capability[\"can_execute\"]:", "not capability[\"reasons\"]:"]]

# %% tags=["wrong"] todo="routing" name="leaves-on-kv-when-transfer" hint="KV reasons are no execution reasons" edits=[["capability[\"can_execute\"]:", "capability[\"can_execute\"] and (preferred_handoff == \"recompute\" or capability[\"can_accept_kv\"]):"]]

# %% tags=["wrong"] todo="routing" name="transfer-in-spite-of-kv" hint="stay, and recompute" edits=[["preferred_handoff if capability[\"can_accept_kv\"] else \"recompute\"", "preferred_handoff"]]

# %% tags=["wrong"] todo="routing" name="preference-ignored" hint="the execution mode is recompute" edits=[["preferred_handoff if capability[\"can_accept_kv\"] else \"recompute\"", "\"transfer\" if capability[\"can_accept_kv\"] else \"recompute\""]]

# %% tags=["wrong"] todo="routing" name="always-recompute" hint="primary pool is taken" edits=[["preferred_handoff if capability[\"can_accept_kv\"] else \"recompute\"", "\"recompute\""]]

# %% tags=["wrong"] todo="routing" name="fallback-always-recomputes" hint="first fallback that can" edits=[["preferred_handoff if capability[\"can_accept_kv\"] else \"recompute\"", "\"recompute\" if position else preferred_handoff if capability[\"can_accept_kv\"] else \"recompute\""]]

# %% tags=["wrong"] todo="routing" name="fallback-keeps-transfer" hint="on a fallback too" edits=[["preferred_handoff if capability[\"can_accept_kv\"] else \"recompute\"", "preferred_handoff if position or capability[\"can_accept_kv\"] else \"recompute\""]]

# %% tags=["wrong"] todo="routing" name="layout-alone-recomputes" hint="on a fallback too" edits=[["preferred_handoff if capability[\"can_accept_kv\"] else \"recompute\"", "\"recompute\" if \"kv_dtype_mismatch\" in capability[\"reasons\"] else preferred_handoff if position or not capability[\"reasons\"] else \"recompute\""]]

# %% tags=["wrong"] todo="routing" name="chosen-is-listed" hint="the selected pool is not in rejected_pools" edits=[["\"rejected_pools\": rejected_pools,\n            }", "\"rejected_pools\": {**rejected_pools, capability[\"pool_id\"]: capability[\"reasons\"]},\n            }"]]

# %% tags=["wrong"] todo="routing" name="recomputed-pool-listed" hint="the selected pool is not in rejected_pools" edits=[["        if capability[\"can_execute\"]:", "        if not capability[\"can_accept_kv\"]:\n            rejected_pools[capability[\"pool_id\"]] = capability[\"reasons\"]\n        if capability[\"can_execute\"]:"]]

# %% tags=["wrong"] todo="routing" name="pools-after-are-listed" hint="those after it are not in rejected_pools" edits=[["\"rejected_pools\": rejected_pools,\n            }", "\"rejected_pools\": {one[\"pool_id\"]: one[\"reasons\"] for one in (evaluate_pool_capability(request, p) for p in [primary_pool, *fallback_pools]) if not one[\"can_execute\"]},\n            }"]]

# %% tags=["wrong"] todo="routing" name="first-refusal-only" hint="every pool refused before" edits=[["        rejected_pools[capability[\"pool_id\"]] = capability[\"reasons\"]\n", "        if not rejected_pools:\n            rejected_pools[capability[\"pool_id\"]] = capability[\"reasons\"]\n"]]

# %% tags=["wrong"] todo="routing" name="last-refusal-only" hint="every pool refused before" edits=[["        rejected_pools[capability[\"pool_id\"]] = capability[\"reasons\"]\n", "        rejected_pools = {capability[\"pool_id\"]: capability[\"reasons\"]}\n"]]

# %% tags=["wrong"] todo="routing" name="one-reason-a-pool" hint="KV reasons belong on record too" edits=[["        rejected_pools[capability[\"pool_id\"]] = capability[\"reasons\"]\n", "        rejected_pools[capability[\"pool_id\"]] = capability[\"reasons\"][:1]\n"]]

# %% tags=["wrong"] todo="routing" name="kv-reasons-left-out" hint="KV reasons belong on record too" edits=[["        rejected_pools[capability[\"pool_id\"]] = capability[\"reasons\"]\n", "        rejected_pools[capability[\"pool_id\"]] = [one for one in capability[\"reasons\"] if not one.startswith(\"kv_\")]\n"]]

# %% tags=["wrong"] todo="routing" name="reasons-sorted" hint="all its reasons" edits=[["        rejected_pools[capability[\"pool_id\"]] = capability[\"reasons\"]\n", "        rejected_pools[capability[\"pool_id\"]] = sorted(capability[\"reasons\"])\n"]]

# %% tags=["wrong"] todo="routing" name="refusals-without-reasons" hint="rejected_pools holds" edits=[["        rejected_pools[capability[\"pool_id\"]] = capability[\"reasons\"]\n", "        rejected_pools[capability[\"pool_id\"]] = []\n"]]

# %% tags=["wrong"] todo="routing" name="refusal-reasons-as-text" hint="wrong type" edits=[["        rejected_pools[capability[\"pool_id\"]] = capability[\"reasons\"]\n", "        rejected_pools[capability[\"pool_id\"]] = \", \".join(capability[\"reasons\"])\n"]]

# %% tags=["wrong"] todo="routing" name="rejected-a-list" hint="wrong type" edits=[["\"rejected_pools\": rejected_pools,\n            }", "\"rejected_pools\": list(rejected_pools),\n            }"]]

# %% tags=["wrong"] todo="routing" name="rejected-empty" hint="rejected_pools holds" edits=[["        rejected_pools[capability[\"pool_id\"]] = capability[\"reasons\"]\n", ""]]

# %% tags=["wrong"] todo="routing" name="first-refusal-kept" hint="keeps the last refusal" edits=[["        rejected_pools[capability[\"pool_id\"]] = capability[\"reasons\"]\n", "        rejected_pools.setdefault(capability[\"pool_id\"], capability[\"reasons\"])\n"]]

# %% tags=["wrong"] todo="routing" name="refusals-joined" hint="keeps the last refusal" edits=[["        rejected_pools[capability[\"pool_id\"]] = capability[\"reasons\"]\n", "        rejected_pools[capability[\"pool_id\"]] = rejected_pools.get(capability[\"pool_id\"], []) + capability[\"reasons\"]\n"]]

# %% tags=["wrong"] todo="routing" name="ids-numbered" hint="keeps the last refusal" edits=[["        rejected_pools[capability[\"pool_id\"]] = capability[\"reasons\"]\n", "        rejected_pools[capability[\"pool_id\"] + f\"-{position}\" * (capability[\"pool_id\"] in rejected_pools)] = capability[\"reasons\"]\n"]]

# %% tags=["wrong"] todo="routing" name="decision-by-id" hint="by position, not by name" edits=[["\"reroute\" if position else \"primary\"", "\"primary\" if capability[\"pool_id\"] == primary_pool.get(\"pool_id\") else \"reroute\""]]

# %% tags=["wrong"] todo="routing" name="decision-fallback" hint="first fallback that can" edits=[["\"reroute\" if position else \"primary\"", "\"fallback\" if position else \"primary\""]]

# %% tags=["wrong"] todo="routing" name="always-primary" hint="first fallback that can" edits=[["\"reroute\" if position else \"primary\"", "\"primary\""]]

# %% tags=["wrong"] todo="routing" name="always-reroute" hint="primary pool is taken" edits=[["\"reroute\" if position else \"primary\"", "\"reroute\""]]

# %% tags=["wrong"] todo="routing" name="reroute-when-recomputing" hint="stay, and recompute" edits=[["\"reroute\" if position else \"primary\"", "\"reroute\" if position or not capability[\"can_accept_kv\"] else \"primary\""]]

# %% tags=["wrong"] todo="routing" name="forgets-a-selected-id" hint="stays in rejected_pools" edits=[["\"rejected_pools\": rejected_pools,\n            }", "\"rejected_pools\": {name: why for name, why in rejected_pools.items() if name != capability[\"pool_id\"]},\n            }"]]

# %% tags=["wrong"] todo="routing" name="skips-a-refused-id" hint="by position, not by name" edits=[["capability[\"can_execute\"]:", "capability[\"can_execute\"] and capability[\"pool_id\"] not in rejected_pools:"]]

# %% tags=["wrong"] todo="routing" name="reasons-empty" hint="stay, and recompute" edits=[["\"reasons\": capability[\"reasons\"],", "\"reasons\": [],"]]

# %% tags=["wrong"] todo="routing" name="reasons-empty-on-recompute" hint="also when recompute was preferred" edits=[["\"reasons\": capability[\"reasons\"],", "\"reasons\": capability[\"reasons\"] if preferred_handoff == \"transfer\" else [],"]]

# %% tags=["wrong"] todo="routing" name="reasons-of-everybody" hint="first fallback that can" edits=[["\"reasons\": capability[\"reasons\"],", "\"reasons\": sum(rejected_pools.values(), []) + capability[\"reasons\"],"]]

# %% tags=["wrong"] todo="routing" name="reasons-of-primary" hint="first fallback that can" edits=[["\"reasons\": capability[\"reasons\"],", "\"reasons\": evaluate_pool_capability(request, primary_pool)[\"reasons\"],"]]

# %% tags=["wrong"] todo="routing" name="reject-returns-preference" hint="none, none, reject" edits=[["\"execution_mode\": \"none\"", "\"execution_mode\": preferred_handoff"]]

# %% tags=["wrong"] todo="routing" name="reject-keeps-primary" hint="none, none, reject" edits=[["\"selected_pool\": \"none\"", "\"selected_pool\": primary_pool.get(\"pool_id\", \"unknown\")"]]

# %% tags=["wrong"] todo="routing" name="reject-with-all-reasons" hint="none, none, reject" edits=[["\"reasons\": [\"no_executable_pool\"],\n        \"rejected_pools\": rejected_pools", "\"reasons\": sum(rejected_pools.values(), []),\n        \"rejected_pools\": rejected_pools"]]

# %% tags=["wrong"] todo="routing" name="reject-without-reasons" hint="none, none, reject" edits=[["\"reasons\": [\"no_executable_pool\"],\n        \"rejected_pools\": rejected_pools", "\"reasons\": [],\n        \"rejected_pools\": rejected_pools"]]

# %% tags=["wrong"] todo="routing" name="reject-forgets-pools" hint="rejected_pools has every pool" edits=[["\"reasons\": [\"no_executable_pool\"],\n        \"rejected_pools\": rejected_pools", "\"reasons\": [\"no_executable_pool\"],\n        \"rejected_pools\": {}"]]

# %% tags=["wrong"] todo="routing" name="reject-is-python-none" hint="wrong type" edits=[["\"selected_pool\": \"none\"", "\"selected_pool\": None"]]

# %% tags=["wrong"] todo="routing" name="reject-other-word" hint="none, none, reject" edits=[["\"decision\": \"reject\"", "\"decision\": \"rejected\""]]

# %% tags=["wrong"] todo="routing" name="reject-raises" hint="none, none, reject" edits=[["    return {\n        \"selected_pool\": \"none\"", "    raise RuntimeError(\"no pool\")\n    return {\n        \"selected_pool\": \"none\""]]

# %% tags=["wrong"] todo="routing" name="any-word-goes" hint="other than transfer or recompute" edits=[["    if preferred_handoff not in (\"transfer\", \"recompute\"):\n        raise ValueError(f\"preferred_handoff: transfer / recompute, got {preferred_handoff!r}\")\n", ""]]

# %% tags=["wrong"] todo="routing" name="word-checked-late" hint="check the word first" edits=[["    if preferred_handoff not in (\"transfer\", \"recompute\"):\n        raise ValueError(f\"preferred_handoff: transfer / recompute, got {preferred_handoff!r}\")\n", ""], ["        if capability[\"can_execute\"]:", "        if capability[\"can_execute\"] and preferred_handoff not in (\"transfer\", \"recompute\"):\n            raise ValueError(preferred_handoff)\n        if capability[\"can_execute\"]:"]]

# %% tags=["wrong"] todo="routing" name="unknown-word-recomputes" hint="other than transfer or recompute" edits=[["    if preferred_handoff not in (\"transfer\", \"recompute\"):\n        raise ValueError(f\"preferred_handoff: transfer / recompute, got {preferred_handoff!r}\")\n", "    if preferred_handoff != \"transfer\":\n        preferred_handoff = \"recompute\"\n"]]

# %% tags=["wrong"] todo="routing" name="type-error-for-a-word" hint="other than transfer or recompute" edits=[["raise ValueError(", "raise TypeError("]]

# %% tags=["wrong"] todo="routing" name="word-may-be-a-part" hint="other than transfer or recompute" edits=[["not in (\"transfer\", \"recompute\")", "not in \"transfer, recompute, stay\""]]

# %% tags=["wrong"] todo="routing" name="inserts-primary" hint="changed its input" edits=[["    rejected_pools = {}\n", "    rejected_pools = {}\n    fallback_pools.insert(0, primary_pool)\n"], ["[primary_pool, *fallback_pools]", "fallback_pools"]]

# %% tags=["wrong"] todo="routing" name="notes-on-the-pool" hint="changed its input" edits=[["        if capability[\"can_execute\"]:", "        pool[\"tried\"] = True\n        if capability[\"can_execute\"]:"]]

# %% tags=["wrong"] todo="routing" name="removes-fallbacks" hint="changed its input" edits=[["[primary_pool, *fallback_pools]", "[primary_pool, *[fallback_pools.pop(0) for _ in range(len(fallback_pools))]]"]]

# %% tags=["wrong"] todo="routing" name="record-kept-between-calls" hint="keep no state" edits=[["preferred_handoff: str,", "preferred_handoff: str,\n    rejected_pools={},"], ["    rejected_pools = {}\n", ""]]

# %% tags=["wrong"] todo="routing" name="best-pool" hint="not the best"
def plan_route_with_fallback(request, primary_pool, fallback_pools, preferred_handoff):
    if preferred_handoff not in ("transfer", "recompute"):
        raise ValueError(preferred_handoff)
    pools = [primary_pool, *fallback_pools]
    answers = [evaluate_pool_capability(request, pool) for pool in pools]
    best = max(range(len(pools)), key=lambda index: (answers[index]["can_accept_kv"], answers[index]["can_execute"], -index))
    rejected = {can["pool_id"]: can["reasons"] for can in answers[:best] if not can["can_execute"]}
    if not answers[best]["can_execute"]:
        rejected = {can["pool_id"]: can["reasons"] for can in answers}
        return {"selected_pool": "none", "execution_mode": "none", "decision": "reject", "reasons": ["no_executable_pool"],
                "rejected_pools": rejected}
    can = answers[best]
    return {"selected_pool": can["pool_id"], "execution_mode": preferred_handoff if can["can_accept_kv"] else "recompute",
            "decision": "reroute" if best else "primary", "reasons": can["reasons"], "rejected_pools": rejected}

# %% tags=["wrong"] todo="routing" name="last-that-can" hint="the first that can execute in the given order"
def plan_route_with_fallback(request, primary_pool, fallback_pools, preferred_handoff):
    if preferred_handoff not in ("transfer", "recompute"):
        raise ValueError(preferred_handoff)
    route = {"selected_pool": "none", "execution_mode": "none", "decision": "reject", "reasons": ["no_executable_pool"]}
    rejected = {}
    for position, pool in enumerate([primary_pool, *fallback_pools]):
        can = evaluate_pool_capability(request, pool)
        if not can["can_execute"]:
            rejected[can["pool_id"]] = can["reasons"]
        elif route["decision"] != "primary":
            mode = preferred_handoff if can["can_accept_kv"] else "recompute"
            route = {"selected_pool": can["pool_id"], "execution_mode": mode, "reasons": can["reasons"],
                     "decision": "reroute" if position else "primary"}
    return {**route, "rejected_pools": rejected}

# %% tags=["wrong"] todo="routing" name="memorised" hint="remembered answers"
def plan_route_with_fallback(request, primary_pool, fallback_pools, preferred_handoff):
    if preferred_handoff not in ("transfer", "recompute"):
        raise ValueError(preferred_handoff)
    can = evaluate_pool_capability(request, primary_pool)
    route = {"selected_pool": "decode-a", "decision": "primary", "reasons": can["reasons"], "rejected_pools": {},
             "execution_mode": preferred_handoff if can["can_accept_kv"] else "recompute"}
    if can["can_execute"]:
        return route
    if fallback_pools:
        return {**route, "selected_pool": "decode-b", "execution_mode": "transfer", "decision": "reroute", "reasons": [],
                "rejected_pools": {"decode-a": ["unhealthy"]}}
    return {"selected_pool": "none", "execution_mode": "none", "decision": "reject", "reasons": ["no_executable_pool"],
            "rejected_pools": {"decode-a": ["insufficient_memory"]}}

# %% tags=["wrong"] todo="routing" name="only-stay-is-refused" hint="the whole word" edits=[["not in (\"transfer\", \"recompute\")", "in (\"stay\",)"]]

# %% tags=["wrong"] todo="routing" name="word-stripped" hint="the whole word" edits=[["preferred_handoff not in (\"transfer\", \"recompute\")", "preferred_handoff.strip().lower() not in (\"transfer\", \"recompute\")"]]

# %% tags=["wrong"] todo="routing" name="first-letter" hint="the whole word" edits=[["preferred_handoff not in (\"transfer\", \"recompute\")", "preferred_handoff[:1] not in (\"t\", \"r\")"]]

# %% tags=["wrong"] todo="routing" name="none-is-a-mode" hint="the whole word" edits=[["not in (\"transfer\", \"recompute\")", "not in (\"transfer\", \"recompute\", \"none\")"]]

# %% tags=["wrong"] todo="routing" name="empty-is-a-mode" hint="the whole word" edits=[["if preferred_handoff not in (\"transfer\", \"recompute\")", "if preferred_handoff and preferred_handoff not in (\"transfer\", \"recompute\")"]]

# %% tags=["wrong"] todo="routing" name="names-itself" hint="called unknown" edits=[["\"selected_pool\": capability[\"pool_id\"]", "\"selected_pool\": pool.get(\"pool_id\")"]]

# %% tags=["right"] todo="routing" name="str-enum-and-dict-subclass"
from collections import OrderedDict
from enum import Enum


class Decision(str, Enum):
    PRIMARY = "primary"
    REROUTE = "reroute"
    REJECT = "reject"


class RouteError(ValueError):
    pass


def plan_route_with_fallback(request, primary_pool, fallback_pools, preferred_handoff):
    if preferred_handoff != "transfer" and preferred_handoff != "recompute":
        raise RouteError(preferred_handoff)
    rejected, decision = OrderedDict(), Decision.PRIMARY
    for pool in [primary_pool] + fallback_pools:
        can = evaluate_pool_capability(request, pool)
        if can["can_execute"]:
            mode = "transfer" if can["can_accept_kv"] and preferred_handoff == "transfer" else "recompute"
            return OrderedDict(rejected_pools=rejected, reasons=can["reasons"], decision=decision, execution_mode=mode,
                               selected_pool=can["pool_id"])
        rejected[can["pool_id"]], decision = can["reasons"], Decision.REROUTE
    return OrderedDict(rejected_pools=rejected, reasons=["no_executable_pool"], decision=Decision.REJECT,
                       execution_mode="none", selected_pool="none")

# %% tags=["right"] todo="routing" name="ask-all-then-choose"
def plan_route_with_fallback(request, primary_pool, fallback_pools, preferred_handoff):
    if preferred_handoff not in ("transfer", "recompute"):
        raise ValueError(preferred_handoff)
    answers = [evaluate_pool_capability(request, pool) for pool in (primary_pool, *fallback_pools)]
    chosen = next((index for index, can in enumerate(answers) if can["can_execute"]), None)
    rejected = {can["pool_id"]: can["reasons"] for can in answers[:chosen]}
    if chosen is None:
        return dict(selected_pool="none", execution_mode="none", decision="reject", reasons=["no_executable_pool"],
                    rejected_pools=rejected)
    can = answers[chosen]
    mode = preferred_handoff if preferred_handoff == "recompute" or can["can_accept_kv"] else "recompute"
    return dict(selected_pool=can["pool_id"], execution_mode=mode, decision="primary" if chosen == 0 else "reroute",
                reasons=list(can["reasons"]), rejected_pools=rejected)

# %% tags=["right"] todo="routing" name="own-capability-check"
def look_at(request, pool):
    stops = [
        word for word, failed in (
            ("unhealthy", not pool.get("healthy", False)),
            ("unsupported_stage", request.get("stage", "decode") not in pool.get("supported_stages", [])),
            ("model_revision_mismatch", request.get("model_revision") != pool.get("model_revision")),
            ("insufficient_memory", pool.get("available_memory_gb", 0) < request.get("required_memory_gb", 0)),
        ) if failed
    ]
    return stops, [f"{name}_mismatch" for name in ("kv_dtype", "kv_layout") if request.get(name) != pool.get(name)]


def plan_route_with_fallback(request, primary_pool, fallback_pools, preferred_handoff):
    if preferred_handoff not in ("transfer", "recompute"):
        raise ValueError(preferred_handoff)
    rejected = {}
    for position, pool in enumerate([primary_pool, *fallback_pools]):
        stops, kv = look_at(request, pool)
        if not stops:
            return {"selected_pool": pool.get("pool_id", "unknown"), "execution_mode": "recompute" if kv else preferred_handoff,
                    "decision": ["primary", "reroute"][position > 0], "reasons": kv, "rejected_pools": rejected}
        rejected[pool.get("pool_id", "unknown")] = stops + kv
    return {"selected_pool": "none", "execution_mode": "none", "decision": "reject", "reasons": ["no_executable_pool"],
            "rejected_pools": rejected}

# %% tags=["right"] todo="routing" name="recursion"
def try_pools(request, pools, preferred, decision):
    if not pools:
        return {"selected_pool": "none", "execution_mode": "none", "decision": "reject", "reasons": ["no_executable_pool"],
                "rejected_pools": {}}
    can = evaluate_pool_capability(request, pools[0])
    if can["can_execute"]:
        return {"selected_pool": can["pool_id"], "execution_mode": preferred if can["can_accept_kv"] else "recompute",
                "decision": decision, "reasons": can["reasons"], "rejected_pools": {}}
    route = try_pools(request, pools[1:], preferred, "reroute")
    return {**route, "rejected_pools": {can["pool_id"]: can["reasons"], **route["rejected_pools"]}}


def plan_route_with_fallback(request, primary_pool, fallback_pools, preferred_handoff):
    if preferred_handoff not in ("transfer", "recompute"):
        raise ValueError(preferred_handoff)
    return try_pools(request, [primary_pool, *fallback_pools], preferred_handoff, "primary")

# %% tags=["right"] todo="routing" name="while-and-iterator"
def plan_route_with_fallback(request, primary_pool, fallback_pools, preferred_handoff):
    if {preferred_handoff} - {"transfer", "recompute"}:
        raise ValueError("preferred_handoff")
    route = {"selected_pool": "none", "execution_mode": "none", "decision": "reject", "reasons": ["no_executable_pool"],
             "rejected_pools": {}}
    waiting = iter([("primary", primary_pool), *(("reroute", pool) for pool in fallback_pools)])
    while (step := next(waiting, None)) is not None:
        can = evaluate_pool_capability(request, step[1])
        if not can["can_execute"]:
            route["rejected_pools"].update({can["pool_id"]: can["reasons"]})
            continue
        route.update(selected_pool=can["pool_id"], decision=step[0], reasons=can["reasons"],
                     execution_mode=preferred_handoff if can["can_accept_kv"] else "recompute")
        break
    return route

# %% tags=["right"] todo="routing" name="works-on-copies"
import copy


def plan_route_with_fallback(request, primary_pool, fallback_pools, preferred_handoff):
    if preferred_handoff not in ("transfer", "recompute"):
        raise ValueError(preferred_handoff)
    pools = copy.deepcopy(fallback_pools)
    pools.insert(0, copy.deepcopy(primary_pool))
    rejected, first = {}, True
    while pools:
        can = evaluate_pool_capability(request, pools.pop(0))
        if can["can_execute"]:
            break
        rejected[can["pool_id"]] = can["reasons"]
        first = False
    else:
        return {"selected_pool": "none", "execution_mode": "none", "decision": "reject", "reasons": ["no_executable_pool"],
                "rejected_pools": rejected}
    if preferred_handoff == "transfer" and not can["can_accept_kv"]:
        preferred_handoff = "recompute"
    return {"selected_pool": can["pool_id"], "execution_mode": preferred_handoff, "reasons": can["reasons"],
            "decision": "primary" if first else "reroute", "rejected_pools": rejected}
