"""What a script leaves open is closed at its end."""

import os

import pytest
from kit.pythons import python

PARTS = """
import multiprocessing, sys
from tmrl_like.base.script import close_at_exit

class Part:
    def __init__(self, name, turn=0):
        self.name = name
        close_at_exit(self, turn)

    def close(self):
        print("closing", self.name)
        if self.name == "an interrupted one":
            raise KeyboardInterrupt  # a second Ctrl-C
"""
INTERRUPTED = """
parts = Part("the next", 1), Part("an interrupted one", 0)
"""
FORKED = """
def main():
    global child
    child = Part("the child's")

parent = Part("the parent's")
process = multiprocessing.get_context("fork").Process(target=main)
process.start()
process.join()
print("joined", process.exitcode)
"""


def test_a_second_interrupt_ends_the_closing_of_one_part_only():
    said, errors = python("-c", PARTS + INTERRUPTED)
    assert said.splitlines() == ["closing an interrupted one", "closing the next"]
    assert errors == "closing a Part at exit was interrupted\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_closes_its_own_parts_and_none_of_its_parents():
    said, _ = python("-W", "ignore", "-c", PARTS + FORKED)
    assert said.splitlines() == ["closing the child's", "joined 0", "closing the parent's"]
