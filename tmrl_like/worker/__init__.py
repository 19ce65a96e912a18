"""The rollout worker: drives an environment and never waits."""
