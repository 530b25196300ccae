# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown] tags=["zh"]
# # 39a · 推理分层与回退策略
#
# <!-- badges -->
#
# **学完之后，你能够**
#
# - 看输入长度和生成长度，判断请求属于 `prompt_heavy`、`decode_heavy` 还是 `balanced`，并数出各类的个数；
# - 根据显存压力和排队时间选出一个回退动作，并说明两者同时告警时为什么先管显存；
# - 把这个动作写成一条记录：风险是什么、保护了什么、面对的是单一流量还是混合流量；
# - 说清楚这样一条记录**不能**证明什么。
#
# **前置章节**：“36 Decode 调度”“37 KV Cache 调度”“38 PD 分离”（这 3 章尚未在本课程发布；本章用到的术语都在下面的词表里）。
#
# **时间**：约 60 分钟，只用 CPU。

# %% [markdown] tags=["en"]
# # 39a · Inference fallback and tiers
#
# <!-- badges -->
#
# **After this chapter you can**
#
# - sort requests by prompt length and generated length into `prompt_heavy`, `decode_heavy` and `balanced`, and count them;
# - choose one fallback action from memory pressure and queueing time, and say why memory comes first when both raise an alarm;
# - write that action down as a record: what the risk is, what is protected, and whether the traffic is of a single kind or mixed;
# - say what such a record does **not** prove.
#
# **Prerequisites**: "36 Decode Scheduling", "37 KV Cache Scheduling", "38 Prefill-Decode Disaggregation" (these 3 chapters are not yet published in this course; the terms that this chapter uses are in the list of words below).
#
# **Time**: about 60 minutes, CPU only.

# %% [markdown] tags=["zh"]
# **怎样使用本章。** 有 3 个 TODO。写完一个，就运行它下面的检查单元格：每个检查只打印一行。
#
# | 这一行 | 意思 |
# | --- | --- |
# | `[T1] ok` | 对了 |
# | `[T1] not done yet · 尚未完成` | 还没有写 |
# | `[T1] got …, expected … : …` | 写了，但不对；冒号后面是提示 |
#
# `why("T2")` 显示 T2 出错的那次调用和完整的报错。可以用 Run All：检查没写完的 TODO 时只打印上面那一行，然后接着运行（检查单元格带 `raises-exception` 标签）。

# %% [markdown] tags=["en"]
# **How to use this chapter.** There are 3 TODOs. When you have written one, run the check cells below it: each check prints one line.
#
# | this line | means |
# | --- | --- |
# | `[T1] ok` | right |
# | `[T1] not done yet · 尚未完成` | nothing written yet |
# | `[T1] got …, expected … : …` | written, but wrong; after the colon comes a hint |
#
# `why("T2")` shows the call that went wrong in T2 and the whole error. Run All is fine: the check of an unfinished TODO prints its line, and the run goes on (check cells carry the tag `raises-exception`).

# %% [markdown] tags=["zh"]
# **本章的词**
#
# | 词 | 意思 |
# | --- | --- |
# | prefill、decode | 一次读完整个输入；之后一步生成一个 token |
# | KV cache | 已有 token 的 key 和 value，存在显存里；每生成一个 token 都要读它，通常到请求结束时释放 |
# | 驻留（residency） | 运行中的请求，它的 KV cache 一直留在显存里 |
# | 前缀（prefix） | 输入的开头；开头相同的请求可以共用这一段 KV cache |
# | 批次（batch） | 同一步里一起计算的请求 |
# | TTFT、TPOT | 到第一个 token 的时间；之后每个 token 的时间 |
# | 吞吐（throughput） | 每秒完成多少 token 或请求 |
# | 回退（fallback） | 不能照计划走时，改做的事 |
# | 调度器、路由器（router） | 前者决定下一步算哪些请求；后者决定请求交给哪个 worker |
# | 抢占（preempt）、牺牲者（victim） | 停下一个运行中的请求，把显存让出来；被停下的那个请求 |
# | PD 分离 | prefill 和 decode 在不同的机器上做 |
# | 交接（handoff） | 把请求连同 KV cache 从 prefill 一侧交给 decode 一侧 |
# | 池子、worker | KV cache 的池子：留给它的显存；机器的池子：做同一种工作的一组机器。worker 是其中一个服务进程 |
# | 熔断器（circuit） | 一个开关：打开时，不再把请求发给出错的 worker |
# | backend、workload | 运行模型的程序，例如 vLLM、SGLang；测试用的一批请求 |
# | 抖动（flapping） | 在两个动作之间来回跳 |

# %% [markdown] tags=["en"]
# **The words of this chapter**
#
# | word | meaning |
# | --- | --- |
# | prefill, decode | reading the whole prompt at once; then generating one token per step |
# | KV cache | the keys and values of all tokens so far, kept in GPU memory; each new token reads them, and they are normally freed when the request ends |
# | residency | the KV cache of a running request stays in memory |
# | prefix | the beginning of a prompt; requests that begin alike can share this part of the KV cache |
# | batch | the requests that are computed together in one step |
# | TTFT, TPOT | the time to the first token; the time for each token after it |
# | throughput | tokens or requests finished per second |
# | fallback | what is done instead when the plan cannot be kept |
# | scheduler, router | the first decides which requests the next step computes; the second decides which worker gets a request |
# | preempt, victim | stop a running request to free its memory; the request that is stopped |
# | PD disaggregation | prefill and decode run on different machines |
# | handoff | passing a request with its KV cache from the prefill side to the decode side |
# | pool, worker | the KV cache pool: the memory set aside for it; a pool of machines: those that do the same job. A worker is one serving process among them |
# | circuit (breaker) | a switch: while it is open, no more requests go to a worker that failed |
# | backend, workload | the program that runs the model, such as vLLM or SGLang; the requests of a test |
# | flapping | jumping back and forth between two actions |

# %% [markdown] tags=["zh"]
# 先运行下面这个单元格。

# %% [markdown] tags=["en"]
# Run the next cell first.

# %%
from toolkit.checks import case, check, demo, hidden_rng, scorecard, why
from toolkit.tier_panels import policy_panel, tiers_panel
from toolkit.traces import azure_trace

# %% [markdown] tags=["zh"]
# ## Step 1 · 请求怎样分层
#
# **问题：** 请求 A 有 3000 个输入 token，生成 64 个；请求 B 有 128 个输入 token，生成 512 个。哪一个占用服务器更久？
#
# 先猜，再往下看。

# %% [markdown] tags=["en"]
# ## Step 1 · How requests fall into tiers
#
# **Question:** request A has 3000 prompt tokens and generates 64; request B has 128 prompt tokens and generates 512. Which one occupies the server longer?
#
# Guess first, then read on.

# %% [markdown] tags=["zh"]
# **答：** 输入 token 在 prefill 中成批处理，生成的 token 在 decode 中一步一个。设每步 20 ms（只为算术而假设的数）：
#
# - A：`64 × 20 ms = 1280 ms`
# - B：`512 × 20 ms = 10240 ms`
#
# 这里没有算 prefill，算上也不改变答案：就算每个输入 token 要 1 ms（也是假设，而且很慢），A 一共 `1280 + 3000 = 4280 ms`，B 一共 `10240 + 128 = 10368 ms`。
#
# A 的输入是 B 的 23 倍，decode 的时间却只有 B 的 1/8。在这 10240 ms 里，B 的 KV cache 一直占着显存。所以**两个长度都要看**。

# %% [markdown] tags=["en"]
# **Answer:** prompt tokens are processed together, in prefill; generated tokens come one per step, in decode. Let a step take 20 ms (a number assumed for the arithmetic only):
#
# - A: `64 × 20 ms = 1280 ms`
# - B: `512 × 20 ms = 10240 ms`
#
# Prefill is left out here, and would not change the answer: even at 1 ms per prompt token (assumed too, and slow) A takes `1280 + 3000 = 4280 ms` in all, and B `10240 + 128 = 10368 ms`.
#
# A's prompt is 23 times as long as B's, yet its decode takes 1/8 of the time. For all of these 10240 ms B's KV cache stays in memory. So **both lengths matter**.

# %% [markdown] tags=["zh"]
# 三个类，各有各的风险：
#
# | 类 | 形状 | 主要风险 | 看哪些指标 |
# | --- | --- | --- | --- |
# | `prompt_heavy` | 输入长，生成不长 | prefill 时间、读输入的访存 | TTFT、prefill 吞吐 |
# | `decode_heavy` | 输入不长，生成长 | KV cache 长期驻留、排队 | TPOT、排队时间、显存 |
# | `balanced` | 其余 | 没有一类压力单独占上风 | 端到端延迟、吞吐 |

# %% [markdown] tags=["en"]
# Three classes, each with its own risk:
#
# | class | shape | main risk | what to watch |
# | --- | --- | --- | --- |
# | `prompt_heavy` | long prompt, generation not long | prefill time, memory traffic of the prompt | TTFT, prefill throughput |
# | `decode_heavy` | prompt not long, long generation | a long-lived KV cache, queueing | TPOT, queueing time, memory |
# | `balanced` | all others | neither pressure dominates | end-to-end latency, throughput |

# %% [markdown] tags=["zh"]
# **问题：** 输入和生成**都**超过阈值的请求算哪一类？恰好等于阈值的呢？
#
# 规则必须写明，否则两个人会数出两个结果。下面就是 TODO 1 的约定。
#
# | `prompt_tokens > long_prompt_threshold` | `decode_tokens > long_decode_threshold` | 类 |
# | --- | --- | --- |
# | 是 | 否 | `prompt_heavy` |
# | 否 | 是 | `decode_heavy` |
# | 否 | 否 | `balanced` |
# | 是 | 是 | `balanced` |
#
# | 情形 | 规则 |
# | --- | --- |
# | 长度等于阈值 | 不算长：比较是严格的 `>` |
# | 请求里缺少 `prompt_tokens` 或 `decode_tokens` | 这个长度是 0，请求照常计数 |
# | 阈值 | 大于或等于 0 的整数，由参数给出；阈值为 0 时，1 个 token 就算长 |
# | 请求里字段的顺序 | 没有意义 |
# | 两个一样的请求 | 是 2 个请求 |
# | 返回值 | 字典，总有 `prompt_heavy`、`decode_heavy`、`balanced` 三个键（键的顺序不限），值是普通 `int`；没有请求的类是 0 |
# | 空列表 | 三个键都是 0 |
# | 传入的列表和请求 | 不被改动；同样的输入总是给出同样的结果 |

# %% [markdown] tags=["en"]
# **Question:** which class is a request whose prompt **and** generation both exceed their thresholds? And one that equals a threshold exactly?
#
# The rule must be written down, or two people will count differently. This is the contract of TODO 1.
#
# | `prompt_tokens > long_prompt_threshold` | `decode_tokens > long_decode_threshold` | class |
# | --- | --- | --- |
# | yes | no | `prompt_heavy` |
# | no | yes | `decode_heavy` |
# | no | no | `balanced` |
# | yes | yes | `balanced` |
#
# | situation | rule |
# | --- | --- |
# | a length equal to its threshold | is not long: the comparison is a strict `>` |
# | a request without `prompt_tokens` or `decode_tokens` | that length is 0, and the request counts like any other |
# | thresholds | whole numbers of 0 or more, given as arguments; with a threshold of 0, 1 token is long |
# | the order of the fields in a request | means nothing |
# | two equal requests | are 2 requests |
# | result | a dictionary that always has the three keys `prompt_heavy`, `decode_heavy`, `balanced` (in any order), with plain `int` values; a class without requests is 0 |
# | an empty list | all three keys are 0 |
# | the list and the requests passed in | are not changed; the same input always gives the same result |

# %% [markdown] tags=["zh"]
# **算一遍**，阈值为 2048 和 256：
#
# | `prompt_tokens` | `decode_tokens` | 类 | 原因 |
# | --- | --- | --- | --- |
# | 3000 | 64 | `prompt_heavy` | 只有输入长 |
# | 2500 | 256 | `prompt_heavy` | 256 等于阈值，不长 |
# | 2048 | 512 | `decode_heavy` | 2048 等于阈值，不长 |
# | 800 | 128 | `balanced` | 都不长 |
# | 3000 | 512 | `balanced` | 都长 |
# | （缺） | 128 | `balanced` | 缺少的长度是 0 |
#
# 结果：`{"prompt_heavy": 2, "decode_heavy": 1, "balanced": 3}`，合计 6，等于请求数。

# %% [markdown] tags=["en"]
# **Worked example**, with thresholds 2048 and 256:
#
# | `prompt_tokens` | `decode_tokens` | class | why |
# | --- | --- | --- | --- |
# | 3000 | 64 | `prompt_heavy` | only the prompt is long |
# | 2500 | 256 | `prompt_heavy` | 256 equals its threshold: not long |
# | 2048 | 512 | `decode_heavy` | 2048 equals its threshold: not long |
# | 800 | 128 | `balanced` | neither is long |
# | 3000 | 512 | `balanced` | both are long |
# | (missing) | 128 | `balanced` | the missing length is 0 |
#
# Result: `{"prompt_heavy": 2, "decode_heavy": 1, "balanced": 3}`; the sum is 6, the number of requests.

# %% [markdown] tags=["zh"]
# ### TODO 1 · 统计各类请求
#
# 完成 `summarize_inference_tiers`，然后运行它下面的 4 个检查。

# %% [markdown] tags=["en"]
# ### TODO 1 · Count the requests of each class
#
# Complete `summarize_inference_tiers`, then run the 4 checks below it.

# %% nbgrader={"grade": false, "grade_id": "tiers", "locked": false, "schema_version": 3, "solution": true, "task": false}
def summarize_inference_tiers(
    requests: list[dict[str, int]], long_prompt_threshold: int, long_decode_threshold: int
) -> dict[str, int]:
    """统计三类请求的个数 · Count the requests of each class.

    requests: 每个请求有 prompt_tokens、decode_tokens，单位 token · each with these two lengths, in tokens
    返回 · returns {"prompt_heavy": int, "decode_heavy": int, "balanced": int}
    """
    # TODO 1: 从三个 0 开始；对每个请求先问两个问题（输入长吗？生成长吗？），再查表
    #         start from three zeros; ask two questions of each request (long prompt? long generation?),
    #         then look the class up in the table
    ### BEGIN SOLUTION
    counts = {"prompt_heavy": 0, "decode_heavy": 0, "balanced": 0}
    for request in requests:
        long_prompt = request.get("prompt_tokens", 0) > long_prompt_threshold
        long_decode = request.get("decode_tokens", 0) > long_decode_threshold
        if long_prompt and not long_decode:
            counts["prompt_heavy"] += 1
        elif long_decode and not long_prompt:
            counts["decode_heavy"] += 1
        else:
            counts["balanced"] += 1
    return counts
    ### END SOLUTION
    raise NotImplementedError("TODO 1 尚未完成 · TODO 1 is not done yet")

