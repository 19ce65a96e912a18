"""NATS JetStream as an engine between servers and trainer, for more than one server. At each server
the engine takes the trainer's seat.
"""
