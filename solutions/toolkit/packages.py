"""What a notebook says at its first cell where the kernel lacks a package."""
import importlib.util
import sys
import types


def require_packages(names):
    """Say in one line which of these packages are missing and what installs them.

    Without torch only measurements are left out: the line is printed. Without another one nothing can run: raises
    ImportError, shown as that line alone, here and in every later cell that asks for the course tools.
    """
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if not missing:
        return
    named, install = " ".join(missing), f"%pip install {' '.join(missing)}"
    if missing == ["torch"]:
        print(
            f"没有 torch：略过测量，计分的部分都能做（要测量：{install}，再重启内核）"
            f" · no torch: measurements are left out, all that is graded works (to measure: {install}, "
            "then restart the kernel)"
        )
        return
    line = (
        f"缺少 {named}：请运行 {install}，重启内核，再从头运行"
        f" · {named} missing: run {install}, restart the kernel, then run from the top"
    )

    def refuse(name=""):
        if name.startswith("__"):  # IPython looks through all modules when it shows a traceback
            raise AttributeError(name)
        error = ImportError(line)
        error._render_traceback_ = lambda: [line]  # IPython shows this in place of its traceback
        raise error from None

    absent = types.ModuleType("course_tools")
    absent.__getattr__ = refuse
    sys.modules["course_tools"] = absent
    refuse()
