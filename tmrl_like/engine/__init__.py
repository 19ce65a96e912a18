"""Beyond one server: NATS JetStream between the server, where it takes the trainer's seat, and the
trainer.
"""
