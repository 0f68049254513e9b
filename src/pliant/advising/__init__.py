"""Advice: criteria, budget, race, and the recommendation that follows from them."""
