"""A JupyterLab of its own on loopback and a headless Chromium, for whoever looks at notebooks as learners do."""
import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from autograde.errors import InputError

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER_ARGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
START_SECONDS = 90
LAB_SETTINGS = {
    # Else a dialog covers the notebook.
    "@jupyterlab/apputils-extension/notification": '{"fetchNews": "false"}',
    # Else cells out of sight are not on the page.
    "@jupyterlab/notebook-extension/tracker": '{"windowingMode": "none"}',
}
KERNEL_STATUS = "jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status"
COUNT_RUN = "[...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')].filter(e => /\\d/.test(e.innerText)).length"


def find_browser(path=None):
    """(playwright's context manager, path of the browser); InputError where one of them is missing."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise InputError("playwright is missing: pip install playwright") from None
    found = path or next(filter(None, map(shutil.which, BROWSERS)), None)
    if not found or not Path(found).is_file():
        raise InputError(f"no browser at {path or 'any name on PATH'}: install one of {', '.join(BROWSERS)}")
    return sync_playwright, found


@contextlib.contextmanager
def chromium(path=None):
    """A headless browser of playwright's. InputError when none can be driven."""
    playwright, executable = find_browser(path)
    with playwright() as driver:
        try:
            browser = driver.chromium.launch(executable_path=executable, args=BROWSER_ARGS)
        except Exception as error:  # playwright's own error types say the same in many lines
            raise InputError(f"{executable}: the browser does not start: {str(error).splitlines()[0]}") from None
        with contextlib.closing(browser):
            yield browser


@contextlib.contextmanager
def jupyter_lab(folder, config=None):
    """A JupyterLab on loopback that serves `folder`; yields its address as (base, token).

    `config`: a folder with configuration for Jupyter and nbgrader, as JUPYTER_CONFIG_PATH names one.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = secrets.token_hex(16)
    with tempfile.TemporaryDirectory() as private:
        private = Path(private)
        for plugin, text in LAB_SETTINGS.items():
            path = private / "settings" / f"{plugin}.jupyterlab-settings"
            path.parent.mkdir(parents=True)
            path.write_text(text)
        environment = {
            **os.environ, "JUPYTERLAB_SETTINGS_DIR": str(private / "settings"),
            "JUPYTERLAB_WORKSPACES_DIR": str(private / "spaces"), "JUPYTER_CONFIG_DIR": str(private / "config"),
            "JUPYTER_RUNTIME_DIR": str(private / "runtime"), "IPYTHONDIR": str(private / "ipython"),
            "JUPYTER_CONFIG_PATH": str(config or ""), "COURSE_OFFLINE": "1", "JUPYTER_TOKEN": token,
        }
        log = private / "lab.log"
        with log.open("wb") as sink:
            server = subprocess.Popen(
                [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--expose-app-in-browser",
                 "--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}", "--ServerApp.port_retries=0",
                 f"--ServerApp.root_dir={folder}"],
                env=environment, stdout=sink, stderr=subprocess.STDOUT, cwd=folder,
            )
            try:
                base = f"http://127.0.0.1:{port}"
                _wait_for_server(server, f"{base}/api/status?token={token}", log)
                yield base, token
            finally:
                server.terminate()
                try:
                    server.wait(20)
                except subprocess.TimeoutExpired:
                    server.kill()
                    server.wait()


def _wait_for_server(server, url, log):
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and server.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.3)
    last = log.read_text(errors="replace").strip().splitlines()[-1:]
    raise InputError(f"JupyterLab does not answer: {' '.join(last)}")


def run_notebook(page, address, name, ready, seconds=120):
    """Open a notebook in a page of the browser, run all its cells, and wait for the selectors in `ready`."""
    from playwright.sync_api import TimeoutError

    base, token = address
    page.goto(f"{base}/lab/tree/{name}?token={token}&reset", timeout=START_SECONDS * 1000)
    loaded = "window.jupyterapp && document.querySelector('.jp-Notebook .jp-CodeCell')"
    page.wait_for_function(loaded, timeout=START_SECONDS * 1000)
    for _ in range(6):
        # A cell that is run just when the kernel comes up can be lost: wait for it, and run again if need be.
        with contextlib.suppress(TimeoutError):
            page.wait_for_function(f"{KERNEL_STATUS} === 'idle'", timeout=20_000)
        page.wait_for_timeout(1000)
        if page.is_visible(".jp-Dialog .jp-mod-accept"):  # the question for a kernel, when it came too late
            page.click(".jp-Dialog .jp-mod-accept")
        # Not awaited: its promise does not settle while such a question is open.
        page.evaluate("() => { jupyterapp.commands.execute('notebook:run-all-cells'); }")
        with contextlib.suppress(TimeoutError):
            page.wait_for_function(f"{COUNT_RUN} > 0", timeout=20_000)
            break
    for selector in ready:
        try:
            page.wait_for_selector(selector, timeout=seconds * 1000)
        except TimeoutError:
            raise InputError(f"{name}: no {selector} appears in JupyterLab") from None


def run_cells(page, pattern, sources, seconds=120):
    """Write `sources` {cell id: text} into the open notebook; run these cells and those whose text matches."""
    page.evaluate("""([pattern, sources]) => {
      const notebook = jupyterapp.shell.currentWidget.content;
      notebook.deselectAll();
      for (const cell of notebook.widgets) {
        const written = sources[cell.model.id];
        if (written !== undefined) cell.model.sharedModel.setSource(written);
        const wanted = written !== undefined || new RegExp(pattern).test(cell.model.sharedModel.getSource());
        if (cell.model.type === 'code' && wanted) notebook.select(cell);
      }
      return jupyterapp.commands.execute('notebook:run-cell');
    }""", [pattern, sources])
    page.wait_for_function(f"{KERNEL_STATUS} === 'idle'", timeout=seconds * 1000)


def change_theme(page, theme):
    """Show JupyterLab in its theme of this name."""
    page.evaluate("theme => jupyterapp.commands.execute('apputils:change-theme', {theme})", theme)
    # Two changes at once upset JupyterLab: each takes the splash screen away when it is done.
    there = "theme => document.body.dataset.jpThemeName === theme && !document.getElementById('jupyterlab-splash')"
    page.wait_for_function(there, arg=theme)
