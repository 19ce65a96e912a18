"""The live page: a process that watches a server with a watcher's key, for browsers and
Prometheus.
"""
