"""Policies: actors, their parameters as bytes, and the checks that a worker makes before a policy
drives.
"""
