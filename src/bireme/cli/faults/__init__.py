"""Commands about what goes wrong: findings, and checks of a node."""
