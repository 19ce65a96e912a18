"""What every room may use: walks over values, atomic files, child processes, budgets, the end of a
script, helpers.
"""
