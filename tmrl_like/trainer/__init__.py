"""The trainer: receives packets, keeps samples, learns, and publishes policies."""
