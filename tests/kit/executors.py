"""A thread beside, of a part that writes its files there."""

from collections import deque
from concurrent.futures import Executor, Future


class Beside(Executor):
    """Does what it is given when it is told to `work`, or when somebody waits for its end."""

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
    """Does at once what it is given: so the order of all that happens is the same each time."""

    def submit(self, call, /, *arguments):
        future = super().submit(call, *arguments)
        self.work()
        return future
