"""The rollout worker: drives an environment and waits for nothing else."""
