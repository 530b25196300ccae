"""Panels: a kept picture, sliders that redraw only what moved, and a line that states what is shown.

Only core widgets are used, the same in ipywidgets 7 and 8. Without ipywidgets a panel is its picture with
default values and the line. Text inside figures is English: matplotlib's fonts draw Chinese as boxes.
"""
import base64
import contextlib
import functools
import html
import io
import textwrap
import time
import warnings
from typing import NamedTuple

PANEL_DPI = 100
PANEL_SECONDS = 2  # for the learner's answers of one picture
VIEW_TYPE = "application/vnd.jupyter.widget-view+json"
HOW_TO_GET_SLIDERS = (
    "这是默认值的静态图；要滑块，请运行 %pip install ipywidgets，然后刷新页面、重启内核"
    " · A static picture with default values; for sliders run %pip install ipywidgets, then reload the page"
    " and restart the kernel"
)


class Knob(NamedTuple):
    """One control of a panel; make it with `panel_slider`, `panel_choice` or `panel_toggle`."""

    kind: str
    name: str
    label: str
    options: tuple  # (text, value) pairs
    default: object


class Shown(NamedTuple):
    """What a panel shows now, in words: one sentence or two in each language, and perhaps a table.

    `table`: rows of texts, the first row is the header.
    """

    zh: str
    en: str
    table: tuple = ()


def panel_slider(name, label, values, default, unit="", text="{:g}"):
    """A slider over the given values; `text` formats the number beside it, `unit` goes into the label."""
    label = f"{label} ({unit})" if unit else label
    return Knob("slider", name, label, tuple((text.format(v), v) for v in values), default)


def panel_choice(name, label, options, default):
    """A drop-down list; `options` are (text, value) pairs."""
    return Knob("choice", name, label, tuple(options), default)


def panel_toggle(name, label, default):
    """A check box."""
    return Knob("toggle", name, label, (("on", True), ("off", False)), default)


def panel_figure(width_px, height_px):
    """A Figure with an Agg canvas that no pyplot list knows: nothing shows or closes it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_px / PANEL_DPI, height_px / PANEL_DPI), dpi=PANEL_DPI, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def panel_answers(function, inputs):
    """(answers, problem): what `function(*one)` returns for each input, in silence.

    `problem` is "" or says why the answers stop: "unfinished" for NotImplementedError, "slow" when they take more
    than PANEL_SECONDS, else the error.
    """
    answers, end = [], time.monotonic() + PANEL_SECONDS
    printed = io.StringIO()  # a print left in the function would fill the page at each move of a slider
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed), _quiet():
        for one in inputs:
            if time.monotonic() > end:
                return answers, "slow"
            try:
                answers.append(function(*one))
            except KeyboardInterrupt:
                raise
            except NotImplementedError:
                return answers, "unfinished"
            except BaseException as error:  # a wrong answer must not stop the panel, nor sys.exit() the kernel
                return answers, f"{type(error).__name__}: {panel_str(error)}"
    return answers, ""


def panel_trouble(name, problem):
    """What to say, in Chinese and in English, when `panel_answers` reports a problem of this function."""
    if problem == "unfinished":
        return f"{name} 尚未完成，所以没有它的结果。", f"{name} is not done yet, so its results are missing."
    if problem == "slow":
        return f"{name} 太慢，{PANEL_SECONDS} 秒内没有算完。", f"{name} is too slow: not done within {PANEL_SECONDS} seconds."
    return f"{name} 报错 {problem}", f"{name} raises {problem}"


def panel_str(value):
    """A learner's value as text: its words, or what `repr` says; its own methods may fail."""
    try:
        return str(value) if isinstance(value, (str, BaseException)) else repr(value)
    except BaseException:
        return f"<{type(value).__name__}>"


def panel_lines(text, width, most):
    """ASCII text in at most so many lines of so many characters, to fit a place in a figure."""
    lines = [part for line in panel_ascii(text).split("\n") for part in textwrap.wrap(line, width) or [""]]
    if len(lines) > most:
        lines = [*lines[:most - 1], f"{lines[most - 1][:width - 3]}..."]
    return "\n".join(lines)


