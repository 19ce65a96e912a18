"""The server: relays samples from workers to the trainer, and policies back."""
