"""How a slider feels: from key press to changed picture, in a real JupyterLab and a real browser.

`python -m autograde.benchmarks.sliders` opens our crossover panel and the same plot made with
`interact` and `plt.show` in the JupyterLab of `make lab`, presses arrow keys in both, and ends with one JSON line:

- median_ms, p95_ms: key press to decoded new picture, our panel, single presses;
- settle_ms: from the last of 50 quick presses to the last change of the picture;
- interact_median_ms, ratio: the same press with `interact`, and how many times slower that is;
- stock_median_ms, stock_p95_ms: our panel in a JupyterLab without `make lab`'s jupyter_server_config.py;
- node_kept: whether the image node stayed the same; page_jump_px: how far it moved on the page.
"""
import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

import nbformat
from nbformat import v4

from autograde.browser import chromium, jupyter_lab, run_notebook
from autograde.errors import InputError
from autograde.paths import AUTOGRADE

PANEL_SOURCE = "from toolkit.crossover_panels import crossover_panel\ncrossover_panel()"
INTERACT_SOURCE = """
import matplotlib.pyplot as plt
import numpy as np
from ipywidgets import SelectionSlider, interact
from toolkit.costs import GPUS, MODELS, prefill_recompute, transfer_ms
from toolkit.crossover_panels import example_cpu_sources, link_values


def plot(link_gbps):
    figure, plots = plt.subplots(1, 2, figsize=(9, 4), dpi=100)
    gpu = prefill_recompute(MODELS["Llama-3.1-8B"], GPUS["H100 SXM"])
    for axes, recompute, link, most in (
        (plots[0], example_cpu_sources()[1].recompute, link_gbps, 4096), (plots[1], gpu, 25, 131072),
    ):
        n = np.geomspace(32, most, 120)
        axes.plot(n, transfer_ms(n * recompute.kv_bytes / 1e6, link), "--")
        axes.plot(n, recompute.ms(n))
        crossings = np.array(recompute.crossing_tokens(link))
        axes.plot(crossings, recompute.ms(crossings), "kD")
        axes.set(xscale="log", yscale="log", xlabel="prompt tokens", ylabel="ms", title=f"link {link:g} Gbps")
        axes.grid()
    plt.show()


interact(plot, link_gbps=SelectionSlider(options=link_values(0.02, 2), value=0.17))
"""
# Notes each key press, and each change of a picture below the cell once it is decoded.
WATCH = """
selector => {
  const area = document.querySelector(selector);
  const seen = window.watched = {pressed: [], changed: [], tops: [], image: area.querySelector('img')};
  document.addEventListener('keydown', event => seen.pressed.push(event.timeStamp), true);
  const note = image => image.decode().then(() => seen.changed.push(performance.now()), () => {});
  new MutationObserver(records => {
    const images = new Set();
    for (const record of records) {
      if (record.type === 'attributes') images.add(record.target);
      for (const node of record.addedNodes)
        if (node.nodeType === 1) for (const image of node.matches('img') ? [node] : node.querySelectorAll('img'))
          images.add(image);
    }
    images.forEach(note);
  }).observe(area, {subtree: true, childList: true, attributes: true, attributeFilter: ['src']});
  const follow = () => {
    seen.tops.push(seen.image.getBoundingClientRect().top);
    requestAnimationFrame(follow);
  };
  follow();
}
"""
OUTPUT_AREA = ".jp-Cell-outputArea"


def main(arguments=None):
    """Run the benchmark; returns the exit status: 1 when the node was replaced or the page jumped."""
    parser = argparse.ArgumentParser(prog="python -m autograde.benchmarks.sliders", description=__doc__.split("\n")[0])
    parser.add_argument("--presses", type=int, default=100, help="single key presses in our panel")
    parser.add_argument("--quick", type=int, default=50, help="key presses without a pause")
    parser.add_argument("--interact-presses", type=int, default=20, help="single key presses with interact")
    parser.add_argument("--browser", help="path of a Chromium; default: the one on PATH")
    options = parser.parse_args(arguments)
    try:
        result = measure(options.presses, options.quick, options.interact_presses, options.browser)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(result))
    return 0 if result["node_kept"] and result["page_jump_px"] < 1 else 1


def measure(presses=100, quick=50, interact_presses=20, browser=None):
    """The figures of the module's docstring, as a dict. Raises InputError when no browser can be driven."""
    with tempfile.TemporaryDirectory() as folder, chromium(browser) as driven:
        for name, source in (("panel", PANEL_SOURCE), ("interact", INTERACT_SOURCE)):
            kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
            notebook = v4.new_notebook(cells=[v4.new_code_cell(source.strip())], metadata=kernel)
            nbformat.write(notebook, Path(folder) / f"{name}.ipynb")
        with jupyter_lab(folder, config=AUTOGRADE) as address:
            page = _open(driven, address, "panel.ipynb")
            ours = _single_presses(page, presses)
            settle_ms = _quick_presses(page, quick)
            kept = page.evaluate(f"watched.image === document.querySelector('{OUTPUT_AREA} img')")
            jump = page.evaluate("Math.max(...watched.tops) - Math.min(...watched.tops)")
            page.close()
            page = _open(driven, address, "interact.ipynb")
            theirs = statistics.median(_single_presses(page, interact_presses))
            page.close()
        with jupyter_lab(folder) as address:
            stock = _single_presses(_open(driven, address, "panel.ipynb"), presses)
    median = statistics.median(ours)
    return {
        "median_ms": round(median, 1),
        "p95_ms": round(_p95(ours), 1),
        "settle_ms": round(settle_ms, 1),
        "stock_median_ms": round(statistics.median(stock), 1),
        "stock_p95_ms": round(_p95(stock), 1),
        "interact_median_ms": round(theirs, 1),
        "ratio": round(theirs / median, 1),
        "node_kept": kept,
        "page_jump_px": round(jump, 1),
    }


def _open(browser, address, name):
    """A page with the notebook, run, its first slider focused, and the watch set."""
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    run_notebook(page, address, name, [f"{OUTPUT_AREA} img", f"{OUTPUT_AREA} .noUi-handle"])
    page.wait_for_timeout(2000)
    page.evaluate(WATCH, OUTPUT_AREA)
    page.focus(f"{OUTPUT_AREA} .noUi-handle")
    page.keyboard.press("Home")
    page.wait_for_timeout(1500)
    return page


def _single_presses(page, count):
    """Milliseconds from each key press to its new picture."""
    times = []
    for key in _keys(count):
        page.evaluate("() => { watched.pressed.length = 0; watched.changed.length = 0; }")
        page.keyboard.press(key)
        page.wait_for_function("watched.changed.length > 0", timeout=30_000)
        times.append(page.evaluate("watched.changed[0] - watched.pressed[0]"))
        page.wait_for_timeout(60)  # nothing of this press may be left when the next one comes
    return times


def _quick_presses(page, count):
    """Milliseconds from the last of `count` presses without a pause to the last new picture."""
    page.keyboard.press("Home")
    page.wait_for_timeout(1500)
    page.evaluate("() => { watched.pressed.length = 0; watched.changed.length = 0; }")
    for key in _keys(count):
        page.keyboard.press(key)
    page.wait_for_timeout(3000)
    return page.evaluate("Math.max(...watched.changed) - Math.max(...watched.pressed)")


def _p95(times):
    return sorted(times)[min(int(0.95 * len(times)), len(times) - 1)]


def _keys(count):
    """Arrow keys that walk up and down the slider; each one changes its value."""
    return [("ArrowRight", "ArrowLeft")[press // 20 % 2] for press in range(count)]


if __name__ == "__main__":
    sys.exit(main())
