"""Policies: the actor that acts, its parameters as bytes, and what a worker checks before one
drives.
"""
