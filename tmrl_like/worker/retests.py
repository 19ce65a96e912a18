"""Which test episodes are repeated: those of a policy that may become the run's best one."""

from __future__ import annotations

import math

from tmrl_like.policies.policy_store import TESTS


class Retests:
    """Has a policy tested again while all its test episodes are better than the worst one of the
    best policy so far.

    The best policy is this worker's own: the last one that passed `TESTS` tests. A worker's first
    test is not repeated, because it is that of an untrained policy. Nor are others as long as
    tests have taken more steps than training: they would hold up learning.
    """

    def __init__(self) -> None:
        self._bar = -math.inf  # the worst test episode of the best policy
        self._returns: list[float] = []  # of the policy that is tested
        self._is_first = True

    def wants_another(self, return_: float, trained: int, tested: int) -> bool:
        """Record the return of a test episode; return whether the same policy should drive another
        one.

        `trained` and `tested` are the steps so far of training and test episodes.
        """
        self._returns.append(return_)
        worst = min(self._returns)
        is_better, is_over = worst > self._bar and not self._is_first, len(self._returns) == TESTS
        self._is_first = False
        begins = len(self._returns) == 1
        if is_better and not is_over and (tested <= trained or not begins):
            return True
        if is_better and is_over:
            self._bar = worst
        self._returns = []
        return False
