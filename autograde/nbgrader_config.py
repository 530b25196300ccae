# nbgrader's configuration of this course: found when nbgrader runs in this folder, or elsewhere with
# JUPYTER_CONFIG_PATH naming it. The course folder is made here, so that no step is left to do by hand.
from autograde.course import course_config, prepare_course
from autograde.paths import RESULTS

prepare_course(RESULTS)
get_config().merge(course_config(RESULTS))  # noqa: F821
