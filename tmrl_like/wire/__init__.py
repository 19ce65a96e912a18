"""The wire format: messages (`messages`), columnar sample packets (`columns`, `packet`), policies
(`policy`).
"""
