"""Helpers of the tests that look at pages in a browser: what goes wrong on a page, contrast, a panel's state."""
import contextlib
import re

from conftest import needed

from autograde.browser import chromium, find_browser

# What a learner may write to do harm to who looks at it.
HOSTILE = [
    "<script>window.__pwned = 1</script>", "<img src=x onerror=\"window.__pwned=2\">",
    "\"><svg onload='window.__pwned=3'>", "<a href=\"javascript:window.__pwned=4\">x</a>",
    "]]></pre></code></details></style></title><script>alert(5)</script>", "{{ 7 * 191 }}{% raw %}",
    "<iframe src='https://example.org/'></iframe><img src='//example.org/x.png'>", "<!--", "&lt;b&gt;",
    "a\0b\x1b[31m\ud800\udfff", "\u202etxt.exe\u2066 \u200f", "<meta http-equiv=refresh content='0;url=https://example.org'>",
    "[x](javascript:window.__pwned=7) ![y](https://example.org/y.png) <https://example.org>",
]
READABLE = 4.5  # WCAG 2.1's least contrast of text
_ELSEWHERE = re.compile(r"https?://(?!127\.0\.0\.1)")
_EMPTY_PICTURE = "<svg xmlns='http://www.w3.org/2000/svg' width='99' height='20'/>"
# The contrast of each visible text with what is painted behind it, the lowest first.
_CONTRASTS = """selector => {
  const context = Object.assign(document.createElement('canvas'), {width: 1, height: 1})
    .getContext('2d', {willReadFrequently: true});
  const luminance = colours => {
    for (const colour of colours) { context.fillStyle = colour; context.fillRect(0, 0, 1, 1); }
    const [r, g, b] = [...context.getImageData(0, 0, 1, 1).data].map(value => value / 255)
      .map(value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = new Map();
  for (const root of document.querySelectorAll(selector)) for (const node of [root, ...root.querySelectorAll('*')]) {
    const text = [...node.childNodes].filter(one => one.nodeType === 3).map(one => one.data).join('').trim();
    if (!text || ['STYLE', 'SCRIPT', 'OPTION'].includes(node.tagName)) continue;
    if (!node.checkVisibility({visibilityProperty: true})) continue;
    const grounds = [];
    for (let at = node; at; at = at.parentElement) grounds.unshift(getComputedStyle(at).backgroundColor);
    grounds.unshift('white');
    const [back, front] = [luminance(grounds), luminance([...grounds, getComputedStyle(node).color])];
    const ratio = (Math.max(back, front) + 0.05) / (Math.min(back, front) + 0.05);
    found.set(node, [Math.round(ratio * 100) / 100, node.tagName, text.slice(0, 60)]);
  }
  return [...found.values()].sort((one, other) => one[0] - other[0]);
}"""


@contextlib.contextmanager
def headless():
    """A headless Chromium."""
    with needed():
        find_browser()
    with chromium() as browser:
        yield browser


@contextlib.contextmanager
def watched_page(browser, **options):
    """(page, complaints, outside): errors and dialogs as they come, and addresses outside that it asked for.

    The network is not there: an outside address is answered with an empty picture or script.
    """
    page, complaints, outside = browser.new_page(viewport={"width": 1280, "height": 1000}, **options), [], []

    def answer(route):
        outside.append(route.request.url)
        if route.request.resource_type == "script":
            route.fulfill(body="", content_type="text/javascript")
        else:
            route.fulfill(body=_EMPTY_PICTURE, content_type="image/svg+xml")

    def dismiss(dialog):
        complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    page.route(_ELSEWHERE, answer)
    page.on("dialog", dismiss)
    page.on("pageerror", lambda error: complaints.append(error.stack))
    page.on("console", lambda message: complaints.append(f"{message.text} {message.location['url']}")
            if message.type == "error" else None)
    with contextlib.closing(page):
        yield page, complaints, outside


def hard_to_read(page, selector):
    """[[contrast, tag, text]] of the texts below these elements that are too faint; fails where there is no text."""
    contrasts = page.evaluate(_CONTRASTS, selector)
    assert contrasts, selector
    return [one for one in contrasts if one[0] < READABLE]
