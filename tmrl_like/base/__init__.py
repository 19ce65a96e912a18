"""What every room may use: atomic files, budgets, the end of a script, small helpers."""
