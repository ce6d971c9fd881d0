"""Healing in the daemon: the policy of the settings, orders to other schedulers, hooks, repairs."""
