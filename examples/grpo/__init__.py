"""What `examples/train_grpo.py` trains: a game, a policy, and how it learns."""
