"""What every room may use: atomic files, child processes, budgets, the end of a script, small helpers."""
