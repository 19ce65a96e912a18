"""The server: relays packets one way and policies the other."""