# %% nbgrader={"grade": true, "grade_id": "test_tiers", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
HINT_CLASSES = "对照约定中的四行表 · look at the four rows of the table"
HINT_SWAPPED = "prompt_heavy 和 decode_heavy 写反了 · prompt_heavy and decode_heavy are swapped"
HINT_CROSSED = "两个阈值用反了 · the two thresholds are crossed"
HINT_EACH_OTHER = "与阈值比较，不是两个长度互相比较 · compare with the thresholds, not the lengths with each other"
HINT_ADD_ONE = "每个请求都要加 1，不是赋值为 1 · add 1 for every request, do not set to 1"
HINT_ALL = "每个请求都要进入一类（都不长：balanced），循环结束后再返回 · every request goes into one class (neither long: balanced); return after the loop"
HINT_FIRST = "少数了第一个请求 · the first request was left out"
HINT_LAST = "少数了最后一个请求 · the last request was left out"
HINT_SHARES = "要个数，不要比例 · counts, not shares"
HINT_TOKENS = "数的是请求，不是 token · count requests, not tokens"
HINT_TWINS = "两个一样的请求是 2 个 · two equal requests are 2 requests"
HINT_ORDER = "按名字取字段，顺序没有意义 · read fields by name, their order means nothing"
HINT_ARGUMENTS = "阈值来自参数，不能写死 · the thresholds are arguments, do not hard-code them"
HINT_KEPT = "计数从 0 开始，不能带着上一次的结果 · start from 0, keep no counts of the call before"

GIVEN_REQUESTS = [
    {"prompt_tokens": 300, "decode_tokens": 40},
    {"prompt_tokens": 800, "decode_tokens": 128},
    {"prompt_tokens": 3000, "decode_tokens": 64},
    {"prompt_tokens": 128, "decode_tokens": 512},
    {"prompt_tokens": 800, "decode_tokens": 128},
    {"prompt_tokens": 2500, "decode_tokens": 90},
    {"decode_tokens": 700, "prompt_tokens": 90},
    {"prompt_tokens": 1500, "decode_tokens": 20},
    {"prompt_tokens": 800, "decode_tokens": 128},
    {"prompt_tokens": 2100, "decode_tokens": 20},
    {"prompt_tokens": 2600, "decode_tokens": 70},
    {"prompt_tokens": 60, "decode_tokens": 300},
    {"prompt_tokens": 200, "decode_tokens": 30},
    {"prompt_tokens": 250, "decode_tokens": 50},
    {"prompt_tokens": 4096, "decode_tokens": 10},
]
check("test_tiers", "summarize_inference_tiers", [
    case(
        GIVEN_REQUESTS, 2048, 256, want={"prompt_heavy": 5, "decode_heavy": 3, "balanced": 7}, hint=HINT_CLASSES,
        mistakes=[
            (3, HINT_SWAPPED), (10, HINT_CROSSED), (12, HINT_EACH_OTHER), (1, HINT_ADD_ONE), (0, HINT_ALL), (6, HINT_FIRST), (4, HINT_LAST), (5 / 15, HINT_SHARES),
            (14296, HINT_TOKENS), (14550, HINT_TOKENS), (5, HINT_TWINS), (2, HINT_ORDER),
        ],
    ),
    case(
        GIVEN_REQUESTS, 1000, 100, want={"prompt_heavy": 6, "decode_heavy": 6, "balanced": 3}, hint=HINT_CLASSES,
        mistakes=[(5, HINT_ARGUMENTS), (11, HINT_KEPT)],
    ),
])
### BEGIN HIDDEN TESTS
def hidden_cases():
    rng = hidden_rng("test_tiers")
    # The class is drawn first and lengths are made for it: the oracle compares nothing.
    signs = {"prompt_heavy": (1, -1), "decode_heavy": (-1, 1), "balanced": (-1, -1)}
    cases = []
    for _ in range(20):
        long_prompt, long_decode = rng.randint(500, 4000), rng.randint(450, 900)
        labels = [*signs, *rng.choices(list(signs), weights=[5, 3, 2], k=rng.randint(4, 12))]
        rng.shuffle(labels)
        drawn = [
            {"prompt_tokens": long_prompt + signs[label][0] * rng.randint(2, 400),
             "decode_tokens": long_decode + signs[label][1] * rng.randint(2, 400)}
            for label in labels
        ]
        cases.append(case(drawn, long_prompt, long_decode, want={label: labels.count(label) for label in signs}, hint=HINT_CLASSES))
    return cases


check("test_tiers", "summarize_inference_tiers", hidden_cases(), hidden=True)
### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "test_tiers_boundaries", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
HINT_STRICT_PROMPT = "输入等于阈值不算长，用 > 而不是 >= · strict: a prompt equal to its threshold is not long"
HINT_STRICT_DECODE = "生成等于阈值不算长，用 > 而不是 >= · strict: a generation equal to its threshold is not long"
HINT_EQUAL_PROMPT = "输入等于阈值，仍可以是 decode_heavy · a prompt equal to its threshold still allows decode_heavy"
HINT_EQUAL_DECODE = "生成等于阈值，仍可以是 prompt_heavy · a generation equal to its threshold still allows prompt_heavy"
HINT_ONE_MORE = "比阈值多 1 个 token 就算长 · 1 token more than the threshold is long"


def given_sizes(*pairs):
    """Requests of these (prompt, generated) lengths."""
    return [{"prompt_tokens": prompt, "decode_tokens": decode} for prompt, decode in pairs]


check("test_tiers_boundaries", "summarize_inference_tiers", [
    case(
        given_sizes((2048, 64), (3000, 64), (2048, 100), (128, 512), (90, 700), (64, 300)), 2048, 256,
        want={"prompt_heavy": 1, "decode_heavy": 3, "balanced": 2}, hint=HINT_STRICT_PROMPT,
    ),
    case(
        given_sizes((128, 256), (3000, 64), (2500, 10), (700, 256), (4096, 90), (128, 512)), 2048, 256,
        want={"decode_heavy": 1, "prompt_heavy": 3, "balanced": 2}, hint=HINT_STRICT_DECODE,
    ),
    case(
        given_sizes((2048, 512), (3000, 64), (2048, 300), (800, 128), (2048, 257), (90, 30)), 2048, 256,
        want={"decode_heavy": 3, "prompt_heavy": 1, "balanced": 2}, hint=HINT_EQUAL_PROMPT, mistakes=[(2, HINT_ONE_MORE)],
    ),
    case(
        given_sizes((3000, 256), (2500, 256), (800, 128), (2049, 256), (128, 512), (90, 30)), 2048, 256,
        want={"prompt_heavy": 3, "decode_heavy": 1, "balanced": 2}, hint=HINT_EQUAL_DECODE, mistakes=[(2, HINT_ONE_MORE)],
    ),
])
### BEGIN HIDDEN TESTS
def hidden_cases():
    rng = hidden_rng("test_tiers_boundaries")
    # Steps from the two thresholds -> class.
    steps = {
        (1, 0): "prompt_heavy", (1, -1): "prompt_heavy", (0, 1): "decode_heavy", (-1, 1): "decode_heavy",
        (0, 0): "balanced", (0, -1): "balanced", (-1, 0): "balanced",
    }
    cases = []
    for _ in range(20):
        long_prompt, long_decode = rng.randint(500, 4000), rng.randint(50, 600)
        drawn = [*steps, *rng.choices(list(steps), k=rng.randint(3, 9))]
        rng.shuffle(drawn)
        labels = [steps[step] for step in drawn]
        requests = given_sizes(*[(long_prompt + step[0], long_decode + step[1]) for step in drawn])
        cases.append(case(
            requests, long_prompt, long_decode, want={label: labels.count(label) for label in set(labels)},
            hint="等于阈值不算长 · strict: equal to a threshold is not long",
        ))
    return cases


check("test_tiers_boundaries", "summarize_inference_tiers", hidden_cases(), hidden=True)
### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "test_tiers_both_long", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
HINT_BOTH = "两个长度都长的请求是 balanced，只算一次 · both long is balanced, counted once"
HINT_BOTH_PROMPT = "两个都长的请求不是 prompt_heavy，算一次 balanced · both long is not prompt_heavy: count it once, as balanced"
HINT_BOTH_DECODE = "两个都长的请求不是 decode_heavy，算一次 balanced · both long is not decode_heavy: count it once, as balanced"
HINT_LOST = "两个都长的请求没有被计入，它是 balanced · both long was counted nowhere: it is balanced"

check("test_tiers_both_long", "summarize_inference_tiers", [
    case(
        [
            {"prompt_tokens": 3000, "decode_tokens": 512},
            {"prompt_tokens": 2500, "decode_tokens": 64},
            {"prompt_tokens": 4096, "decode_tokens": 700},
            {"prompt_tokens": 128, "decode_tokens": 512},
            {"prompt_tokens": 2049, "decode_tokens": 257},
            {"prompt_tokens": 90, "decode_tokens": 300},
            {"prompt_tokens": 800, "decode_tokens": 128},
        ],
        2048, 256, want={"prompt_heavy": 1, "decode_heavy": 2, "balanced": 4}, hint=HINT_BOTH,
        mistakes=[(4, HINT_BOTH_PROMPT), (5, HINT_BOTH_DECODE), (1, HINT_LOST)],
    ),
])
### BEGIN HIDDEN TESTS
def hidden_cases():
    rng = hidden_rng("test_tiers_both_long")
    cases = []
    for _ in range(20):
        long_prompt, long_decode = rng.randint(500, 4000), rng.randint(50, 600)
        both, prompts, decodes = rng.randint(2, 6), rng.randint(1, 5), rng.randint(1, 5)
        drawn = (
            [{"prompt_tokens": long_prompt + rng.randint(7, 999), "decode_tokens": long_decode + rng.randint(7, 99)} for _ in range(both)]
            + [{"prompt_tokens": long_prompt + 7, "decode_tokens": long_decode - 2}] * prompts
            + [{"prompt_tokens": long_prompt - 2, "decode_tokens": long_decode + 7}] * decodes
        )
        rng.shuffle(drawn)
        cases.append(case(
            drawn, long_prompt, long_decode,
            want={"prompt_heavy": prompts, "decode_heavy": decodes, "balanced": both}, hint=HINT_BOTH,
        ))
    return cases


check("test_tiers_both_long", "summarize_inference_tiers", hidden_cases(), hidden=True)
### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "test_tiers_defaults", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
HINT_MISSING = "缺少的长度是 0 · a missing length is 0"
HINT_SKIPPED = "缺少长度的请求也要计数 · a request with a missing length counts too"
HINT_MISSING_LONG = "缺少的长度是 0，不是长 · a missing length is 0, not a long one"
HINT_EMPTY = "空列表返回三个 0 · an empty list gives three zeros"
HINT_KEYS = "三个键总要在，没有请求的类是 0 · all three keys, always: a class without requests is 0"
HINT_ZERO = "阈值为 0 时，1 个 token 就算长，缺少的不算 · with a threshold of 0, 1 token is long and a missing length is not"

check("test_tiers_defaults", "summarize_inference_tiers", [
    case(
        [{"prompt_tokens": 3000}, {"decode_tokens": 512}, {"prompt_tokens": 2500}, {}, {"prompt_tokens": 100}, {"decode_tokens": 20}],
        2048, 256, want={"balanced": 3, "prompt_heavy": 2, "decode_heavy": 1}, hint=HINT_MISSING,
        mistakes=[(0, HINT_SKIPPED), (4, HINT_MISSING_LONG)],
    ),
    case([], 2048, 256, want={"prompt_heavy": 0, "decode_heavy": 0, "balanced": 0}, hint=HINT_EMPTY, mistakes=[([], HINT_KEYS)]),
    case(
        [{"prompt_tokens": 3000, "decode_tokens": 64}, {"prompt_tokens": 2500, "decode_tokens": 64}],
        2048, 256, want={"prompt_heavy": 2, "decode_heavy": 0, "balanced": 0}, hint=HINT_KEYS,
        mistakes=[(["prompt_heavy"], HINT_KEYS)],
    ),
    case(
        [{"prompt_tokens": 1}, {"decode_tokens": 9}, {"prompt_tokens": 7}, {}, {"prompt_tokens": 3}, {"decode_tokens": 1}],
        0, 0, want={"prompt_heavy": 3, "decode_heavy": 2, "balanced": 1}, hint=HINT_ZERO,
    ),
])
### BEGIN HIDDEN TESTS
def hidden_cases():
    rng = hidden_rng("test_tiers_defaults")
    cases = []
    for _ in range(20):
        long_prompt, long_decode = rng.choice([(0, 0), (rng.randint(1, 4000), rng.randint(1, 600))])
        prompts, decodes, empty = rng.randint(0, 5), rng.randint(0, 5), rng.randint(0, 3)
        drawn = (
            [{"prompt_tokens": long_prompt + rng.randint(1, 99)} for _ in range(prompts)]
            + [{"decode_tokens": long_decode + rng.randint(1, 99)} for _ in range(decodes)]
            + [{} for _ in range(empty)]
        )
        rng.shuffle(drawn)
        cases.append(case(
            drawn, long_prompt, long_decode,
            want={"prompt_heavy": prompts, "decode_heavy": decodes, "balanced": empty},
            hint="缺少的长度是 0，三个键总要在 · a missing length is 0, and all three keys are always there",
        ))
    return cases


check("test_tiers_defaults", "summarize_inference_tiers", hidden_cases(), hidden=True)
### END HIDDEN TESTS

# %% [markdown] tags=["zh"]
# ### 用在真实流量上
#
# Azure 在 2023 年公开了 2 份大模型推理的请求记录：写代码（8819 个请求）和对话（19366 个）。
#
# **问题：** 哪一份里 `decode_heavy` 更多？先猜，再运行：分类的是你写的函数。
#
# 图的来历：每个点是一个请求，横轴输入 token，纵轴生成 token，颜色和形状是你的函数对单个请求的回答；右边的个数由你的函数对整份记录数出。图上写明数据是公开文件，还是（离线时）按它拟合的合成数据。
#
# 两个滑块是两个阈值（从 2048 和 256 开始），下拉框换记录。用鼠标拖，或按 Tab 选中后用左右方向键；下拉框先按空格打开，用上下方向键选，再按回车。

# %% [markdown] tags=["en"]
# ### On real traffic
#
# In 2023 Azure published 2 request traces of large-model inference: coding (8819 requests) and conversation (19366).
#
# **Question:** which of them has more `decode_heavy` requests? Guess, then run: your function does the sorting.
#
# How the picture is made: each point is one request, with prompt tokens on the x axis and generated tokens on the y axis; its colour and shape are your function's answer for that single request, and the counts on the right are your function's for the whole trace. The plot says whether the data are the published file or, offline, synthetic data fitted to it.
#
# The two sliders are the two thresholds (they start at 2048 and 256), the list changes the trace. Drag with the mouse, or reach them with Tab and use the left and right arrow keys; a list opens with Space, then the up and down arrows choose and Enter takes.

# %% tags=["nbval-ignore-output"]
with demo("T1"):
    traces = {kind: azure_trace(kind) for kind in ("code", "conversation")}
    display(tiers_panel(traces, summarize_inference_tiers))

# %% [markdown] tags=["zh"]
# 用公开文件，阈值为 2048 和 256，你应该看到（按上面的规则数出来的）：
#
# | 记录 | `prompt_heavy` | `decode_heavy` | `balanced` |
# | --- | --- | --- | --- |
# | code | 3274（37.1 %） | 50（0.6 %） | 5495（62.3 %） |
# | conversation | 2681（13.8 %） | 6509（33.6 %） | 10176（52.5 %） |
#
# 合成数据的数会略有不同。再试一试：把 code 的生成阈值降到 16，`balanced` 大量变成了什么？请求没有变，变的只是阈值。

