"""Reservations: who may use one, how they are made and changed, what happens when they end."""
