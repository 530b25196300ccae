"""What the build writes into the notebooks in place of a marker: badges, licences, links between the two branches.

Learner notebooks lie on the branch `main`, solved ones under the same paths on the branch `solutions`. A learner
notebook opens itself, and leads to its solved twin only below the scorecard; a solved one leads back.
"""
import re
from urllib.parse import quote

from autograde import git, settings

BADGES = "<!-- badges -->"  # in the first cell
TWIN = "<!-- solved twin -->"  # in a cell below the scorecard
_GITHUB = "https://github.com/"
# https, with a user or a token or not, or ssh in its forms; then owner/repository.
_REMOTE = r"(?:(?:https|git|ssh)://)?(?:[^@/]+@)?(?:www\.|ssh\.)?github\.com(?::443)?[:/]([^/]+/[^/]+?)(?:\.git)?/?"
_MODELSCOPE_BADGE = (
    "[![Open ModelScope](https://img.shields.io/badge/ModelScope-My%20Notebook-624aff)]"
    "(https://modelscope.cn/my/mynotebook)"
)
_MODELSCOPE = {
    "zh": "在 ModelScope：点徽章打开“我的 Notebook”，再把这个 `.ipynb` 文件上传进去。",
    "en": "On ModelScope: the badge opens “My Notebook”; upload this `.ipynb` file there.",
}
_ANSWERS = {
    "zh": "“想一想”和 TODO 的答案在解答版里，链接在本 notebook 的末尾。",
    "en": "Answers to the Think questions and the TODOs are in the solved notebook; "
          "the link is at the end of this one.",
}
_LICENCES = {
    "zh": "许可：文字 [CC BY 4.0](https://creativecommons.org/licenses/by/4.0/deed.zh-hans)，"
          "代码 [Apache-2.0](https://www.apache.org/licenses/LICENSE-2.0)。",
    "en": "Licences: text [CC BY 4.0](https://creativecommons.org/licenses/by/4.0/), "
          "code [Apache-2.0](https://www.apache.org/licenses/LICENSE-2.0).",
}
_TO_TWIN = {
    "zh": "做完再看：[本章的解答版]({link})里有每个 TODO 的答案、“想一想”的参考答案和运行结果。",
    "en": "When you are done: the [solved notebook]({link}) of this chapter holds the answer to every TODO and every "
          "Think question, with its outputs.",
}
_BACK = {
    "zh": "**这是解答版，带运行结果。** 自己动手做：[本章的练习版]({link}) {badge}",
    "en": "**This is the solved notebook, with its outputs.** To work on the chapter yourself: "
          "[the notebook with its TODOs open]({link}) {badge}",
}


def repository():
    """Address of the repository: the GitHub remote `origin` where there is one, else what settings.py says."""
    # Only GitHub has Colab's badge addresses; a mirror or a local clone keeps the setting.
    match = re.fullmatch(_REMOTE, git.answer("remote", "get-url", "origin"), re.I)
    return f"{_GITHUB}{match[1]}" if match else settings.REPOSITORY


def notebook_path(chapter_name, language):
    """Where a chapter's notebook lies, from the root of either branch."""
    return f"course/{language}/{chapter_name}/{chapter_name}.ipynb"


def colab_badge(chapter_name, language):
    """Markdown of the badge that opens a learner notebook in Colab."""
    path = _on_github(settings.BRANCH, chapter_name, language).removeprefix(_GITHUB)
    return (
        "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
        f"(https://colab.research.google.com/github/{path})"
    )


def filled(source, chapter_name, language, *, solved):
    """A Markdown cell with its markers replaced by what a learner notebook or a solved one shows there."""
    if BADGES not in source and TWIN not in source:
        return source
    if solved:
        link = _on_github(settings.BRANCH, chapter_name, language)
        top = twin = _BACK[language].format(link=link, badge=colab_badge(chapter_name, language))
    else:
        badges = f"{colab_badge(chapter_name, language)} {_MODELSCOPE_BADGE}"
        top = f"{badges}\n\n{_MODELSCOPE[language]}\n\n{_ANSWERS[language]}"
        twin = _TO_TWIN[language].format(link=_on_github(settings.SOLUTIONS_BRANCH, chapter_name, language))
    return source.replace(BADGES, f"{top}\n\n{_LICENCES[language]}").replace(TWIN, twin)


def _on_github(branch, chapter_name, language):
    return f"{repository()}/blob/{branch}/{quote(notebook_path(chapter_name, language))}"