# %% [markdown] tags=["en"]
# With the published files and the thresholds 2048 and 256 you should see (counted with the rule above):
#
# | trace | `prompt_heavy` | `decode_heavy` | `balanced` |
# | --- | --- | --- | --- |
# | code | 3274 (37.1 %) | 50 (0.6 %) | 5495 (62.3 %) |
# | conversation | 2681 (13.8 %) | 6509 (33.6 %) | 10176 (52.5 %) |
#
# Synthetic data give slightly different numbers. Now lower the decode threshold of code to 16: what does much of `balanced` turn into? The requests are the same; only a threshold has moved.

# %% [markdown] tags=["zh"]
# **想一想：** code 里超过一半是 `balanced`。能不能说“写代码的流量没有压力”？

# %% [markdown] tags=["en"]
# **Think:** more than half of the code trace is `balanced`. May one say "coding traffic causes no pressure"?

# %% [markdown] tags=["zh", "answer"]
# **答：** 不能。类别只来自两个阈值，换一对阈值，比例就变；`balanced` 还包括两个都长的请求。压力取决于同时有多少请求、到达得多快，而计数里没有时间。

# %% [markdown] tags=["en", "answer"]
# **Answer:** no. The classes come from two thresholds only, and other thresholds give other shares; `balanced` also holds the requests that are long in both. Pressure depends on how many requests run at once and how fast they arrive, and there is no time in a count.

# %% [markdown] tags=["zh"]
# > #### Field case · 现场案例：被抢占的工作要重算
# >
# > **现象：** 显存不够时，调度器抢占一个正在运行的请求，丢掉它的 KV cache，以后重算。报告中，重算占全部 token 的份额在线时达到 10 % 到 23 %，在强制的扫描实验中达到 79 %。
# >
# > **问题：** 需要腾出 500 个 token 的位置，下面 3 个（编出来的）请求抢占哪一个？
# >
# > 报告：https://github.com/vllm-project/vllm/issues/54644

# %% [markdown] tags=["en"]
# > #### Field case · Preempted work is computed again
# >
# > **Symptom:** when memory runs short, the scheduler preempts a running request, drops its KV cache and computes it again later. In the report the recomputed share of all tokens reached 10 % to 23 % online and 79 % in a forced sweep.
# >
# > **Question:** room for 500 tokens is needed; which of the 3 (made-up) requests below should be preempted?
# >
# > Report: https://github.com/vllm-project/vllm/issues/54644

# %%
def class_of_one(request):
    """The class of one request: the only one that summarize_inference_tiers counts."""
    counts = summarize_inference_tiers([request], 2048, 256)
    return max(counts, key=counts.get)


with demo("T1"):
    # name, prompt tokens, tokens to generate, tokens generated so far
    running = [("A", 3000, 64, 10), ("B", 128, 512, 400), ("C", 1500, 128, 20)]
    for name, prompt, decode, done in running:
        tier = class_of_one({"prompt_tokens": prompt, "decode_tokens": decode})
        print(f"preempt {name}: {tier:<12}  frees {prompt + done:>4} tokens of KV, computes {prompt + done:>4} again")

# %% [markdown] tags=["zh"]
# 3 个都腾得出 500 个，价格却是重算 3010、528 和 1520 个 token。只看类还不够：B 虽是 `decode_heavy`，牺牲它最便宜。（数字只由加法得到，不是测量。）
#
# **机制：** 重算有价格。报告里，选谁做牺牲者决定了大约一半的价格（在这个玩具里更多：最便宜的只有最贵的约 1/6）；显存压力需要一条选择牺牲者的策略。

# %% [markdown] tags=["en"]
# All 3 free the 500, but the prices are 3010, 528 and 1520 tokens to compute again. The class alone does not tell: B is `decode_heavy` and yet the cheapest victim. (These numbers are additions, not measurements.)
#
# **Mechanism:** recomputing has a price. In the report, the choice of the victim decides about half of it (in this toy even more: the cheapest costs about 1/6 of the dearest); memory pressure needs a victim policy.

# %% [markdown] tags=["zh"]
# ## Step 2 · 压力怎样触发回退
#
# **问题：** 两个告警同时响了：显存用到 92 %，请求平均排队 140 ms。先处理哪一个？
#
# 先写下你的答案和理由。

# %% [markdown] tags=["en"]
# ## Step 2 · How pressure triggers a fallback
#
# **Question:** two alarms ring at once: memory is 92 % full, and requests queue for 140 ms on average. Which one first?
#
# Write down your answer and your reason.

# %% [markdown] tags=["zh"]
# **答：** 先管显存。排队久的请求只是慢；放不下 KV cache 的请求根本跑不了，还会连累正在运行的请求。先保住能运行，再谈快慢。
#
# **算一遍。** KV cache 的池子是 40 GB：
#
# - 用了 36.8 GB：`memory_pressure = 36.8 / 40 = 0.92`，大于 0.9，触发；
# - 用了 36 GB：`memory_pressure = 36 / 40 = 0.9`，等于 0.9，**不**触发。
#
# `memory_pressure` 是 0 到 1 的比例，不是百分数；`queue_delay_ms` 的单位是毫秒，不是秒。

# %% [markdown] tags=["en"]
# **Answer:** memory first. A request that queues for long is late; one whose KV cache does not fit cannot run at all, and takes running ones down with it. First stay able to run, then talk about speed.
#
# **Worked example.** The KV cache pool holds 40 GB:
#
# - 36.8 GB used: `memory_pressure = 36.8 / 40 = 0.92`, more than 0.9: triggers;
# - 36 GB used: `memory_pressure = 36 / 40 = 0.9`, equal to 0.9: does **not** trigger.
#
# `memory_pressure` is a fraction from 0 to 1, not a percentage; `queue_delay_ms` is in milliseconds, not in seconds.

# %% [markdown] tags=["zh"]
# 每个动作都有代价：
#
# | 动作 | 做什么 | 换来什么 | 付出什么 |
# | --- | --- | --- | --- |
# | `disable_optional_cache` | 放掉可以没有的缓存，例如已结束请求的前缀 | 正在运行的请求留得住 KV cache | 以后要多做 prefill |
# | `reduce_batch_size` | 每一步少算几个请求 | 步子更短，等待更稳 | 吞吐 |
# | `keep_current_plan` | 不变 | 稳定的吞吐 | 无 |

# %% [markdown] tags=["en"]
# Each action has its price:
#
# | action | what it does | what it buys | what it costs |
# | --- | --- | --- | --- |
# | `disable_optional_cache` | drops cache that one can do without, such as prefixes of finished requests | running requests keep their KV cache | more prefill later |
# | `reduce_batch_size` | fewer requests in each step | shorter steps, steadier waits | throughput |
# | `keep_current_plan` | nothing | steady throughput | nothing |

# %% [markdown] tags=["zh"]
# TODO 2 的约定：从上往下，**第一条成立的规则**决定结果。
#
# | 顺序 | 条件 | `policy` | `priority` |
# | --- | --- | --- | --- |
# | 1 | `memory_pressure > 0.9` | `disable_optional_cache` | `protect_residency` |
# | 2 | `queue_delay_ms > 100` | `reduce_batch_size` | `protect_latency` |
# | 3 | 其他 | `keep_current_plan` | `stable` |
#
# | 情形 | 规则 |
# | --- | --- |
# | 恰好 0.9，恰好 100 | 不触发：比较是严格的 `>`，而且不取整 |
# | 两条同时成立 | 显存优先：结果就是第 1 行，不是两个动作 |
# | 缺少 `memory_pressure` 或 `queue_delay_ms` | 当作 0.0；空字典得到第 3 行 |
# | 返回值 | 字典，只有 `policy` 和 `priority` 两个键（顺序不限），值就是表中的词 |
# | 传入的字典 | 不被改动 |

# %% [markdown] tags=["en"]
# The contract of TODO 2: from the top, **the first rule that holds** decides.
#
# | order | condition | `policy` | `priority` |
# | --- | --- | --- | --- |
# | 1 | `memory_pressure > 0.9` | `disable_optional_cache` | `protect_residency` |
# | 2 | `queue_delay_ms > 100` | `reduce_batch_size` | `protect_latency` |
# | 3 | otherwise | `keep_current_plan` | `stable` |
#
# | situation | rule |
# | --- | --- |
# | exactly 0.9, exactly 100 | does not trigger: the comparison is a strict `>`, and nothing is rounded |
# | both hold | memory first: the result is row 1, not two actions |
# | `memory_pressure` or `queue_delay_ms` is missing | counts as 0.0; an empty dictionary gives row 3 |
# | result | a dictionary with just the two keys `policy` and `priority` (in any order), holding the words of the table |
# | the dictionary passed in | is not changed |

# %% [markdown] tags=["zh"]
# ### TODO 2 · 选择回退动作
#
# 完成 `select_fallback_policy`，然后运行它下面的 4 个检查。

# %% [markdown] tags=["en"]
# ### TODO 2 · Choose the fallback action
#
# Complete `select_fallback_policy`, then run the 4 checks below it.

# %% nbgrader={"grade": false, "grade_id": "policy", "locked": false, "schema_version": 3, "solution": true, "task": false}
def select_fallback_policy(system_state: dict[str, float]) -> dict[str, str]:
    """按压力选一个回退动作 · Choose one fallback action by pressure.

    system_state: memory_pressure 是 0 到 1 的比例 · a fraction from 0 to 1; queue_delay_ms 单位毫秒 · in ms
    返回 · returns {"policy": str, "priority": str}
    """
    # TODO 2: 先看 memory_pressure，再看 queue_delay_ms，最后是默认
    #         memory_pressure first, then queue_delay_ms, then the default
    ### BEGIN SOLUTION
    if system_state.get("memory_pressure", 0.0) > 0.9:
        return {"policy": "disable_optional_cache", "priority": "protect_residency"}
    if system_state.get("queue_delay_ms", 0.0) > 100:
        return {"policy": "reduce_batch_size", "priority": "protect_latency"}
    return {"policy": "keep_current_plan", "priority": "stable"}
    ### END SOLUTION
    raise NotImplementedError("TODO 2 尚未完成 · TODO 2 is not done yet")

# %% nbgrader={"grade": true, "grade_id": "test_policy", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
HINT_TABLE = "对照约定中的三行表 · look at the three rows of the table"
HINT_FRACTION = "memory_pressure 是 0 到 1 的比例，只要它一项就够 · a fraction from 0 to 1, not a percentage, and it alone is enough"
HINT_POLICY_SWAPPED = "显存用 disable_optional_cache，排队用 reduce_batch_size · memory asks for disable_optional_cache, the queue for reduce_batch_size"
HINT_ALONE = "显存正常时也要检查排队 · check the queue even when memory is calm"
HINT_DIVIDED = "queue_delay_ms 已经是毫秒，不要再除 · queue_delay_ms is in ms already, do not divide it"
HINT_SECONDS = "阈值是 100 毫秒：20 毫秒不算久，不要按秒计 · the threshold is 100 ms: 20 ms is calm, do not count in seconds"
HINT_QUEUE_ONLY = "只有排队告警，动作是 reduce_batch_size · only the queue alarms: reduce_batch_size"
HINT_PRIORITY_SWAPPED = "两个 priority 写反了 · the two priorities are swapped"
HINT_RISK_WORD = "priority 用表中的词，memory 和 latency 属于 TODO 3 · memory and latency are words of TODO 3"
HINT_REPEATED = "返回有两个字段的字典，priority 不是把 policy 再写一遍 · return a dictionary of two fields; priority does not repeat the policy"
HINT_WORD = "与表中的词逐字相同 · spell the words exactly as the table does"

GIVEN_MEMORY_FULL = {"policy": "disable_optional_cache", "priority": "protect_residency"}
GIVEN_QUEUE_LONG = {"policy": "reduce_batch_size", "priority": "protect_latency"}
GIVEN_CALM = {"policy": "keep_current_plan", "priority": "stable"}
check("test_policy", "select_fallback_policy", [
    case(
        {"memory_pressure": 0.97, "queue_delay_ms": 20}, want=GIVEN_MEMORY_FULL, hint=HINT_WORD,
        mistakes=[
            ("keep_current_plan", HINT_FRACTION), ("reduce_batch_size", HINT_POLICY_SWAPPED), ("protect_latency", HINT_PRIORITY_SWAPPED),
            ("memory", HINT_RISK_WORD), ("disable_optional_cache", HINT_REPEATED),
        ],
    ),
    # 2.5 minutes: long in any unit
    case(
        {"memory_pressure": 0.4, "queue_delay_ms": 150000}, want=GIVEN_QUEUE_LONG, hint=HINT_WORD,
        mistakes=[
            ("keep_current_plan", HINT_ALONE), ("disable_optional_cache", HINT_QUEUE_ONLY), ("protect_residency", HINT_PRIORITY_SWAPPED),
            ("latency", HINT_RISK_WORD), ("reduce_batch_size", HINT_REPEATED),
        ],
    ),
    case({"memory_pressure": 0.4, "queue_delay_ms": 160}, want=GIVEN_QUEUE_LONG, hint=HINT_TABLE, mistakes=[("keep_current_plan", HINT_DIVIDED)]),
    case(
        {"queue_delay_ms": 20, "memory_pressure": 0.5}, want=GIVEN_CALM, hint=HINT_WORD,
        mistakes=[("reduce_batch_size", HINT_SECONDS), ("disable_optional_cache", HINT_TABLE), ("keep_current_plan", HINT_REPEATED)],
    ),
    case({"memory_pressure": 0.86, "queue_delay_ms": 70}, want=GIVEN_CALM, hint=HINT_TABLE),
])
### BEGIN HIDDEN TESTS
def hidden_cases():
    rng = hidden_rng("test_policy")
    cases = []
    for _ in range(30):
        pressure, delay, want = rng.choice([
            (rng.uniform(0.96, 1.0), rng.uniform(0, 99), GIVEN_MEMORY_FULL),
            (rng.uniform(0.0, 0.89), rng.uniform(101, 900), GIVEN_QUEUE_LONG),
            (rng.uniform(0.0, 0.89), rng.uniform(0, 99), GIVEN_CALM),
        ])
        cases.append(case({"memory_pressure": pressure, "queue_delay_ms": delay}, want=want, hint=HINT_TABLE))
    return cases


check("test_policy", "select_fallback_policy", hidden_cases(), hidden=True)
### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "test_policy_boundaries", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
HINT_STRICT_MEMORY = "恰好 0.9 不触发，用 > 而不是 >= · strict: exactly 0.9 does not trigger"
HINT_STRICT_QUEUE = "恰好 100 ms 不触发，用 > 而不是 >= · strict: exactly 100 ms does not trigger"
HINT_FULL = "1.0 是全满，也大于 0.9 · 1.0 is full memory, which is above 0.9 too"
HINT_JUST_ABOVE = "刚过阈值就触发，不要取整 · just above the threshold triggers: do not round"

