"""The sample class: a dozen made-up learners, good, half done, wrong and broken, to try the grading on.

Made from the chapters, so that it follows them. Except for the first learner's, the notebooks hold the
title and the graded part only, with locked cells cut to one line: nbgrader puts these back anyway.
"""
import copy

from autograde import build
from autograde.chapter import LANGUAGES, load_chapters, nbgrader
from autograde.errors import InputError

CUT = "# (cut from this sample; nbgrader puts locked cells back)"
_SYNTAX_ERROR = "def classify_resource_need(request:\n    return"
_CHATTY = '''

import logging
import warnings

logging.basicConfig()
_quiet_{name} = {name}


def {name}(*args):
    print("called with", args)
    warnings.warn("this helper will move in the next release", FutureWarning)
    logging.warning("still debugging")
    return _quiet_{name}(*args)'''


def sample_submissions():
    """{"<learner>/<chapter>/<file>": bytes} of the whole class."""
    tiers, pools = (_Sample(name) for name in ("39a_inference_fallback_and_tiers", "39b_hetero_pd_and_serving_tiers"))
    cut_off = tiers.notebook("zh", tiers.all)
    texts = {
        tiers.path("alice-lin"): tiers.notebook("en", tiers.all, whole=True),
        pools.path("alice-lin"): pools.notebook("en", pools.all, whole=True),
        tiers.path("王小明"): tiers.notebook("zh", tiers.all),
        pools.path("王小明"): pools.notebook("zh", pools.all),
        pools.path("bruno"): pools.notebook("en", pools.all),
        tiers.path("陈思"): tiers.notebook("zh", {}),
        pools.path("陈思"): pools.notebook("zh", {}),
        tiers.path("dora.okafor"): tiers.notebook("en", tiers.only("tiers")),
        pools.path("dora.okafor"): pools.notebook("en", pools.only("classify", "handoff")),
        tiers.path("李雷"): tiers.notebook("zh", tiers.all | tiers.wrong("policy", "memory-inclusive")),
        pools.path("李雷"): pools.notebook("zh", pools.all | pools.wrong("handoff", "bytes-not-bits")),
        pools.path("emil"): pools.notebook("en", pools.all | {"classify": _SYNTAX_ERROR}),
        pools.path("fatima"): pools.notebook("en", pools.all | pools.chatty("handoff")),
        tiers.path("gao yu 高宇"): cut_off[: len(cut_off) // 2],
        pools.path("gao yu 高宇"): pools.notebook("zh", pools.all),
        f"hugo/{pools.chapter.name}/README.txt": "I will hand in the notebook tomorrow.\n",
        tiers.path("ines", "{} (1)"): tiers.notebook("en", tiers.all),
        pools.path("赵敏"): pools.notebook("zh", pools.all | pools.wrong("capability", "dtype-never-checked")),
    }
    return {path: text.encode() for path, text in texts.items()}


class _Sample:
    """Submissions to one chapter; answers are {grade id: source of the solution cell}."""

    def __init__(self, name):
        self.chapter = next((chapter for chapter in load_chapters() if chapter.name == name), None)
        if self.chapter is None:
            raise InputError(f"autograde/samples.py: there is no chapter {name} for the sample class")
        self.releases = {language: build.release_notebook(self.chapter, language) for language in LANGUAGES}
        solved = build.solved_notebook(self.chapter, "en").cells
        self.all = {
            nbgrader(cell)["grade_id"]: cell.source for cell in solved if nbgrader(cell).get("solution")
        }

    def path(self, learner, file="{}"):
        return f"{learner}/{self.chapter.name}/{file.format(self.chapter.name)}.ipynb"

    def only(self, *todos):
        return {todo: self.all[todo] for todo in todos}

    def wrong(self, todo, name):
        """One of the chapter's wrong answers; it may build on the right one, which stands above it."""
        for variant in self.chapter.variants:
            if (variant.kind, variant.todo, variant.name) == ("wrong", todo, name):
                return {todo: f"{self.all[todo]}\n\n\n{variant.source}"}
        raise InputError(f"autograde/samples.py: {self.chapter.name} has no wrong answer {name!r} of {todo}")

    def chatty(self, todo):
        """The right answer with prints, warnings and log lines."""
        function = next(found.functions[0] for found in self.chapter.todos if found.grade_id == todo)
        return {todo: self.all[todo] + _CHATTY.format(name=function)}

    def notebook(self, language, answers, whole=False):
        """Text of the learner's notebook with these answers filled in."""
        notebook = copy.deepcopy(self.releases[language])
        if not whole:
            notebook.cells = [cell for i, cell in enumerate(notebook.cells) if i == 0 or nbgrader(cell)]
        for cell in notebook.cells:
            if nbgrader(cell).get("locked") and not whole:
                cell.source = CUT
            elif nbgrader(cell).get("solution"):
                cell.source = answers.get(nbgrader(cell)["grade_id"], cell.source)
        return build.text(notebook)
