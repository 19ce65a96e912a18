"""A run's metrics and records: read back (`reading`), drawn (`curves`), written to files and
services (`sinks`), and the starts of a run (`starts`).
"""