GIVEN_MEMORY_FULL = {"policy": "disable_optional_cache", "priority": "protect_residency"}
GIVEN_QUEUE_LONG = {"policy": "reduce_batch_size", "priority": "protect_latency"}
GIVEN_CALM = {"policy": "keep_current_plan", "priority": "stable"}
check("test_policy_boundaries", "select_fallback_policy", [
    case({"memory_pressure": 0.9, "queue_delay_ms": 20}, want=GIVEN_CALM, hint=HINT_STRICT_MEMORY),
    case({"memory_pressure": 0.5, "queue_delay_ms": 100}, want=GIVEN_CALM, hint=HINT_STRICT_QUEUE),
    case({"memory_pressure": 0.9, "queue_delay_ms": 140}, want=GIVEN_QUEUE_LONG, hint=HINT_STRICT_MEMORY),
    case({"memory_pressure": 0.91, "queue_delay_ms": 20}, want=GIVEN_MEMORY_FULL, hint=HINT_JUST_ABOVE),
    case({"memory_pressure": 0.904, "queue_delay_ms": 20}, want=GIVEN_MEMORY_FULL, hint=HINT_JUST_ABOVE),
    case({"memory_pressure": 1.0, "queue_delay_ms": 20}, want=GIVEN_MEMORY_FULL, hint=HINT_FULL),
    case({"memory_pressure": 0.5, "queue_delay_ms": 100.25}, want=GIVEN_QUEUE_LONG, hint=HINT_JUST_ABOVE),
])
### BEGIN HIDDEN TESTS
def hidden_cases():
    rng = hidden_rng("test_policy_boundaries")
    cases = []
    for _ in range(30):
        memory_step, queue_step = rng.choice([(0, 0), (0, 1), (0, -1), (1, 0), (1, -1), (-1, 0), (-1, 1)])
        state = {
            "memory_pressure": 0.9 + memory_step * rng.uniform(0.001, 0.04),
            "queue_delay_ms": 100 + queue_step * rng.uniform(0.01, 0.9),
        }
        want = {(1, 0): GIVEN_MEMORY_FULL, (1, -1): GIVEN_MEMORY_FULL, (0, 1): GIVEN_QUEUE_LONG, (-1, 1): GIVEN_QUEUE_LONG}.get((memory_step, queue_step), GIVEN_CALM)
        cases.append(case(state, want=want, hint="严格大于才触发，不取整 · strict: only above the threshold triggers, nothing is rounded"))
    return cases


check("test_policy_boundaries", "select_fallback_policy", hidden_cases(), hidden=True)
### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "test_policy_priority", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
HINT_MEMORY_FIRST = "两个都告警时显存优先 · both alarm: memory comes first"
HINT_ONE_RULE = "policy 和 priority 来自同一行 · policy and priority come from the same row"

GIVEN_MEMORY_FULL = {"policy": "disable_optional_cache", "priority": "protect_residency"}
check("test_policy_priority", "select_fallback_policy", [
    case(
        {"memory_pressure": 0.92, "queue_delay_ms": 140}, want=GIVEN_MEMORY_FULL, hint=HINT_MEMORY_FIRST,
        mistakes=[("protect_latency", HINT_ONE_RULE)],
    ),
    case({"queue_delay_ms": 5000, "memory_pressure": 0.91}, want=GIVEN_MEMORY_FULL, hint=HINT_MEMORY_FIRST),
])
### BEGIN HIDDEN TESTS
def hidden_cases():
    rng = hidden_rng("test_policy_priority")
    # Rules in their order as a table; the lowest row that holds wins.
    limits = [("memory_pressure", 0.9), ("queue_delay_ms", 100)]
    rows = [("disable_optional_cache", "protect_residency"), ("reduce_batch_size", "protect_latency"), ("keep_current_plan", "stable")]
    cases = []
    for _ in range(30):
        state = {"queue_delay_ms": rng.choice([20, 120, 400, 9000]), "memory_pressure": rng.choice([0.3, 0.91, 0.95, 0.99])}
        held = [row for row, (field, limit) in enumerate(limits) if state[field] > limit]
        policy, priority = rows[min(held, default=2)]
        cases.append(case(state, want={"policy": policy, "priority": priority}, hint=HINT_MEMORY_FIRST))
    return cases


check("test_policy_priority", "select_fallback_policy", hidden_cases(), hidden=True)
### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "test_policy_defaults", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
HINT_ABSENT = "缺少的字段当作 0.0 · a missing field counts as 0.0"
HINT_WORST = "缺少的字段是 0.0，不是告警 · a missing field is 0.0, it does not alarm"

GIVEN_MEMORY_FULL = {"policy": "disable_optional_cache", "priority": "protect_residency"}
GIVEN_QUEUE_LONG = {"policy": "reduce_batch_size", "priority": "protect_latency"}
GIVEN_CALM = {"policy": "keep_current_plan", "priority": "stable"}
check("test_policy_defaults", "select_fallback_policy", [
    case({"queue_delay_ms": 140}, want=GIVEN_QUEUE_LONG, hint=HINT_ABSENT, mistakes=[("disable_optional_cache", HINT_WORST)]),
    case({"memory_pressure": 0.3}, want=GIVEN_CALM, hint=HINT_ABSENT, mistakes=[("reduce_batch_size", HINT_WORST)]),
    case({"memory_pressure": 0.95}, want=GIVEN_MEMORY_FULL, hint=HINT_ABSENT),
    case({}, want=GIVEN_CALM, hint=HINT_ABSENT, mistakes=[("disable_optional_cache", HINT_WORST), ("reduce_batch_size", HINT_WORST)]),
])
### BEGIN HIDDEN TESTS
def hidden_cases():
    rng = hidden_rng("test_policy_defaults")
    cases = [case({}, want=GIVEN_CALM, hint=HINT_ABSENT)]
    for _ in range(20):
        state, want = rng.choice([
            ({"memory_pressure": rng.uniform(0.91, 1.0)}, GIVEN_MEMORY_FULL),
            ({"memory_pressure": rng.uniform(0.0, 0.89)}, GIVEN_CALM),
            ({"queue_delay_ms": rng.uniform(101, 900)}, GIVEN_QUEUE_LONG),
            ({"queue_delay_ms": rng.uniform(0, 99)}, GIVEN_CALM),
        ])
        cases.append(case(state, want=want, hint=HINT_ABSENT))
    return cases


check("test_policy_defaults", "select_fallback_policy", hidden_cases(), hidden=True)
### END HIDDEN TESTS

# %% [markdown] tags=["zh"]
# ### 策略地图
#
# **问题：** 以显存压力为横轴、排队时间为纵轴，给每一点涂上你的函数选的动作。右上角（两个都告警）是什么颜色？先猜，再运行。
#
# 图的来历：每个格子调用一次你的函数，没有测量。白色圆点是当前状态，两个滑块移动它；图的右边是你的函数在这一点的回答。

# %% [markdown] tags=["en"]
# ### A map of the policy
#
# **Question:** draw memory pressure on the x axis and queue delay on the y axis, and colour each point by the action that your function chooses. What colour is the top right corner, where both alarm? Guess, then run.
#
# How the picture is made: one call of your function per cell; nothing is measured. The white dot is the present state and the two sliders move it; beside the map stands your function's answer at that point.

# %%
with demo("T2"):
    display(policy_panel(select_fallback_policy))

# %% [markdown] tags=["zh"]
# 写对时你会看到：左下是一大块 `keep_current_plan`，左上是 `reduce_batch_size`，0.9 右边从下到上是一整条 `disable_optional_cache`，**包括右上角**，这就是显存优先。
#
# **试一试**：把压力停在 0.90，排队停在 100 ms。两条虚线上都不告警，因为比较是严格的 `>`。再各推一格：哪些告警会响，你的函数听谁的？

# %% [markdown] tags=["en"]
# When it is right you see a large area of `keep_current_plan` at the bottom left, `reduce_batch_size` at the top left, and right of 0.9, from bottom to top, one strip of `disable_optional_cache`, **the top right corner included**: that is memory first.
#
# **Try it**: stop at pressure 0.90 and a queue of 100 ms. On both dashed lines nothing alarms, because the comparison is a strict `>`. Now push each one step further: which alarms ring, and which one does your function obey?

# %% [markdown] tags=["zh"]
# > #### Field case · 现场案例：KV 已经到了，请求却出不了队
# >
# > **现象：** decode 一侧显存耗尽；KV 已经传到的请求又被放回队列，再也没有出来。
# >
# > **问题：** 队列越来越长。缩小批次能让它变短吗？
# >
# > 报告：https://github.com/sgl-project/sglang/issues/6857

# %% [markdown] tags=["en"]
# > #### Field case · The KV has arrived, the request never leaves the queue
# >
# > **Symptom:** the decode side runs out of memory; requests whose KV has already arrived are put back into the queue and never leave it.
# >
# > **Question:** the queue grows and grows. Would a smaller batch shorten it?
# >
# > Report: https://github.com/sgl-project/sglang/issues/6857

# %%
with demo("T2"):
    # A toy: memory stays full, so nothing leaves, and each tick adds 40 ms of queue.
    for tick in range(5):
        state = {"memory_pressure": 0.97, "queue_delay_ms": 40 * tick}
        queue_only = select_fallback_policy({"queue_delay_ms": 40 * tick})
        print(f"{state}: {select_fallback_policy(state)['policy']:<22}  blind to memory: {queue_only['policy']}")

# %% [markdown] tags=["zh"]
# 看不到显存的策略先是什么也不做，到 120 ms 才动手，而且动的是结果。你的策略从第一步起就指向原因。（玩具模型：40 ms 是随手取的。）
#
# **机制：** 排队是结果，显存是原因，所以先管显存。交接是有状态的，重试不能把状态从头来过。

# %% [markdown] tags=["en"]
# The policy that is blind to memory does nothing at first; it acts only at 120 ms, and then on the effect. Yours points at the cause from the first tick. (A toy: the 40 ms are made up.)
#
# **Mechanism:** the queue is the effect, memory is the cause, so memory comes first. A handoff has state, and a retry must not start it over.

# %% [markdown] tags=["zh"]
# **想一想：**
#
# 1. 什么时候 `reduce_batch_size` 反而让队列更长？
# 2. 压力在 0.89 和 0.91 之间来回跳，会发生什么？怎样避免？

# %% [markdown] tags=["en"]
# **Think:**
#
# 1. When does `reduce_batch_size` make the queue longer instead?
# 2. The pressure jumps back and forth between 0.89 and 0.91. What happens, and how would you avoid it?

# %% [markdown] tags=["zh", "answer"]
# **答：**
#
# 1. 当到达的速度高于小批次的吞吐时。decode 每一步都要读一遍权重，批次小了，每步省下的时间很少，吞吐却降了。所以这个动作要配合测量，见第 70 章（尚未发布）。
# 2. 缓存反复关闭又打开，每次都付出代价。可以用两个阈值（例如高于 0.9 才关，低于 0.8 才开），或者规定两次改变之间的最短时间。两者都要记住过去，而本章的函数没有记忆。

# %% [markdown] tags=["en", "answer"]
# **Answer:**
#
# 1. When requests arrive faster than the smaller batch can serve them. Each decode step reads all weights once, so a smaller batch saves little time per step and loses throughput. The action needs a measurement beside it: see chapter 70 (not yet published).
# 2. The cache goes off and on again, and each change costs. Use two thresholds (off only above 0.9, on only below 0.8), or a minimum time between changes. Both have to remember the past; this chapter's function has no memory.

# %% [markdown] tags=["zh"]
# ## Step 3 · 回退保护了什么
#
# **问题：** 值班记录只写了“14:05 执行 disable_optional_cache”。一周后，你还能说出为什么、为了谁吗？
#
# 一条有用的记录回答三个问题：当时的**风险**是什么，动作**保护**了什么，流量是**单一**的还是**混合**的。

# %% [markdown] tags=["en"]
# ## Step 3 · What a fallback protects
#
# **Question:** the log only says "14:05 disable_optional_cache". A week later, can you still tell why, and for whom?
#
# A useful record answers three questions: what the **risk** was, what the action **protects**, and whether the traffic was of a **single** kind or **mixed**.

# %% [markdown] tags=["zh"]
# **问题：** 4 个 `prompt_heavy`、0 个 `decode_heavy`、3 个 `balanced`，算混合吗？
#
# **答：** 不算。混合是指两种**相反**的压力同时存在，于是保护一方的动作可能伤到另一方。`balanced` 不偏向任何一边，所以不参与判断。

# %% [markdown] tags=["en"]
# **Question:** 4 `prompt_heavy`, 0 `decode_heavy`, 3 `balanced`: is that mixed?
#
# **Answer:** no. Mixed means that two **opposite** pressures are present at once, so that an action which protects one may hurt the other. `balanced` leans to neither side and has no say.

# %% [markdown] tags=["zh"]
# TODO 3 的约定：
#
# | `fallback["policy"]` | `risk_level` | `action` |
# | --- | --- | --- |
# | `disable_optional_cache` | `memory` | `protect_residency` |
# | `reduce_batch_size` | `latency` | `protect_latency` |
# | `keep_current_plan`、任何其他词、没有 `policy` | `stable` | `keep_current_plan` |
#
# | `summary` | `workload_scope` |
# | --- | --- |
# | `prompt_heavy > 0` 而且 `decode_heavy > 0` | `mixed` |
# | 其余，包括空字典 | `single` |
#
# | 情形 | 规则 |
# | --- | --- |
# | `summary` 里缺少某一类 | 个数是 0 |
# | `balanced` 的个数 | 不影响结果 |
# | `fallback` 里的 `priority` | 不读它：可能没有，可能不一致，只有 `policy` 说了算 |
# | 比较 `policy` | 整个词相同才算，不看开头或片段 |
# | 返回值 | 字典，只有 `risk_level`、`action`、`workload_scope` 三个键（顺序不限） |
# | 传入的两个字典 | 不被改动 |

# %% [markdown] tags=["en"]
# The contract of TODO 3:
#
# | `fallback["policy"]` | `risk_level` | `action` |
# | --- | --- | --- |
# | `disable_optional_cache` | `memory` | `protect_residency` |
# | `reduce_batch_size` | `latency` | `protect_latency` |
# | `keep_current_plan`, any other word, or no `policy` | `stable` | `keep_current_plan` |
#
# | `summary` | `workload_scope` |
# | --- | --- |
# | `prompt_heavy > 0` and `decode_heavy > 0` | `mixed` |
# | all others, an empty dictionary included | `single` |
#
# | situation | rule |
# | --- | --- |
# | a class is missing in `summary` | its count is 0 |
# | the count of `balanced` | does not matter |
# | `priority` in `fallback` | is not read: it may be missing or disagree, only `policy` decides |
# | comparing `policy` | the whole word counts, not its beginning or a part |
# | result | a dictionary with just the three keys `risk_level`, `action`, `workload_scope` (in any order) |
# | the two dictionaries passed in | are not changed |

# %% [markdown] tags=["zh"]
# **算一遍：** `summary = {"prompt_heavy": 2, "decode_heavy": 1, "balanced": 3}`，显存压力 0.92，排队 140 ms。
#
# 1. TODO 2 给出 `disable_optional_cache`；
# 2. 于是风险是 `memory`，动作是 `protect_residency`；
# 3. 2 > 0 而且 1 > 0，所以是 `mixed`。
#
# 结果：`{"risk_level": "memory", "action": "protect_residency", "workload_scope": "mixed"}`

