"""Executors without a thread, in place of the background threads that write files."""

from collections import deque
from concurrent.futures import Executor, Future


class Beside(Executor):
    """Runs its jobs when `work` or `shutdown` is called."""

    def __init__(self):
        self.jobs = deque()

    def submit(self, call, /, *arguments):
        self.jobs.append((Future(), call, arguments))
        return self.jobs[-1][0]

    def work(self):
        while self.jobs:
            future, call, arguments = self.jobs.popleft()
            try:
                future.set_result(call(*arguments))
            except Exception as error:
                future.set_exception(error)

    def shutdown(self, wait=True):
        self.work()


class AtOnce(Beside):
    """Runs each job at once, so that the order of events is the same each time."""

    def submit(self, call, /, *arguments):
        future = super().submit(call, *arguments)
        self.work()
        return future
