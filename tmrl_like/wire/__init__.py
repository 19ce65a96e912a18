"""What crosses the network: messages (`messages`), columnar sample packets (`columns`, `packet`),
policies.
"""