# %% [markdown] tags=["en"]
# **Worked example:** `summary = {"prompt_heavy": 2, "decode_heavy": 1, "balanced": 3}`, memory pressure 0.92, queue delay 140 ms.
#
# 1. TODO 2 gives `disable_optional_cache`;
# 2. so the risk is `memory`, and the action is `protect_residency`;
# 3. 2 > 0 and 1 > 0, so the scope is `mixed`.
#
# Result: `{"risk_level": "memory", "action": "protect_residency", "workload_scope": "mixed"}`

# %% [markdown] tags=["zh"]
# ### TODO 3 · 写下结果
#
# 完成 `evaluate_fallback_outcome`，然后运行它下面的 4 个检查。它不调用 TODO 1 和 TODO 2，只读它们的结果。

# %% [markdown] tags=["en"]
# ### TODO 3 · Record the outcome
#
# Complete `evaluate_fallback_outcome`, then run the 4 checks below it. It does not call TODO 1 and TODO 2, it only reads their results.

# %% nbgrader={"grade": false, "grade_id": "outcome", "locked": false, "schema_version": 3, "solution": true, "task": false}
def evaluate_fallback_outcome(summary: dict[str, int], fallback: dict[str, str]) -> dict[str, str]:
    """说明一个回退动作保护了什么 · Say what a fallback action protects.

    summary: TODO 1 的计数 · the counts of TODO 1; fallback: TODO 2 的结果 · the result of TODO 2
    返回 · returns {"risk_level": str, "action": str, "workload_scope": str}
    """
    # TODO 3: policy 决定 risk_level 和 action；两个计数决定 workload_scope
    #         the policy decides risk_level and action; two counts decide workload_scope
    ### BEGIN SOLUTION
    policy = fallback.get("policy")
    if policy == "disable_optional_cache":
        risk_level, action = "memory", "protect_residency"
    elif policy == "reduce_batch_size":
        risk_level, action = "latency", "protect_latency"
    else:
        risk_level, action = "stable", "keep_current_plan"
    mixed = summary.get("prompt_heavy", 0) > 0 and summary.get("decode_heavy", 0) > 0
    return {"risk_level": risk_level, "action": action, "workload_scope": "mixed" if mixed else "single"}
    ### END SOLUTION
    raise NotImplementedError("TODO 3 尚未完成 · TODO 3 is not done yet")

# %% nbgrader={"grade": true, "grade_id": "test_outcome", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
HINT_SPELL = "与表中的词逐字相同 · spell the words exactly as the table does"
HINT_RISK_OF = "disable_optional_cache 对应 memory，reduce_batch_size 对应 latency · disable_optional_cache goes with memory, reduce_batch_size with latency"
HINT_ACTION_OF = "memory 对应 protect_residency，latency 对应 protect_latency · memory goes with protect_residency, latency with protect_latency"
HINT_NOT_POLICY = "这里不是 policy 的名字，看表的第 2、3 列 · not the name of the policy: see columns 2 and 3 of the table"
HINT_MIXED = "2 个和 3 个，两类都有：mixed · both heavy classes are present, so mixed"
HINT_AND = "mixed 要求两类都大于 0 · mixed needs prompt_heavy AND decode_heavy above 0"
HINT_KEEP = "stable 时 action 是 keep_current_plan，不是 priority 的词 · when stable, the action is keep_current_plan, not the word of priority"
HINT_STABLE = "没有风险时的词是 stable · without a risk the word is stable"

check("test_outcome", "evaluate_fallback_outcome", [
    case(
        {"prompt_heavy": 3, "decode_heavy": 2, "balanced": 5},
        {"policy": "disable_optional_cache", "priority": "protect_residency"},
        want={"risk_level": "memory", "action": "protect_residency", "workload_scope": "mixed"}, hint=HINT_SPELL,
        mistakes=[("latency", HINT_RISK_OF), ("protect_latency", HINT_ACTION_OF), ("disable_optional_cache", HINT_NOT_POLICY), ("single", HINT_MIXED)],
    ),
    case(
        {"prompt_heavy": 4, "decode_heavy": 0, "balanced": 0},
        {"policy": "reduce_batch_size", "priority": "protect_latency"},
        want={"risk_level": "latency", "action": "protect_latency", "workload_scope": "single"}, hint=HINT_SPELL,
        mistakes=[("memory", HINT_RISK_OF), ("protect_residency", HINT_ACTION_OF), ("reduce_batch_size", HINT_NOT_POLICY), ("mixed", HINT_AND)],
    ),
    case(
        {"decode_heavy": 6, "balanced": 3, "prompt_heavy": 2},
        {"priority": "stable", "policy": "keep_current_plan"},
        want={"risk_level": "stable", "action": "keep_current_plan", "workload_scope": "mixed"}, hint=HINT_SPELL,
        mistakes=[("stable", HINT_KEEP), ("none", HINT_STABLE), ("low", HINT_STABLE), ("keep_current_plan", HINT_NOT_POLICY)],
    ),
])
### BEGIN HIDDEN TESTS
def hidden_cases():
    rng = hidden_rng("test_outcome")
    outcomes = [
        ("disable_optional_cache", "protect_residency", "memory", "protect_residency"),
        ("reduce_batch_size", "protect_latency", "latency", "protect_latency"),
        ("keep_current_plan", "stable", "stable", "keep_current_plan"),
    ]
    cases = []
    for _ in range(20):
        policy, priority, risk_level, action = rng.choice(outcomes)
        heavy, scope = rng.choice([((rng.randint(2, 9), 0), "single"), ((rng.randint(10, 20), rng.randint(2, 9)), "mixed")])
        spare = rng.randint(2, 9) if scope == "mixed" else 0
        summary = dict(zip(rng.sample(["prompt_heavy", "decode_heavy"], 2), heavy, strict=True), balanced=spare)
        cases.append(case(
            summary, {"policy": policy, "priority": priority},
            want={"risk_level": risk_level, "action": action, "workload_scope": scope},
            hint="对照约定中的两张表 · look at the two tables",
        ))
    return cases


check("test_outcome", "evaluate_fallback_outcome", hidden_cases(), hidden=True)
### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "test_outcome_scope", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
HINT_NO_BALANCED = "balanced 不参与判断 · balanced has no say in the scope"
HINT_NOT_ALL = "不需要有 balanced 才算 mixed · mixed does not need any balanced request"
HINT_ONE = "1 个就够 · one request of a class is enough"
HINT_ANY_RATIO = "与多少和比例无关，大于 0 即可 · how many, and in which ratio, does not matter"


def given_scope(prompts, decodes, spare, scope, hint):
    """One case with these three counts and a queue alarm."""
    return case(
        {"prompt_heavy": prompts, "decode_heavy": decodes, "balanced": spare},
        {"policy": "reduce_batch_size", "priority": "protect_latency"},
        want={"workload_scope": scope, "risk_level": "latency", "action": "protect_latency"}, hint=hint,
    )


check("test_outcome_scope", "evaluate_fallback_outcome", [
    given_scope(4, 0, 3, "single", HINT_NO_BALANCED),
    given_scope(0, 5, 2, "single", HINT_NO_BALANCED),
    given_scope(2, 7, 0, "mixed", HINT_NOT_ALL),
    given_scope(1, 6, 3, "mixed", HINT_ONE),
    given_scope(5, 1, 3, "mixed", HINT_ONE),
    given_scope(2, 90, 8, "mixed", HINT_ANY_RATIO),
    given_scope(0, 0, 8, "single", HINT_NO_BALANCED),
])
### BEGIN HIDDEN TESTS
def hidden_cases():
    rng = hidden_rng("test_outcome_scope")
    cases = []
    for _ in range(30):
        counts = {name: rng.choice([0, 1, rng.randint(2, 40)]) for name in ("prompt_heavy", "decode_heavy", "balanced")}
        present = {name for name, count in counts.items() if count}
        scope = ("single", "mixed")[{"prompt_heavy", "decode_heavy"} <= present]
        cases.append(given_scope(counts["prompt_heavy"], counts["decode_heavy"], counts["balanced"], scope, "mixed 恰好在两类都大于 0 时 · mixed exactly when both heavy classes are above 0"))
    return cases


check("test_outcome_scope", "evaluate_fallback_outcome", hidden_cases(), hidden=True)
### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "test_outcome_policies", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
HINT_UNREAD = "只读 policy，不读 priority · read policy only, priority is not read"
HINT_UNKNOWN = "不认识的 policy：stable 和 keep_current_plan · an unknown policy gives stable and keep_current_plan"
HINT_WHOLE = "整个词相同才算 · compare the whole word, not a part of it"
HINT_NO_POLICY = "没有 policy：stable 和 keep_current_plan · without a policy: stable and keep_current_plan"

GIVEN_COUNTS = {"prompt_heavy": 3, "decode_heavy": 2, "balanced": 5}
GIVEN_STABLE = {"risk_level": "stable", "action": "keep_current_plan", "workload_scope": "mixed"}
check("test_outcome_policies", "evaluate_fallback_outcome", [
    case(
        GIVEN_COUNTS, {"policy": "disable_optional_cache"},
        want={"risk_level": "memory", "action": "protect_residency", "workload_scope": "mixed"}, hint=HINT_UNREAD,
    ),
    case(
        GIVEN_COUNTS, {"policy": "reduce_batch_size", "priority": "protect_residency"},
        want={"risk_level": "latency", "action": "protect_latency", "workload_scope": "mixed"}, hint=HINT_UNREAD,
    ),
    case(GIVEN_COUNTS, {"policy": "pause_admission", "priority": "protect_latency"}, want=GIVEN_STABLE, hint=HINT_UNKNOWN, mistakes=[("protect_latency", HINT_UNREAD)]),
    case(GIVEN_COUNTS, {"policy": "reduce_prompt_length"}, want=GIVEN_STABLE, hint=HINT_WHOLE),
    case(GIVEN_COUNTS, {"policy": "disable_optional_cache_soon"}, want=GIVEN_STABLE, hint=HINT_WHOLE),
    case(GIVEN_COUNTS, {"policy": "grow_cache"}, want=GIVEN_STABLE, hint=HINT_WHOLE),
    *(case(GIVEN_COUNTS, {"policy": word}, want=GIVEN_STABLE, hint=HINT_WHOLE) for word in (
        "reduce_batch_size_now", "no_reduce_batch_size", "no_disable_optional_cache", "Reduce_Batch_Size", " reduce_batch_size")),
    case(GIVEN_COUNTS, {}, want=GIVEN_STABLE, hint=HINT_NO_POLICY),
    case(GIVEN_COUNTS, {"priority": "protect_residency"}, want=GIVEN_STABLE, hint=HINT_NO_POLICY),
])
### BEGIN HIDDEN TESTS
def hidden_cases():
    rng = hidden_rng("test_outcome_policies")
    known = {"disable_optional_cache": ("memory", "protect_residency"), "reduce_batch_size": ("latency", "protect_latency")}
    cases = []
    for _ in range(20):
        made_up = f"{rng.choice(['reduce', 'disable', 'swap', 'move'])}_{rng.choice(['cache', 'batch', 'plan', 'model'])}_{rng.randint(2, 99)}"
        policy = rng.choice([*known, made_up])
        risk_level, action = known.get(policy, ("stable", "keep_current_plan"))
        fallback = {"policy": policy, "priority": rng.choice(["stable", "protect_latency", "protect_residency"])}
        cases.append(case(
            GIVEN_COUNTS, fallback, want={"risk_level": risk_level, "action": action, "workload_scope": "mixed"},
            hint="只有 policy 的整个词决定，不认识的是 stable · the whole word of policy decides, an unknown one is stable",
        ))
    return cases


check("test_outcome_policies", "evaluate_fallback_outcome", hidden_cases(), hidden=True)
### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "test_outcome_defaults", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
HINT_ABSENT_CLASS = "缺少的类是 0 个 · a missing class counts 0"
HINT_EMPTY_SUMMARY = "空的 summary 是 single · an empty summary is single"

GIVEN_ALARM = {"policy": "disable_optional_cache", "priority": "protect_residency"}


def given_residency(scope):
    """The record of a memory alarm with this scope."""
    return {"risk_level": "memory", "action": "protect_residency", "workload_scope": scope}


check("test_outcome_defaults", "evaluate_fallback_outcome", [
    case({"prompt_heavy": 3, "balanced": 2}, GIVEN_ALARM, want=given_residency("single"), hint=HINT_ABSENT_CLASS),
    case({"decode_heavy": 4}, GIVEN_ALARM, want=given_residency("single"), hint=HINT_ABSENT_CLASS),
    case({"decode_heavy": 4, "prompt_heavy": 2}, GIVEN_ALARM, want=given_residency("mixed"), hint=HINT_ABSENT_CLASS),
    case({}, GIVEN_ALARM, want=given_residency("single"), hint=HINT_EMPTY_SUMMARY),
])
### BEGIN HIDDEN TESTS
def hidden_cases():
    rng = hidden_rng("test_outcome_defaults")
    cases = [case({}, GIVEN_ALARM, want=given_residency("single"), hint=HINT_EMPTY_SUMMARY)]
    for _ in range(20):
        kept = rng.sample(["prompt_heavy", "decode_heavy", "balanced"], rng.randint(1, 3))
        scope = ("single", "mixed")["prompt_heavy" in kept and "decode_heavy" in kept]
        cases.append(case({name: rng.randint(1, 30) for name in kept}, GIVEN_ALARM, want=given_residency(scope), hint=HINT_ABSENT_CLASS))
    return cases


check("test_outcome_defaults", "evaluate_fallback_outcome", hidden_cases(), hidden=True)
### END HIDDEN TESTS

# %% [markdown] tags=["zh"]
# > #### Field case · 现场案例：并发一高，KV 传输成批失败
# >
# > **现象：** PD 分离时，高并发下 KV 传输大量失败。
# >
# > **问题：** 在下面的玩具里，一次传输只要 8 ms（100 MB，100 Gbps：100 * 8 / 100），为什么请求还是会等太久？
# >
# > 报告：https://github.com/sgl-project/sglang/issues/9266

# %% [markdown] tags=["en"]
# > #### Field case · Many KV transfers fail at high concurrency
# >
# > **Symptom:** with PD disaggregation, many KV transfers fail when concurrency is high.
# >
# > **Question:** in the toy below one transfer takes just 8 ms (100 MB over 100 Gbps: 100 * 8 / 100); why do requests still wait too long?
# >
# > Report: https://github.com/sgl-project/sglang/issues/9266

# %%
with demo("T2", "T3"):
    one_transfer_ms = 100 * 8 / 100  # 100 MB over 100 Gbps: MB * 8 / Gbps is ms
    for together in (4, 8, 13, 14, 32):
        wait_ms = one_transfer_ms * (together - 1)  # the last one waits for all others
        fallback = select_fallback_policy({"memory_pressure": 0.5, "queue_delay_ms": wait_ms})
        print(f"{together:>2} at once, the last waits {wait_ms:>5.0f} ms:",
              evaluate_fallback_outcome({"prompt_heavy": together}, fallback))

# %% [markdown] tags=["zh"]
# 13 个一起，最后一个等 96 ms；14 个，等 104 ms，记录从 `stable` 变成 `latency`。（只算一条队列的等待，不含失败和重试。）
#
# **机制：** 链路是共享的，前面还有队列。负载越高，留给每次交接的时间越少。

