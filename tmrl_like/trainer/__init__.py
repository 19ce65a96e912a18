"""The trainer: takes packets, keeps them, learns, and publishes policies."""
