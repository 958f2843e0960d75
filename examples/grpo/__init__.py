"""The parts of `examples/train_grpo.py`: a game, a policy, and its training."""