# %% [markdown] tags=["en"]
# With 13 at once the last one waits 96 ms; with 14 it waits 104 ms, and the record turns from `stable` to `latency`. (Only the wait in one queue is counted, no failures and no retries.)
#
# **Mechanism:** the link is shared, and there is a queue in front of it. The higher the load, the less time is left for each handoff.

# %% [markdown] tags=["zh"]
# > #### Field case · 现场案例：“没有可用的 prefill worker”
# >
# > **现象：** 请求速率高时，路由器报告没有可用的 prefill worker，所有熔断器都已打开。
# >
# > **问题：** 如果路由器选的动作是 `reject_request`，我们的记录会写什么？
# >
# > 报告：https://github.com/sgl-project/sglang/issues/12355

# %% [markdown] tags=["en"]
# > #### Field case · "No available prefill workers"
# >
# > **Symptom:** at a high request rate the router reports that no prefill worker is available and all circuits are open.
# >
# > **Question:** if the router's action were `reject_request`, what would our record say?
# >
# > Report: https://github.com/sgl-project/sglang/issues/12355

# %%
with demo("T3"):
    print(evaluate_fallback_outcome({"prompt_heavy": 30, "decode_heavy": 12}, {"policy": "reject_request"}))

# %% [markdown] tags=["zh"]
# **机制：** 拒绝要带理由，还要说出哪些池子被拒、为什么。一条记录只能说出它的表里有的东西。
#
# **想一想：** 系统在拒绝请求，记录却写着 `stable`。这条默认规则（不认识的 policy 是 `stable`）好在哪里，坏在哪里？

# %% [markdown] tags=["en"]
# **Mechanism:** a rejection needs a reason, and must say which pools were refused and why. A record can only say what its table knows.
#
# **Think:** the system rejects requests, and the record says `stable`. What is good about this default (an unknown policy is `stable`), and what is bad?

# %% [markdown] tags=["zh", "answer"]
# **答：** 好处：新动作不会让记录程序崩溃。坏处：它把“我不知道”写成了“一切正常”。真实系统应该另设一个词（例如 `unknown`）并告警；39b 的 TODO 4 拒绝时，就在 `rejected_pools` 里写下每个被拒的池子和理由。

# %% [markdown] tags=["en", "answer"]
# **Answer:** good: a new action does not crash the recorder. Bad: it writes "all is well" for "I do not know". A real system should use a separate word (such as `unknown`) and raise an alarm; when TODO 4 of 39b rejects, it names each refused pool with its reasons in `rejected_pools`.

# %% [markdown] tags=["zh"]
# ## Step 4 · 把三步连起来
#
# **问题：** 一次 5 分钟的事故里，哪几分钟的风险是 `memory`？哪几分钟是混合流量？
#
# 先看表猜，再运行。
#
# | 分钟 | 请求（输入 / 生成 × 个数） | `memory_pressure` | `queue_delay_ms` |
# | --- | --- | --- | --- |
# | 0 | 3000 / 64 × 6，800 / 128 × 3 | 0.62 | 15 |
# | 1 | 3000 / 64 × 9，128 / 512 × 2 | 0.81 | 120 |
# | 2 | 3000 / 64 × 5，128 / 512 × 8 | 0.94 | 180 |
# | 3 | 128 / 512 × 7，800 / 128 × 2 | 0.9 | 130 |
# | 4 | 128 / 512 × 3，800 / 128 × 5 | 0.71 | 40 |

# %% [markdown] tags=["en"]
# ## Step 4 · The three steps together
#
# **Question:** in an incident of 5 minutes, in which minutes is the risk `memory`? In which is the traffic mixed?
#
# Guess from the table, then run.
#
# | minute | requests (prompt / generated × how many) | `memory_pressure` | `queue_delay_ms` |
# | --- | --- | --- | --- |
# | 0 | 3000 / 64 × 6, 800 / 128 × 3 | 0.62 | 15 |
# | 1 | 3000 / 64 × 9, 128 / 512 × 2 | 0.81 | 120 |
# | 2 | 3000 / 64 × 5, 128 / 512 × 8 | 0.94 | 180 |
# | 3 | 128 / 512 × 7, 800 / 128 × 2 | 0.9 | 130 |
# | 4 | 128 / 512 × 3, 800 / 128 × 5 | 0.71 | 40 |

# %%
with demo("T1", "T2", "T3"):
    prompt_job = {"prompt_tokens": 3000, "decode_tokens": 64}
    decode_job = {"prompt_tokens": 128, "decode_tokens": 512}
    small_job = {"prompt_tokens": 800, "decode_tokens": 128}
    incident = [
        ([prompt_job] * 6 + [small_job] * 3, 0.62, 15),
        ([prompt_job] * 9 + [decode_job] * 2, 0.81, 120),
        ([prompt_job] * 5 + [decode_job] * 8, 0.94, 180),
        ([decode_job] * 7 + [small_job] * 2, 0.9, 130),
        ([decode_job] * 3 + [small_job] * 5, 0.71, 40),
    ]
    for minute, (arrived, pressure, delay) in enumerate(incident):
        tiers = summarize_inference_tiers(arrived, 2048, 256)
        fallback = select_fallback_policy({"memory_pressure": pressure, "queue_delay_ms": delay})
        record = evaluate_fallback_outcome(tiers, fallback)
        print(f"minute {minute}: {record['risk_level']:<8}{record['action']:<19}{record['workload_scope']:<8}{tiers}")

# %% [markdown] tags=["zh"]
# 写对时：只有第 2 分钟是 `memory`；第 3 分钟的 0.9 等于阈值，所以轮到排队，风险是 `latency`。混合流量只在第 1、2 分钟。（这 5 分钟是编的，不是测量。）

# %% [markdown] tags=["en"]
# When it is right: only minute 2 is `memory`; in minute 3 the 0.9 equals its threshold, so it is the queue's turn and the risk is `latency`. Traffic is mixed in minutes 1 and 2 only. (These 5 minutes are made up, not measured.)

# %% [markdown] tags=["zh"]
# ## 简化了什么
#
# - 长短只有两档。真实系统看整个分布，还要预测生成长度：请求到达时，`decode_tokens` 还不知道。
# - 显存压力和排队时间各是一个数，没有时间，没有趋势。
# - 一次只做一个动作，没有撤销，没有防抖。
# - 两个阈值 0.9 和 100 ms 是为教学定的。
# - 缺少字段当作 0，使函数不会失败；真实监控里，缺少数据本身就是告警。

# %% [markdown] tags=["en"]
# ## What was simplified
#
# - A length is either long or not. Real systems look at the whole distribution, and have to predict the generated length: `decode_tokens` is not known when a request arrives.
# - Memory pressure and queue delay are one number each, without time and without trend.
# - One action at a time, no undo, nothing against flapping.
# - The two thresholds 0.9 and 100 ms were chosen for teaching.
# - A missing field counts as 0, so that the functions do not fail; in real monitoring, missing data are an alarm of their own.

# %% [markdown] tags=["zh"]
# ## 不能得出什么结论
#
# 本章只在 CPU 上运行判断逻辑。它**没有**证明：
#
# - 任何一个动作真的降低了显存、延迟，或者提高了吞吐；
# - 0.9 和 100 ms 适合任何 GPU、任何 backend；
# - 某个 backend（vLLM、SGLang 或其他）就是这样实现的。
#
# 要谈效果，需要固定的 workload、真实的 backend，比较动作前后的显存、失败请求数、TTFT、TPOT 和吞吐。三个函数给出的是这张对比表的行名，不是表里的数。

# %% [markdown] tags=["en"]
# ## What may not be concluded
#
# This chapter only runs decision logic on a CPU. It does **not** show that
#
# - any of the actions really lowers memory or latency, or raises throughput;
# - 0.9 and 100 ms suit any GPU or any backend;
# - some backend (vLLM, SGLang or another) works this way.
#
# To speak about effects one needs a fixed workload and a real backend, and has to compare memory, failed requests, TTFT, TPOT and throughput before and after the action. The three functions name the rows of that table; they do not fill in its numbers.

# %% [markdown] tags=["zh"]
# ## 得分
#
# 可见检查的得分。批改时还会运行隐藏检查：同样的规则，随机的输入。

# %% [markdown] tags=["en"]
# ## Score
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
# - Orca 论文（OSDI 2022），逐步调度的批处理：https://www.usenix.org/conference/osdi22/presentation/yu
# - vLLM 文档：https://docs.vllm.ai/
# - SGLang 仓库：https://github.com/sgl-project/sglang
# - Azure 2023 请求记录的出处：https://github.com/Azure/AzurePublicDataset
# - 本课程接下来的章节：39b 异构 PD 与服务分层；66 推理性能对比实验；70 服务调度基准（66 和 70 尚未发布）

# %% [markdown] tags=["en"]
# ## Related reading
#
# - The Orca paper (OSDI 2022), batching with scheduling at every step: https://www.usenix.org/conference/osdi22/presentation/yu
# - vLLM documentation: https://docs.vllm.ai/
# - SGLang repository: https://github.com/sgl-project/sglang
# - Where the Azure 2023 request traces come from: https://github.com/Azure/AzurePublicDataset
# - Next in this course: 39b Heterogeneous PD and serving tiers; 66 Inference Performance Comparison; 70 Serving Scheduler Benchmark (66 and 70 are not yet published)

# %% tags=["wrong"] todo="tiers" name="swapped-classes" hint="prompt_heavy and decode_heavy are swapped" edits=[["if long_prompt and not", "if not long_prompt and"], ["elif long_decode and not", "elif not long_decode and"]]
# TODO 1: wrong answers, then other right forms. Edits replace text of the solution; a body is a form of its own.

# %% tags=["wrong"] todo="tiers" name="crossed-thresholds" hint="the two thresholds are crossed" edits=[["long_prompt_threshold: int, long_decode_threshold: int", "long_decode_threshold: int, long_prompt_threshold: int"]]

# %% tags=["wrong"] todo="tiers" name="lengths-against-each-other" hint="not the lengths with each other" edits=[["> long_prompt_threshold", "> request.get('decode_tokens', 0)"], ["> long_decode_threshold", "> request.get('prompt_tokens', 0)"]]

# %% tags=["wrong"] todo="tiers" name="neither-dropped" hint="neither long: balanced" edits=[["else:", "elif long_prompt and long_decode:"]]

# %% tags=["wrong"] todo="tiers" name="returns-inside-the-loop" hint="return after the loop" edits=[["    return counts", "        return counts"]]

# %% tags=["wrong"] todo="tiers" name="set-to-one" hint="add 1 for every request" edits=[['["prompt_heavy"] += 1', '["prompt_heavy"] = 1'], ['["decode_heavy"] += 1', '["decode_heavy"] = 1'], ['["balanced"] += 1', '["balanced"] = 1']]

# %% tags=["wrong"] todo="tiers" name="hard-coded-thresholds" hint="the thresholds are arguments" edits=[["> long_prompt_threshold", "> 2048"], ["> long_decode_threshold", "> 256"]]

# %% tags=["wrong"] todo="tiers" name="unique-requests" hint="two equal requests are 2 requests" edits=[["in requests:", "in {str(sorted(r.items())): r for r in requests}.values():"]]

# %% tags=["wrong"] todo="tiers" name="first-left-out" hint="the first request was left out" edits=[["in requests:", "in requests[1:]:"]]

# %% tags=["wrong"] todo="tiers" name="last-left-out" hint="the last request was left out" edits=[["in requests:", "in requests[:-1]:"]]

# %% tags=["wrong"] todo="tiers" name="fields-by-position" hint="read fields by name" edits=[['request.get("prompt_tokens", 0)', "[*request.values(), 0, 0][0]"], ['request.get("decode_tokens", 0)', "[*request.values(), 0, 0][1]"]]

# %% tags=["wrong"] todo="tiers" name="shares" hint="counts, not shares" edits=[["return counts", "return {name: count / max(1, len(requests)) for name, count in counts.items()}"]]

# %% tags=["wrong"] todo="tiers" name="tokens" hint="count requests, not tokens" edits=[['["prompt_heavy"] += 1', '["prompt_heavy"] += request["prompt_tokens"]'], ['["decode_heavy"] += 1', '["decode_heavy"] += request["decode_tokens"]']]

# %% tags=["wrong"] todo="tiers" name="counts-kept-between-calls" hint="keep no counts of the call before" edits=[["long_decode_threshold: int", "long_decode_threshold: int, counts={'prompt_heavy': 0, 'decode_heavy': 0, 'balanced': 0}"], ["    counts = {", "    unused = {"]]

# %% tags=["wrong"] todo="tiers" name="numpy-counts" hint="a numpy or torch scalar" edits=[["return counts", "import numpy\n    return {name: numpy.int64(count) for name, count in counts.items()}"]]

# %% tags=["wrong"] todo="tiers" name="float-counts" hint="wrong type" edits=[["return counts", "return {name: float(count) for name, count in counts.items()}"]]

# %% tags=["wrong"] todo="tiers" name="printed-not-returned" hint="every path needs a return" edits=[["return counts", "print(counts)"]]

# %% tags=["wrong"] todo="tiers" name="total-added" hint="other fields than the table has" edits=[["return counts", "return {**counts, 'total': len(requests)}"]]

# %% tags=["wrong"] todo="tiers" name="field-written-into-request" hint="the function changed its input" edits=[["        if long_prompt", "        request['long'] = long_prompt\n        if long_prompt"]]

# %% tags=["wrong"] todo="tiers" name="list-emptied" hint="the function changed its input" edits=[["for request in requests:", "while requests:\n        request = requests.pop()"]]

# %% tags=["wrong"] todo="tiers" name="setdefault-on-request" hint="the function changed its input" edits=[['get("prompt_tokens"', 'setdefault("prompt_tokens"']]

# %% tags=["wrong"] todo="tiers" name="prompt-inclusive" hint="strict: a prompt equal" edits=[["> long_prompt", ">= long_prompt"]]

# %% tags=["wrong"] todo="tiers" name="decode-inclusive" hint="strict: a generation equal" edits=[["> long_decode", ">= long_decode"]]

# %% tags=["wrong"] todo="tiers" name="short-prompt-strict" hint="still allows decode_heavy" edits=[["elif long_decode and not long_prompt", "elif long_decode and request.get('prompt_tokens', 0) < long_prompt_threshold"]]

# %% tags=["wrong"] todo="tiers" name="short-decode-strict" hint="still allows prompt_heavy" edits=[["if long_prompt and not long_decode", "if long_prompt and request.get('decode_tokens', 0) < long_decode_threshold"]]

# %% tags=["wrong"] todo="tiers" name="one-token-late-prompt" hint="1 token more than the threshold is long" edits=[["> long_prompt", "> 1 + long_prompt"]]

# %% tags=["wrong"] todo="tiers" name="one-token-late-decode" hint="1 token more than the threshold is long" edits=[["> long_decode", "> 1 + long_decode"]]

# %% tags=["wrong"] todo="tiers" name="both-long-is-prompt-heavy" hint="both long is not prompt_heavy" edits=[["if long_prompt and not long_decode", "if long_prompt"]]

# %% tags=["wrong"] todo="tiers" name="both-long-is-decode-heavy" hint="both long is not decode_heavy" edits=[["elif long_decode and not long_prompt", "elif long_decode"]]