def panel_default_style(make):
    """Decorator for what makes a panel: it looks the same whatever style is set in matplotlib in the notebook."""
    @functools.wraps(make)
    def styled(*args, **kwargs):
        import matplotlib.style

        with matplotlib.style.context("default"):
            return make(*args, **kwargs)
    return styled


def panel_ascii(text):
    """The text with what matplotlib cannot draw, or would read as a formula, as escapes."""
    return text.encode("ascii", "backslashreplace").decode().replace("$", r"\u0024")


class PanelPlot:
    """A kept figure of which only what has changed is drawn again.

    layers: lists of artists from the lowest to the topmost; the rest of the figure is drawn once. A layer is
    drawn again only when an artist in it, or in one below, has changed: what moves most goes last.
    """

    def __init__(self, figure, layers):
        self.figure, self.layers = figure, layers
        for artist in (artist for layer in layers for artist in layer):
            artist.set_animated(True)  # left out of the background
        with _quiet():
            figure.canvas.draw()
        self._grounds = [figure.canvas.copy_from_bbox(figure.bbox)]  # what lies below each layer

    def draw(self):
        """Bring the canvas up to date; returns whether anything had changed."""
        canvas = self.figure.canvas
        first = next((i for i, layer in enumerate(self.layers) if any(artist.stale for artist in layer)), None)
        if first is None:
            return False
        canvas.restore_region(self._grounds[first])
        del self._grounds[first + 1:]
        for layer in self.layers[first:]:
            for artist in layer:
                (artist.axes or self.figure).draw_artist(artist)
                artist.stale = False  # matplotlib leaves it on for what is invisible or empty
            self._grounds.append(canvas.copy_from_bbox(self.figure.bbox))
        return True

    def image(self):
        """What the canvas shows, as an RGB image of PIL's."""
        from PIL import Image

        size = self.figure.canvas.get_width_height()
        buffer = self.figure.canvas.buffer_rgba()
        return Image.frombuffer("RGBA", size, buffer, "raw", "RGBA", 0, 1).convert("RGB")


