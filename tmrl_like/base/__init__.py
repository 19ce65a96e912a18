"""Utilities that every other package may use: walks over nested values, atomic files, child
processes, budgets, exit handlers, helpers.
"""