# %% tags=["wrong"] todo="tiers" name="both-long-counted-twice" hint="count it once, as balanced" edits=[["if long_prompt and not long_decode", "if long_prompt"], ["elif long_decode and not long_prompt", "if long_decode"], ["else:", "if not long_prompt and not long_decode:"]]

# %% tags=["wrong"] todo="tiers" name="both-long-by-ratio" hint="both long is not decode_heavy" edits=[["and not long_decode", "and request['prompt_tokens'] / long_prompt_threshold >= request['decode_tokens'] / long_decode_threshold"], ["elif long_decode and not long_prompt", "elif long_decode"]]

# %% tags=["wrong"] todo="tiers" name="both-long-dropped" hint="both long was counted nowhere" edits=[["else:", "elif not long_prompt and not long_decode:"]]

# %% tags=["wrong"] todo="tiers" name="key-error-on-prompt" hint="a missing length is 0" edits=[['.get("prompt_tokens", 0)', '["prompt_tokens"]']]

# %% tags=["wrong"] todo="tiers" name="key-error-on-decode" hint="a missing length is 0" edits=[['.get("decode_tokens", 0)', '["decode_tokens"]']]

# %% tags=["wrong"] todo="tiers" name="missing-skipped" hint="a request with a missing length counts too" edits=[["in requests:", "in [r for r in requests if len(r) == 2]:"]]

# %% tags=["wrong"] todo="tiers" name="missing-is-long" hint="a missing length is 0, not a long one" edits=[['"prompt_tokens", 0', '"prompt_tokens", 1e9'], ['"decode_tokens", 0', '"decode_tokens", 1e9']]

# %% tags=["wrong"] todo="tiers" name="missing-is-one" hint="with a threshold of 0" edits=[['"prompt_tokens", 0', '"prompt_tokens", 1'], ['"decode_tokens", 0', '"decode_tokens", 1']]

# %% tags=["wrong"] todo="tiers" name="zero-threshold-replaced" hint="with a threshold of 0" edits=[["> long_prompt_threshold", "> (long_prompt_threshold or 2048)"], ["> long_decode_threshold", "> (long_decode_threshold or 256)"]]

# %% tags=["wrong"] todo="tiers" name="zeros-left-out" hint="a class without requests is 0" edits=[["return counts", "return {name: count for name, count in counts.items() if count or not requests}"]]

# %% tags=["wrong"] todo="tiers" name="empty-gives-empty" hint="a class without requests is 0" edits=[["return counts", "return counts if requests else {}"]]

# %% tags=["wrong"] todo="tiers" name="empty-raises" hint="an empty list gives three zeros" edits=[["    counts = {", "    if not requests:\n        raise ValueError('no requests')\n    counts = {"]]

# %% tags=["right"] todo="tiers" name="table-of-two-answers"
CLASSES = {(True, False): "prompt_heavy", (False, True): "decode_heavy"}


def summarize_inference_tiers(requests, long_prompt, long_decode):
    counts = dict.fromkeys(["balanced", "decode_heavy", "prompt_heavy"], 0)
    for request in requests:
        key = request.get("prompt_tokens", 0) > long_prompt, request.get("decode_tokens", 0) > long_decode
        counts[CLASSES.get(key, "balanced")] += 1
    return counts

# %% tags=["right"] todo="tiers" name="counter-with-zeros"
from collections import Counter


def _tier(request, long_prompt, long_decode):
    long = request.get("prompt_tokens", 0) > long_prompt, request.get("decode_tokens", 0) > long_decode
    return "balanced" if long[0] == long[1] else "prompt_heavy" if long[0] else "decode_heavy"


def summarize_inference_tiers(requests, long_prompt, long_decode):
    counts = Counter(prompt_heavy=0, decode_heavy=0, balanced=0)
    counts.update(_tier(request, long_prompt, long_decode) for request in requests)
    return counts

# %% tags=["right"] todo="tiers" name="match-on-tuple"
def summarize_inference_tiers(requests, long_prompt, long_decode):
    counts = {"balanced": 0, "prompt_heavy": 0, "decode_heavy": 0}
    for request in requests:
        match request.get("prompt_tokens", 0) > long_prompt, request.get("decode_tokens", 0) > long_decode:
            case True, False:
                counts["prompt_heavy"] += 1
            case False, True:
                counts["decode_heavy"] += 1
            case _:
                counts["balanced"] += 1
    return counts

# %% tags=["right"] todo="tiers" name="sets-of-indices"
def summarize_inference_tiers(requests, long_prompt, long_decode):
    prompts = {i for i, request in enumerate(requests) if request.get("prompt_tokens", 0) > long_prompt}
    decodes = {i for i, request in enumerate(requests) if request.get("decode_tokens", 0) > long_decode}
    only_prompts, only_decodes = len(prompts - decodes), len(decodes - prompts)
    return {"prompt_heavy": only_prompts, "decode_heavy": only_decodes, "balanced": len(requests) - only_prompts - only_decodes}

# %% tags=["right"] todo="tiers" name="key-error-caught"
def read(request, field):
    try:
        return request[field]
    except KeyError:
        return 0


def summarize_inference_tiers(requests, long_prompt, long_decode):
    pairs = [(read(request, "prompt_tokens") > long_prompt, read(request, "decode_tokens") > long_decode) for request in requests]
    counts = dict(prompt_heavy=pairs.count((True, False)), decode_heavy=pairs.count((False, True)))
    return {**counts, "balanced": len(pairs) - sum(counts.values())}

# %% tags=["right"] todo="tiers" name="str-enum-keys"
from enum import Enum

Tier = Enum("Tier", {"PROMPT": "prompt_heavy", "DECODE": "decode_heavy", "BALANCED": "balanced"}, type=str)
ours = summarize_inference_tiers


def summarize_inference_tiers(requests, long_prompt, long_decode):
    return {Tier(name): count for name, count in ours(requests, long_prompt, long_decode).items()}

# %% tags=["right"] todo="tiers" name="defaultdict-and-copies"
from collections import defaultdict


def summarize_inference_tiers(requests, long_prompt, long_decode):
    counts = defaultdict(int, prompt_heavy=0, decode_heavy=0, balanced=0)
    for request in [{"prompt_tokens": 0, "decode_tokens": 0, **request} for request in requests]:
        excess = request["prompt_tokens"] - long_prompt, request["decode_tokens"] - long_decode
        one_is_long = min(excess) <= 0 < max(excess)
        counts["balanced" if not one_is_long else "prompt_heavy" if excess[0] > 0 else "decode_heavy"] += 1
    return counts

# %% tags=["right"] todo="tiers" name="vectorised-with-item"
import numpy as np


def summarize_inference_tiers(requests, long_prompt, long_decode):
    prompt = np.array([request.get("prompt_tokens", 0) for request in requests]) > long_prompt
    decode = np.array([request.get("decode_tokens", 0) for request in requests]) > long_decode
    classes = {"prompt_heavy": prompt & ~decode, "decode_heavy": decode & ~prompt, "balanced": prompt == decode}
    return {name: members.sum().item() for name, members in classes.items()}

# %% tags=["wrong"] todo="policy" name="percent" hint="a fraction from 0 to 1, not a percentage" edits=[["> 0.9", "> 90"]]
# TODO 2: wrong answers, then other right forms.

# %% tags=["wrong"] todo="policy" name="needs-both-alarms" hint="it alone is enough" edits=[["> 0.9", "> 0.9 and system_state.get('queue_delay_ms', 0.0) > 100"]]

# %% tags=["wrong"] todo="policy" name="seconds" hint="do not count in seconds" edits=[["> 100", "> 0.1"]]

# %% tags=["wrong"] todo="policy" name="ms-to-seconds" hint="do not divide it" edits=[["> 100", "/ 1000 > 100"]]

# %% tags=["wrong"] todo="policy" name="lower-threshold" hint="look at the three rows of the table" edits=[["> 0.9", "> 0.8"]]

# %% tags=["wrong"] todo="policy" name="nested-checks" hint="check the queue even when memory is calm"
def select_fallback_policy(system_state):
    if system_state.get("memory_pressure", 0.0) > 0.9:
        if system_state.get("queue_delay_ms", 0.0) > 100:
            return {"policy": "reduce_batch_size", "priority": "protect_latency"}
        return {"policy": "disable_optional_cache", "priority": "protect_residency"}
    return {"policy": "keep_current_plan", "priority": "stable"}

# %% tags=["wrong"] todo="policy" name="any-alarm-drops-cache" hint="only the queue alarms" edits=[["> 0.9", "> 0.9 or system_state.get('queue_delay_ms', 0.0) > 100"]]

# %% tags=["wrong"] todo="policy" name="fields-swapped" hint="only the queue alarms" edits=[['"memory_pressure", 0.0) > 0.9', '"queue_delay_ms", 0.0) > 0.9'], ['"queue_delay_ms", 0.0) > 100', '"memory_pressure", 0.0) > 100']]

# %% tags=["wrong"] todo="policy" name="policies-swapped" hint="memory asks for disable_optional_cache" edits=[['"disable_optional_cache"', '"reduce_batch_size"'], ['"reduce_batch_size", "priority": "protect_latency"', '"disable_optional_cache", "priority": "protect_latency"']]

# %% tags=["wrong"] todo="policy" name="priorities-swapped" hint="the two priorities are swapped" edits=[['"protect_residency"', '"protect_latency"'], ['"reduce_batch_size", "priority": "protect_latency"', '"reduce_batch_size", "priority": "protect_residency"']]

# %% tags=["wrong"] todo="policy" name="risk-words" hint="memory and latency are words of TODO 3" edits=[["protect_residency", "memory"], ["protect_latency", "latency"]]

# %% tags=["wrong"] todo="policy" name="priority-repeats-policy" hint="priority does not repeat the policy" edits=[["protect_residency", "disable_optional_cache"], ["protect_latency", "reduce_batch_size"]]

# %% tags=["wrong"] todo="policy" name="keep-repeated" hint="priority does not repeat the policy" edits=[['"stable"', '"keep_current_plan"']]

# %% tags=["wrong"] todo="policy" name="policy-only" hint="return a dictionary of two fields" edits=[['{"policy": "disable_optional_cache", "priority": "protect_residency"}', '"disable_optional_cache"']]

# %% tags=["wrong"] todo="policy" name="default-forgotten" hint="every path needs a return" edits=[['return {"policy": "keep_current_plan", "priority": "stable"}', "pass"]]

# %% tags=["wrong"] todo="policy" name="misspelt-word" hint="spell the words exactly" edits=[["reduce_batch_size", "reduce_batchsize"]]

# %% tags=["wrong"] todo="policy" name="none-for-stable" hint="spell the words exactly" edits=[['"stable"', '"none"']]

# %% tags=["wrong"] todo="policy" name="state-returned" hint="other fields than the table has" edits=[['{"policy": "disable', '{**system_state, "policy": "disable']]

# %% tags=["wrong"] todo="policy" name="renamed-field" hint="other fields than the table has" edits=[['"policy": "disable', '"action": "disable']]

# %% tags=["wrong"] todo="policy" name="fields-dropped-by-pop" hint="the function changed its input" edits=[['get("memory_pressure"', 'pop("memory_pressure"']]

# %% tags=["wrong"] todo="policy" name="setdefault-on-state" hint="the function changed its input" edits=[['get("memory_pressure"', 'setdefault("memory_pressure"']]

# %% tags=["wrong"] todo="policy" name="memory-inclusive" hint="strict: exactly 0.9" edits=[["> 0.9", ">= 0.9"]]

# %% tags=["wrong"] todo="policy" name="queue-inclusive" hint="strict: exactly 100 ms" edits=[["> 100", ">= 100"]]

# %% tags=["wrong"] todo="policy" name="memory-rounded" hint="do not round" edits=[['system_state.get("memory_pressure", 0.0)', 'round(system_state.get("memory_pressure", 0.0), 1)']]

# %% tags=["wrong"] todo="policy" name="queue-truncated" hint="do not round" edits=[['system_state.get("queue_delay_ms", 0.0)', 'int(system_state.get("queue_delay_ms", 0.0))']]

# %% tags=["wrong"] todo="policy" name="other-threshold" hint="do not round" edits=[["> 0.9", "> 0.92"]]

# %% tags=["wrong"] todo="policy" name="queue-first" hint="memory comes first" edits=[["> 0.9", "> 0.9 and system_state.get('queue_delay_ms', 0.0) <= 100"]]

# %% tags=["wrong"] todo="policy" name="larger-excess-wins" hint="memory comes first" edits=[["> 0.9", "> 0.9 * max(1, system_state.get('queue_delay_ms', 0.0) / 100)"]]

# %% tags=["wrong"] todo="policy" name="two-actions" hint="memory comes first" edits=[['"disable_optional_cache"', '"disable_optional_cache" + "+reduce_batch_size" * (system_state.get("queue_delay_ms", 0.0) > 100)']]

# %% tags=["wrong"] todo="policy" name="priority-overwritten" hint="policy and priority come from the same row" edits=[['"protect_residency"', '"protect_latency" if system_state.get("queue_delay_ms", 0.0) > 100 else "protect_residency"']]

# %% tags=["wrong"] todo="policy" name="key-error-on-memory" hint="a missing field counts as 0.0" edits=[['.get("memory_pressure", 0.0)', '["memory_pressure"]']]

# %% tags=["wrong"] todo="policy" name="key-error-on-queue" hint="a missing field counts as 0.0" edits=[['.get("queue_delay_ms", 0.0)', '["queue_delay_ms"]']]

# %% tags=["wrong"] todo="policy" name="none-default" hint="a missing field counts as 0.0" edits=[['"queue_delay_ms", 0.0', '"queue_delay_ms"']]

# %% tags=["wrong"] todo="policy" name="missing-memory-is-full" hint="it does not alarm" edits=[['"memory_pressure", 0.0', '"memory_pressure", 1.0']]

# %% tags=["wrong"] todo="policy" name="missing-queue-is-endless" hint="it does not alarm" edits=[['"queue_delay_ms", 0.0', '"queue_delay_ms", float("inf")']]

# %% tags=["wrong"] todo="policy" name="empty-raises" hint="a missing field counts as 0.0" edits=[['    if system_state.get("memory', '    if not system_state:\n        raise ValueError("no state")\n    if system_state.get("memory']]

# %% tags=["wrong"] todo="policy" name="full-is-no-alarm" hint="full memory" edits=[["> 0.9:", "> 0.9 and system_state[\"memory_pressure\"] < 1:"]]

# %% tags=["wrong"] todo="policy" name="hundredths" hint="just above" edits=[["if system_state.get(\"memory_pressure\", 0.0) > 0.9", "if round(system_state.get(\"memory_pressure\", 0.0), 2) > 0.9"]]

# %% tags=["right"] todo="policy" name="rules-in-a-table"
TABLE = [
    ("memory_pressure", 0.9, "disable_optional_cache", "protect_residency"),
    ("queue_delay_ms", 100, "reduce_batch_size", "protect_latency"),
]


def select_fallback_policy(system_state):
    for field, limit, policy, priority in TABLE:
        if system_state.get(field, 0.0) > limit:
            return {"policy": policy, "priority": priority}
    return {"policy": "keep_current_plan", "priority": "stable"}