class Panel:
    """A picture with controls; make it a cell's last expression.

    plots: PanelPlots of one height, shown side by side, whose artists `update(values)` changes; it returns a
    `Shown`. Only the plots that have changed are encoded and sent, which is most of a move's time.
    rows: each a list of columns, each a list of Knobs. `values` maps each knob's name to its present value.
    `name` is one lower-case word, `title` a bilingual heading.
    """

    def __init__(self, name, title, plots, update, rows):
        self.name, self.title = name, title
        self.values = {knob.name: knob.default for row in rows for column in row for knob in column}
        self._plots, self._update = plots, update
        self.controls, self.pictures, self._line, self.box = {}, [], None, None
        self._refresh()
        with contextlib.suppress(ImportError):
            self._make_widgets(rows)

    def move(self, **values):
        """Set controls by name, as a hand on the sliders would."""
        for name, value in values.items():
            if name not in self.values:
                raise KeyError(f"this panel has no control {name!r}, only {', '.join(self.values)}")
            if self.controls:
                self.controls[name].value = value
            else:
                self.values[name] = value
                self._refresh()

    @property
    def png(self):
        """The plots in one PNG picture."""
        from PIL import Image

        images = [plot.image() for plot in self._plots]
        whole = Image.new("RGB", (sum(image.width for image in images), images[0].height))
        for number, image in enumerate(images):
            whole.paste(image, (sum(before.width for before in images[:number]), 0))
        return _png(whole)

    @property
    def text(self):
        """The line under the picture as plain text."""
        rows = [" | ".join(row) for row in self.shown.table]
        return "\n".join([self.shown.zh, self.shown.en, *rows])

    def _refresh(self):
        with _quiet():
            self.shown = self._update(self.values)
            changed = [plot.draw() for plot in self._plots]
        if self.box is None:
            return
        for plot, picture, moved in zip(self._plots, self.pictures, changed):
            if moved:
                picture.value = _png(plot.image())
        self._line.value = self._line_html()

    def _line_html(self):
        zh, en = html.escape(self.shown.zh), html.escape(self.shown.en)
        rows = [
            "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row)
            for tag, row in zip(["th", *["td"] * len(self.shown.table)], self.shown.table)
        ]
        table = f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>" if rows else ""
        return f"<div role='status' style='line-height:1.5'><p lang='zh'>{zh}</p><p lang='en'>{en}</p>{table}</div>"

    def _make_widgets(self, rows):
        import ipywidgets

        self.pictures = [_picture(ipywidgets, plot.image()) for plot in self._plots]
        width = sum(int(picture.width) for picture in self.pictures)
        self._line = ipywidgets.HTML(value=self._line_html(), layout={"width": f"{width}px", "max_width": "100%"})
        self.controls = {
            knob.name: _control(ipywidgets, knob, width // len(row)) for row in rows for column in row for knob in column
        }
        knobs = [
            ipywidgets.HBox([
                ipywidgets.VBox(
                    [self.controls[knob.name] for knob in column], layout={"width": f"{width // len(row)}px"}
                )
                for column in row
            ])
            for row in rows
        ]
        # While the widgets live, the line of the saved picture would say everything twice.
        heading = ipywidgets.HTML(f"<b>{html.escape(self.title)}</b><style>.{self._still_class()}{{display:none}}</style>")
        self.box = ipywidgets.VBox([heading, ipywidgets.HBox(self.pictures), *knobs, self._line])
        for name, control in self.controls.items():
            control.observe(lambda change, name=name: self._moved(name, change["new"]), names="value")

    def _moved(self, name, value):
        self.values[name] = value
        self._refresh()

    def _still_class(self):
        return f"panel-still-{self.name}"

    def _ipython_display_(self):
        """Show the widgets; beside them goes the picture that GitHub and other readers without a kernel show."""
        from IPython.display import display

        bundle = {"text/plain": self.title, "image/png": base64.b64encode(self.png).decode()}
        if self.box is not None:
            bundle[VIEW_TYPE] = {"version_major": 2, "version_minor": 0, "model_id": self.box.model_id}
        display(bundle, raw=True, metadata={"image/png": {"alt": f"{self.title}. {self.shown.en}"}})
        line, text = self._line_html(), self.text
        if self.box is None:
            line, text = f"{line}<p>{html.escape(HOW_TO_GET_SLIDERS)}</p>", f"{text}\n{HOW_TO_GET_SLIDERS}"
        display({"text/plain": text, "text/html": f"<div class='{self._still_class()}'>{line}</div>"}, raw=True)


@contextlib.contextmanager
def _quiet():
    """Without warnings: matplotlib 3.10 has one on pyparsing, and text on stderr fails nbval."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _png(image):
    png = io.BytesIO()
    image.save(png, "png", compress_level=1)
    return png.getvalue()


def _picture(ipywidgets, image):
    """The widget that shows an image, in a fixed box: the page must not move while a picture changes.

    On a narrow page it shrinks, so that two of them stay side by side.
    """
    width, height = f"{image.width}px", f"{image.height}px"
    return ipywidgets.Image(
        value=_png(image), format="png", width=image.width, height=image.height,
        layout={"width": width, "height": height, "min_height": height, "min_width": "0", "max_width": "100%",
                "object_fit": "contain"},
    )


def _control(ipywidgets, knob, width):
    """The core widget of a knob, in a column of so many pixels; all of them take the keyboard."""
    style, layout = {"description_width": f"{width // 2}px"}, {"width": "98%"}
    if knob.kind == "toggle":
        # Not indented: the label would be cut.
        return ipywidgets.Checkbox(value=knob.default, description=knob.label, indent=False, layout=layout)
    kind = ipywidgets.SelectionSlider if knob.kind == "slider" else ipywidgets.Dropdown
    return kind(
        options=list(knob.options), value=knob.default, description=knob.label, style=style, layout=layout
    )
