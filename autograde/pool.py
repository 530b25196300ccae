"""Run tasks on an executor of `concurrent.futures`, local processes or Dask. A killed worker loses nothing."""
import contextlib
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
from concurrent.futures import CancelledError, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import forkserver, resource_tracker

from autograde.errors import InputError

MOST_DEATHS = 2  # of the local pool, by the system (memory) or by a task; then tasks are looked at one by one
LOOK_S = 0.5  # how often `watch` is told
REACH_S = 10  # to a Dask scheduler, and until it has a worker


def run_all(function, tasks, scheduler=None, watch=lambda running: None):
    """Yield (task, result) as they finish; `tasks`: {name: arguments of `function`}. `watch` sees the running names.

    scheduler: address of a Dask scheduler, such as tcp://host:8786. The result is None for a task that ends every
    worker it runs in. Raises what `function` raises, and InputError where no worker can be had.
    """
    left, deaths = dict(tasks), 0
    while left:
        try:
            with _executor(scheduler, len(left)) as executor:
                for name, result in _finished(executor, function, left, watch):
                    del left[name]
                    yield name, result
        except BrokenProcessPool:
            deaths += 1
            if deaths >= MOST_DEATHS:
                deaths = 0
                if _alone(bool, ()) is None:
                    raise InputError("no worker process can be started on this machine") from None
                for name in list(left)[:2 * _workers(len(left)) + 1]:  # no more can have begun
                    yield name, _alone(function, left.pop(name))


def _finished(executor, function, tasks, watch):
    futures = {executor.submit(function, *arguments): name for name, arguments in tasks.items()}
    waiting, done, looked = set(futures), queue.SimpleQueue(), 0
    for future in futures:  # `wait` would look at all of them each time that one is done
        future.add_done_callback(done.put)
    while waiting:
        try:
            future = done.get(timeout=LOOK_S)
        except queue.Empty:
            pass
        else:
            waiting.remove(future)
            yield futures[future], _result(future)
        if time.monotonic() - looked > LOOK_S:
            looked = time.monotonic()
            watch([futures[future] for future in waiting if future.running()])


def _result(future):
    try:
        return future.result()
    except CancelledError:
        raise InputError("the Dask scheduler has gone. What was graded is kept, run again") from None
    except Exception as error:
        if type(error).__name__ == "KilledWorker":  # Dask's word for a task that ends every worker it runs in
            return None
        raise


def _executor(scheduler, tasks):
    return _dask(scheduler) if scheduler else _local(_workers(tasks))


def _workers(tasks):
    return min(os.cpu_count() or 1, tasks)


def _alone(function, arguments):
    """The result of a task in a pool of its own, None where its worker dies again."""
    with contextlib.suppress(BrokenProcessPool), _local(1) as executor:
        return executor.submit(function, *arguments).result()


@contextlib.contextmanager
def _local(workers):
    # Workers are forked from a server that has prepared the chapters, never from this process with its threads.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["autograde.warm"])
    resource_tracker.ensure_running()  # now, for it ends with SIGINT unblocked
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # Ctrl-C is for this process, not for workers
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_end_with_parent) as executor:
        try:
            yield executor
        except BaseException:  # Ctrl-C or an error: nobody waits for what has begun
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()
            if sys.version_info < (3, 11, 5):
                _unblock(executor)
            raise


def _unblock(executor):
    """End a pool whose workers are gone: its queue may write to nobody for ever (CPython issue 94777)."""
    thread = executor._executor_manager_thread
    if thread:
        thread.join(LOOK_S)  # it may do so by itself, and closes the pipe
        if thread.is_alive():
            executor._call_queue._reader.close()


def _end_with_parent():
    """In a new worker: it ends when the grading process is gone, however that ended."""
    def end():
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


@contextlib.contextmanager
def _dask(scheduler):
    try:
        from distributed import Client
    except ImportError:
        raise InputError("--scheduler needs Dask: pip install '.[cluster]'") from None
    try:
        client = Client(scheduler, timeout=REACH_S)
    except (OSError, TimeoutError, ValueError) as error:
        raise InputError(f"--scheduler {scheduler}: cannot be reached: {error}") from None
    with client:
        try:
            client.wait_for_workers(1, timeout=REACH_S)
        except TimeoutError:
            raise InputError(f"--scheduler {scheduler}: no worker is there") from None
        executor = client.get_executor(retries=3)
        try:
            yield executor
        finally:  # there is nothing to wait for: all results are here, or something went wrong
            executor.shutdown(wait=False)
