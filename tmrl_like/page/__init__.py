"""The live page: one process that looks at a server with a watcher's key, and shows it to browsers
and Prometheus.
"""
