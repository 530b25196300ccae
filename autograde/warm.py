"""Imported, for its effect, by the server that workers are forked from: all of them then have the chapters prepared."""
import contextlib
import gc

from autograde.worker import warm_up

with contextlib.suppress(Exception):  # a worker meets it again, and can tell
    warm_up()
gc.collect()
gc.freeze()  # what is prepared stays shared