# %% tags=["right"] todo="policy" name="match-on-two-answers"
def select_fallback_policy(system_state):
    match system_state.get("memory_pressure", 0.0) > 0.9, system_state.get("queue_delay_ms", 0.0) > 100:
        case True, _:
            return {"policy": "disable_optional_cache", "priority": "protect_residency"}
        case _, True:
            return {"policy": "reduce_batch_size", "priority": "protect_latency"}
    return {"policy": "keep_current_plan", "priority": "stable"}

# %% tags=["right"] todo="policy" name="overwritten-by-memory-last"
def select_fallback_policy(system_state):
    priority, policy = "stable", "keep_current_plan"
    if "queue_delay_ms" in system_state and system_state["queue_delay_ms"] > 100:
        priority, policy = "protect_latency", "reduce_batch_size"
    if "memory_pressure" in system_state and system_state["memory_pressure"] > 0.9:
        priority, policy = "protect_residency", "disable_optional_cache"
    return {"priority": priority, "policy": policy}

# %% tags=["right"] todo="policy" name="str-enums"
from enum import Enum

Policy = Enum("Policy", {"CACHE": "disable_optional_cache", "BATCH": "reduce_batch_size", "KEEP": "keep_current_plan"}, type=str)
Priority = Enum("Priority", {"CACHE": "protect_residency", "BATCH": "protect_latency", "KEEP": "stable"}, type=str)


def select_fallback_policy(system_state):
    state = {"memory_pressure": 0.0, "queue_delay_ms": 0.0, **system_state}
    name = "CACHE" if state["memory_pressure"] > 0.9 else "BATCH" if state["queue_delay_ms"] > 100 else "KEEP"
    return {"policy": Policy[name], "priority": Priority[name]}

# %% tags=["right"] todo="policy" name="ordered-dict"
from collections import OrderedDict

ours = select_fallback_policy


def select_fallback_policy(system_state):
    return OrderedDict(sorted(ours(system_state).items(), reverse=True))

# %% tags=["right"] todo="policy" name="percent-and-seconds-converted" edits=[["> 0.9", "* 100 > 90"], ["> 100", "/ 1000 > 0.1"]]

# %% tags=["right"] todo="policy" name="not-less-or-equal" edits=[['system_state.get("memory_pressure", 0.0) > 0.9', 'not system_state.get("memory_pressure", 0.0) <= 0.9'], ['system_state.get("queue_delay_ms", 0.0) > 100', 'not system_state.get("queue_delay_ms", 0.0) <= 100']]

# %% tags=["right"] todo="policy" name="dict-subclass-with-helper"
class Decision(dict):
    """A decision with attributes."""

    policy = property(lambda self: self["policy"])


def _alarm(state):
    return "memory" if state.get("memory_pressure", 0) > 0.9 else "queue" if state.get("queue_delay_ms", 0) > 100 else None


def select_fallback_policy(system_state):
    words = {"memory": ("disable_optional_cache", "protect_residency"), "queue": ("reduce_batch_size", "protect_latency")}
    policy, priority = words.get(_alarm(system_state), ("keep_current_plan", "stable"))
    return Decision(priority=priority, policy=policy)

# %% tags=["wrong"] todo="outcome" name="risks-swapped" hint="goes with memory, reduce_batch_size" edits=[['"memory", "protect_residency"', '"latency", "protect_residency"'], ['"latency", "protect_latency"', '"memory", "protect_latency"']]
# TODO 3: wrong answers, then other right forms.

# %% tags=["wrong"] todo="outcome" name="actions-swapped" hint="memory goes with protect_residency" edits=[['"memory", "protect_residency"', '"memory", "protect_latency"'], ['"latency", "protect_latency"', '"latency", "protect_residency"']]

# %% tags=["wrong"] todo="outcome" name="policy-chosen-again" hint="goes with memory, reduce_batch_size" edits=[['fallback.get("policy")', 'select_fallback_policy({"queue_delay_ms": 140})["policy"]']]

# %% tags=["wrong"] todo="outcome" name="action-is-policy" hint="not the name of the policy" edits=[['"action": action', '"action": policy']]

# %% tags=["wrong"] todo="outcome" name="action-is-priority" hint="not the word of priority" edits=[['"action": action', '"action": fallback.get("priority")']]

# %% tags=["wrong"] todo="outcome" name="stable-twice" hint="not the word of priority" edits=[['"stable", "keep_current_plan"', '"stable", "stable"']]

# %% tags=["wrong"] todo="outcome" name="keep-as-risk" hint="not the name of the policy" edits=[['"stable", "keep_current_plan"', '"keep_current_plan", "keep_current_plan"']]

# %% tags=["wrong"] todo="outcome" name="no-risk-is-none" hint="without a risk the word is stable" edits=[['"stable", "keep', '"none", "keep']]

# %% tags=["wrong"] todo="outcome" name="scope-other-word" hint="spell the words exactly" edits=[['"single"', '"pure"']]

# %% tags=["wrong"] todo="outcome" name="scope-as-bool" hint="wrong type" edits=[['"mixed" if mixed else "single"', "mixed"]]

# %% tags=["wrong"] todo="outcome" name="scope-swapped" hint="both heavy classes are present" edits=[['"mixed" if mixed else "single"', '"single" if mixed else "mixed"']]

# %% tags=["wrong"] todo="outcome" name="mixed-by-or" hint="mixed needs prompt_heavy AND decode_heavy" edits=[["> 0 and", "> 0 or"]]

# %% tags=["wrong"] todo="outcome" name="mixed-from-zero" hint="mixed needs prompt_heavy AND decode_heavy" edits=[['"prompt_heavy", 0) > 0', '"prompt_heavy", 0) >= 0'], ['"decode_heavy", 0) > 0', '"decode_heavy", 0) >= 0']]

# %% tags=["wrong"] todo="outcome" name="mixed-by-keys" hint="mixed needs prompt_heavy AND decode_heavy" edits=[["if mixed", "if 'prompt_heavy' in summary and 'decode_heavy' in summary"]]

# %% tags=["wrong"] todo="outcome" name="renamed-scope" hint="other fields than the table has" edits=[['"workload_scope": "mixed"', '"scope": "mixed"']]

# %% tags=["wrong"] todo="outcome" name="fallback-kept-in-result" hint="other fields than the table has" edits=[["    return {", "    return {**fallback, "]]

# %% tags=["wrong"] todo="outcome" name="risk-written-into-fallback" hint="the function changed its input" edits=[["    mixed =", "    fallback['risk_level'] = risk_level\n    mixed ="]]

# %% tags=["wrong"] todo="outcome" name="balanced-popped" hint="the function changed its input" edits=[["    mixed =", "    summary.pop('balanced', None)\n    mixed ="]]

# %% tags=["wrong"] todo="outcome" name="setdefault-on-summary" hint="the function changed its input" edits=[['get("prompt_heavy"', 'setdefault("prompt_heavy"']]

# %% tags=["wrong"] todo="outcome" name="mixed-by-two-classes" hint="balanced has no say" edits=[["if mixed", "if sum(count > 0 for count in summary.values()) >= 2"]]

# %% tags=["wrong"] todo="outcome" name="mixed-by-balanced-as-prompt" hint="balanced has no say" edits=[['summary.get("prompt_heavy", 0)', 'summary.get("prompt_heavy", 0) + summary.get("balanced", 0)']]

# %% tags=["wrong"] todo="outcome" name="mixed-by-balanced-alone" hint="balanced has no say" edits=[["if mixed", "if mixed or summary.get('balanced', 0) > 5"]]

# %% tags=["wrong"] todo="outcome" name="mixed-by-all-three" hint="mixed does not need any balanced" edits=[["if mixed", "if mixed and summary.get('balanced', 0) > 0"]]

# %% tags=["wrong"] todo="outcome" name="mixed-prompt-from-two" hint="one request of a class is enough" edits=[['"prompt_heavy", 0) > 0', '"prompt_heavy", 0) > 1']]

# %% tags=["wrong"] todo="outcome" name="mixed-decode-from-two" hint="one request of a class is enough" edits=[['"decode_heavy", 0) > 0', '"decode_heavy", 0) > 1']]

# %% tags=["wrong"] todo="outcome" name="mixed-when-near-equal" hint="how many, and in which ratio" edits=[["if mixed", "if mixed and summary['decode_heavy'] < 10 * summary['prompt_heavy']"]]

# %% tags=["wrong"] todo="outcome" name="priority-read-for-risk" hint="read policy only" edits=[['fallback.get("policy")', 'fallback["priority"]'], ["disable_optional_cache", "protect_residency"], ["reduce_batch_size", "protect_latency"]]

# %% tags=["wrong"] todo="outcome" name="action-from-priority" hint="read policy only" edits=[['"action": action', '"action": fallback.get("priority", "stable").replace("stable", "keep_current_plan")']]

# %% tags=["wrong"] todo="outcome" name="action-from-priority-when-unknown" hint="read policy only" edits=[['"stable", "keep_current_plan"', '"stable", fallback.get("priority", "stable").replace("stable", "keep_current_plan")']]

# %% tags=["wrong"] todo="outcome" name="unknown-raises" hint="an unknown policy gives stable" edits=[["    else:", "    elif policy not in (None, 'keep_current_plan'):\n        raise ValueError(policy)\n    else:"]]

# %% tags=["wrong"] todo="outcome" name="unknown-is-latency" hint="an unknown policy gives stable" edits=[['policy == "reduce_batch_size"', 'policy not in (None, "keep_current_plan")']]

# %% tags=["wrong"] todo="outcome" name="unknown-action-repeated" hint="an unknown policy gives stable" edits=[['"stable", "keep_current_plan"', '"stable", policy or "keep_current_plan"']]

# %% tags=["wrong"] todo="outcome" name="policy-by-beginning" hint="compare the whole word" edits=[['policy == "disable_optional_cache"', 'str(policy).startswith("disable")'], ['policy == "reduce_batch_size"', 'str(policy).startswith("reduce")']]

# %% tags=["wrong"] todo="outcome" name="policy-by-part" hint="compare the whole word" edits=[['policy == "disable_optional_cache"', '"disable_optional_cache" in str(policy)']]

# %% tags=["wrong"] todo="outcome" name="policy-by-end" hint="compare the whole word" edits=[['policy == "disable_optional_cache"', 'str(policy).endswith("cache")']]

# %% tags=["wrong"] todo="outcome" name="key-error-on-policy" hint="without a policy" edits=[['fallback.get("policy")', 'fallback["policy"]']]

# %% tags=["wrong"] todo="outcome" name="key-error-on-prompts" hint="a missing class counts 0" edits=[['.get("prompt_heavy", 0)', '["prompt_heavy"]']]

# %% tags=["wrong"] todo="outcome" name="key-error-on-decodes" hint="a missing class counts 0" edits=[['.get("decode_heavy", 0)', '["decode_heavy"]']]

# %% tags=["wrong"] todo="outcome" name="missing-class-is-one" hint="a missing class counts 0" edits=[['"prompt_heavy", 0', '"prompt_heavy", 1'], ['"decode_heavy", 0', '"decode_heavy", 1']]

# %% tags=["wrong"] todo="outcome" name="empty-is-mixed" hint="an empty summary is single" edits=[["if mixed", "if mixed or not summary"]]

# %% tags=["wrong"] todo="outcome" name="word-inside" hint="the whole word" edits=[["policy == \"reduce_batch_size\"", "\"reduce_batch_size\" in (policy or \"\")"]]

# %% tags=["wrong"] todo="outcome" name="word-at-the-end" hint="the whole word" edits=[["policy == \"disable_optional_cache\"", "(policy or \"\").endswith(\"disable_optional_cache\")"]]

# %% tags=["wrong"] todo="outcome" name="any-case" hint="the whole word" edits=[["policy = fallback.get(\"policy\")", "policy = fallback.get(\"policy\", \"\").strip().lower()"]]

# %% tags=["wrong"] todo="outcome" name="priority-instead" hint="without a policy" edits=[["policy = fallback.get(\"policy\")", "policy = fallback.get(\"policy\") or {\"protect_residency\": \"disable_optional_cache\"}.get(fallback.get(\"priority\"))"]]

# %% tags=["right"] todo="outcome" name="table"
def evaluate_fallback_outcome(summary, fallback):
    outcomes = {"disable_optional_cache": ("memory", "protect_residency"), "reduce_batch_size": ("latency", "protect_latency")}
    risk_level, action = outcomes.get(fallback.get("policy"), ("stable", "keep_current_plan"))
    mixed = summary.get("prompt_heavy", 0) > 0 and summary.get("decode_heavy", 0) > 0
    return {"risk_level": risk_level, "action": action, "workload_scope": "mixed" if mixed else "single"}

# %% tags=["right"] todo="outcome" name="match-on-policy"
def evaluate_fallback_outcome(summary, fallback):
    match fallback.get("policy"):
        case "disable_optional_cache":
            outcome = {"risk_level": "memory", "action": "protect_residency"}
        case "reduce_batch_size":
            outcome = {"risk_level": "latency", "action": "protect_latency"}
        case _:
            outcome = {"risk_level": "stable", "action": "keep_current_plan"}
    both = min(summary.get("prompt_heavy", 0), summary.get("decode_heavy", 0))
    return outcome | {"workload_scope": "mixed" if both else "single"}

# %% tags=["right"] todo="outcome" name="mixed-by-product" edits=[["> 0 and summary", "* summary"], ['"mixed" if mixed else "single"', '("single", "mixed")[mixed]']]

# %% tags=["right"] todo="outcome" name="mixed-by-set"
def evaluate_fallback_outcome(summary, fallback):
    present = {name for name, count in summary.items() if count}
    result = {"workload_scope": "mixed" if {"prompt_heavy", "decode_heavy"} <= present else "single"}
    result["action"], result["risk_level"] = {
        "disable_optional_cache": ("protect_residency", "memory"),
        "reduce_batch_size": ("protect_latency", "latency"),
    }.get(fallback.get("policy"), ("keep_current_plan", "stable"))
    return result

# %% tags=["right"] todo="outcome" name="str-enums"
from enum import Enum

Risk = Enum("Risk", {"MEMORY": "memory", "LATENCY": "latency", "STABLE": "stable"}, type=str)
ours = evaluate_fallback_outcome


def evaluate_fallback_outcome(summary, fallback):
    result = ours(summary, fallback)
    return {**result, "risk_level": Risk(result["risk_level"])}

# %% tags=["right"] todo="outcome" name="dict-subclass-and-helpers"
class Outcome(dict):
    """The record of one fallback."""


def _count(summary, name):
    return summary[name] if name in summary else 0


ours = evaluate_fallback_outcome


def evaluate_fallback_outcome(summary, fallback):
    mixed = all(_count(summary, name) for name in ("prompt_heavy", "decode_heavy"))
    return Outcome(ours(summary, fallback), workload_scope="mixed" if mixed else "single")

# %% tags=["right"] todo="outcome" name="copies-with-defaults"
def evaluate_fallback_outcome(summary, fallback):
    counts = dict(prompt_heavy=0, decode_heavy=0) | summary
    policy = (dict(policy=None) | fallback)["policy"]
    memory, latency = policy == "disable_optional_cache", policy == "reduce_batch_size"
    return {
        "workload_scope": "mixed" if counts["prompt_heavy"] and counts["decode_heavy"] else "single",
        "action": "protect_residency" if memory else "protect_latency" if latency else "keep_current_plan",
        "risk_level": "memory" if memory else "latency" if latency else "stable",
    }
